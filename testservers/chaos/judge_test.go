//go:build external

package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// judge compares what lives upstream with what the store says. It reads the
// collections as an operator's own program would.
type judge struct {
	w      *world
	db     *driver.Database
	looks  atomic.Int64
	peak   atomic.Int64 // most sessions alive at once that count
	missed int          // looks that the store did not answer
}

type holder struct {
	Token   string `bson:"_id"`
	State   string `bson:"state"`
	Payload struct {
		Session string `bson:"sessionId"`
	} `bson:"payload"`
	Levels []struct {
		ID string `bson:"id"`
	} `bson:"levels"`
	Revoked struct {
		Reason  string    `bson:"reason"`
		At      time.Time `bson:"at"`
		Handled time.Time `bson:"handledAt"`
	} `bson:"revoked"`
}

type counter struct {
	ID    string `bson:"_id"`
	Count int    `bson:"count"`
	Cap   int    `bson:"cap"`
}

func newJudge(t *testing.T, w *world) *judge {
	client, err := driver.Connect(options.Client().ApplyURI(w.store.URI).SetServerSelectionTimeout(2 * time.Second).SetTimeout(3 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Disconnect(context.WithoutCancel(t.Context())) })
	return &judge{w: w, db: client.Database(w.database)}
}

func (j *judge) read(ctx context.Context) (hs []holder, cs []counter, err error) {
	cur, err := j.db.Collection("resource_lease_holders").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &hs)
	}
	if err == nil {
		cur, err = j.db.Collection("resource_lease_counters").Find(ctx, bson.D{})
	}
	if err == nil {
		err = cur.All(ctx, &cs)
	}
	return hs, cs, err
}

// look demands that no cap is exceeded now. A session counts unless its holder
// is marked and the handler that ends it had not run when the upstream was
// read: such a slot is free before its session has ended, by design. The
// sessions are read first: whatever the store says afterwards of one of them is
// later, and a handler that ran in between is seen by its time.
func (j *judge) look(ctx context.Context) {
	began := time.Now()
	paused := j.w.pausedNames()
	sessions := j.w.upstream.Stats().Sessions
	hs, cs, err := j.read(ctx)
	if err != nil {
		j.missed++
		return
	}
	j.looks.Add(1)
	leaving := map[string]bool{}
	for _, h := range hs {
		// The store's clock is this machine's; a tenth of a second is more than
		// what its precision can hide.
		if h.State == "REVOKED" && (h.Revoked.Handled.IsZero() || h.Revoked.Handled.After(began.Add(-100*time.Millisecond))) {
			leaving[h.Payload.Session] = true
		}
	}
	var names []string
	for _, s := range sessions {
		if !leaving[s.ID] && !j.w.nobodyKnows(s.Client) && !paused[s.Client] {
			names = append(names, s.Client)
		}
	}
	j.peak.Store(max(j.peak.Load(), int64(len(names))))
	for _, v := range over(names) {
		j.w.t.Errorf("%s: more sessions live than the cap allows: %s", began.Format("15:04:05.000"), v)
	}
	for _, c := range cs {
		level := strings.Split(c.ID, "|")[1]
		if c.Count > caps[level] || c.Count < 0 {
			j.w.t.Errorf("the counter %s stands at %d of %d", c.ID, c.Count, caps[level])
		}
	}
}

// nobodyKnows reports whether the client of this session never got an answer to
// its initialize: the pod may have died between the upstream's answer and the
// payload, and then no one knows the session's id.
func (w *world) nobodyKnows(name string) bool {
	w.unansweredMu.Lock()
	defer w.unansweredMu.Unlock()
	return w.unanswered[name]
}

// pausedNames lists the clients that wait for a pod which was frozen meanwhile.
func (w *world) pausedNames() map[string]bool {
	w.unansweredMu.Lock()
	defer w.unansweredMu.Unlock()
	return maps.Clone(w.paused)
}

// settled demands that all is given back. It returns what is not, or nothing.
func (j *judge) settled(ctx context.Context) (left []string, orphans int) {
	hs, cs, err := j.read(ctx)
	if err != nil {
		return []string{err.Error()}, 0
	}
	known := map[string]bool{}
	for _, h := range hs {
		switch {
		case h.State != "REVOKED":
			left = append(left, fmt.Sprintf("holder %.8s is %s", h.Token, h.State))
		case h.Revoked.Handled.IsZero():
			left = append(left, fmt.Sprintf("the handler of %.8s (%s) has not run", h.Token, h.Revoked.Reason))
		}
		known[h.Payload.Session] = true
	}
	for _, c := range cs {
		left = append(left, fmt.Sprintf("counter %s stands at %d", c.ID, c.Count))
	}
	for _, s := range j.w.upstream.Stats().Sessions {
		if j.w.nobodyKnows(s.Client) && s.Calls == 0 && !known[s.ID] {
			orphans++
			continue
		}
		left = append(left, fmt.Sprintf("session %s lives, %d calls, %d ms old (marked: %v)", s.Client, s.Calls, s.AgeMs, known[s.ID]))
	}
	return left, orphans
}

// freePort is a port that nothing listens on, below those that outgoing
// connections are given: the store comes back to it after its absence.
func freePort(t *testing.T) int {
	for range 100 {
		port := 10000 + rand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port between 10000 and 19999 is free")
	return 0
}
