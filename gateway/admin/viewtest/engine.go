// Package viewtest is the lease engine for tests of what is above it: the view,
// the admin API and the page. It is the real engine over the reference store,
// with a short way to begin a test with leases of any age and state.
package viewtest

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// margin is the engine's reconcile margin, and what counters are older than.
const margin = 100 * time.Millisecond

// Engine is a started engine of the pod "viewtest" and its store.
type Engine struct {
	*lease.Manager
	*storetest.Faulty

	mem    *storetest.Memory
	t      testing.TB
	now    func() time.Time
	made   int
	counts map[lease.CounterID]int // as Hold has booked them
}

// New makes an engine whose store has this clock. It ends with the test.
func New(t testing.TB, now func() time.Time) *Engine {
	t.Helper()
	mem := storetest.NewMemory(now)
	e := &Engine{Faulty: storetest.NewFaulty(mem), mem: mem, t: t, now: now, counts: map[lease.CounterID]int{}}
	e.Manager = storetest.NewManager(t, e.Faulty, "viewtest", func(o *lease.Options) { o.ReconcileSafety = margin })
	e.Register("mcp", handled{})
	e.Register("tex", handled{})
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The sweep and the pass at the start are over before anything is there.
	e.Until(t, "the engine has swept once", func() bool { return e.Calls("listCounters") > 0 })
	return e
}

type handled struct{}

func (handled) OnRevoked(context.Context, lease.Holder) error { return nil }

// Hold adds a holder with defaults for what is not set and returns its token.
// Its levels are booked with these caps.
func (e *Engine) Hold(h lease.Holder, caps map[definition.Level]definition.Cap) lease.Token {
	e.t.Helper()
	e.made++
	h.Token = cmp.Or(h.Token, lease.Token(fmt.Sprintf("tok%05dAAAAAAAAAAAAAAAAAA", e.made)))
	h.State = cmp.Or(h.State, lease.Held)
	h.Type = cmp.Or(h.Type, "mcp")
	h.Resource = cmp.Or(h.Resource, "browser")
	h.Lease = cmp.Or(h.Lease, h.Resource)
	h.Pod = cmp.Or(h.Pod, "pod-a")
	h.TTL = cmp.Or(h.TTL, 2*time.Minute)
	if h.CreatedAt.IsZero() {
		h.CreatedAt = e.now()
	}
	if h.LastSeenAt.IsZero() {
		h.LastSeenAt = e.now()
	}
	if caps[definition.Project] > 0 {
		h.Project = cmp.Or(h.Project, "p")
	}
	if caps[definition.User] > 0 {
		h.User = cmp.Or(h.User, "u")
	}
	var booked []storetest.CounterDoc
	for _, l := range definition.Levels {
		if caps[l] == 0 {
			continue
		}
		id, err := lease.NewCounterID(h.Resource, l, lease.Scope{Tenant: h.Tenant, Project: h.Project, User: h.User})
		if err != nil {
			e.t.Fatal(err)
		}
		c := lease.Counter{ID: id, Cap: caps[l], Count: e.counts[id] + 1, Gen: "g", UpdatedAt: e.now().Add(-2 * margin)}
		e.counts[id]++
		booked = append(booked, storetest.CounterDoc{Counter: c})
		h.Levels = append(h.Levels, lease.Booking{ID: id, Level: l, Gen: c.Gen})
	}
	e.mem.Put([]lease.Holder{h}, booked)
	return h.Token
}

// Drift lets a counter count by n more than what books it.
func (e *Engine) Drift(id lease.CounterID, n int) {
	booked, err := e.mem.Booked(context.Background(), []lease.CounterID{id})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, c := range e.mem.CounterDocs() {
		if c.ID == id {
			c.Count = booked[id] + n
			e.mem.Put(nil, []storetest.CounterDoc{c})
		}
	}
}

// AddPod registers a pod.
func (e *Engine) AddPod(p lease.Pod) {
	if err := e.mem.PutPod(context.Background(), p); err != nil {
		e.t.Fatal(err)
	}
}

// Happen adds an event.
func (e *Engine) Happen(ev lease.Event) {
	if err := e.mem.AddEvent(context.Background(), ev); err != nil {
		e.t.Fatal(err)
	}
}

// End ends a lease as its client does.
func (e *Engine) End(t lease.Token) {
	if err := e.Attach(lease.Ref{Token: t}).Release(context.Background()); err != nil {
		e.t.Fatal(err)
	}
}

// Revoke is the engine's, and waits for what comes after it: the event and the
// handler.
func (e *Engine) Revoke(ctx context.Context, t lease.Token, c lease.Cause) (lease.Holder, error) {
	events, handled := e.Calls("addEvent"), e.Calls("markHandled")
	h, err := e.Manager.Revoke(ctx, t, c)
	if err == nil {
		e.Until(e.t, "the revocation is recorded and handled", func() bool {
			return e.Calls("addEvent") > events && e.Calls("markHandled") > handled
		})
	}
	return h, err
}
