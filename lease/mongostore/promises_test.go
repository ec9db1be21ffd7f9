//go:build external

package mongostore

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
)

// use runs each verb once, whatever comes of it.
func use(ctx context.Context, s lease.Store) {
	const a, id = lease.Token("a"), lease.CounterID("tex|global|*")
	_ = s.CreateHolder(ctx, lease.Holder{Token: a, Resource: "tex", Pod: "p", TTL: time.Hour})
	_, _, _, _ = s.Increment(ctx, id, 2)
	_ = s.EnsureCounter(ctx, id, "g")
	_, _, _, _ = s.Increment(ctx, id, 2)
	_, _ = s.PushLevel(ctx, a, lease.Booking{ID: "tex|user|a/b", Gen: "g"}, time.Hour)
	_, _ = s.PushLast(ctx, a, lease.Booking{ID: id, Gen: "g"}, []lease.CounterID{"tex|user|a/b"}, time.Hour, time.Hour)
	_, _ = s.Touch(ctx, a, "p")
	_, _ = s.SetPayload(ctx, a, lease.Payload{"k": "v"})
	_, _ = s.AdoptHolder(ctx, a, "p", "q")
	_, _ = s.Decrement(ctx, id, "g", "g")
	_, _, _ = s.Holder(ctx, a)
	_, _ = s.Holders(ctx, lease.Filter{})
	_, _ = s.HolderPods(ctx)
	_, _ = s.Expired(ctx, "tex", 0, 10)
	_, _ = s.OldestBooking(ctx, id)
	_, _ = s.Counters(ctx, []lease.CounterID{id})
	_, _ = s.Booked(ctx, []lease.CounterID{id})
	_, _ = s.ListCounters(ctx, "tex", "", 10)
	_, _, _ = s.MarkHolder(ctx, a, lease.Mark{Expired: true})
	_, _, _ = s.MarkHolder(ctx, a, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}})
	_, _ = s.Unhandled(ctx, 10)
	_, _ = s.MarkHandled(ctx, a)
	_, _ = s.PurgeHandled(ctx, time.Hour)
	_, _, _ = s.DeleteHolder(ctx, a)
	_ = s.PutPod(ctx, lease.Pod{ID: "p", StartedAt: time.Now()})
	_, _ = s.BeatPod(ctx, "p")
	_, _ = s.Pods(ctx)
	_ = s.RemovePod(ctx, "p")
	_ = s.AddEvent(ctx, lease.Event{Kind: "refused", At: time.Now()})
	_, _ = s.Events(ctx, "", 10)
	_, _ = s.ClaimRecord(ctx, lease.Record{Kind: "job", Key: "7", TTL: time.Hour})
	_, _, _ = s.LookupRecord(ctx, "job", "7")
	_, _ = s.PurgeRecords(ctx)
	_, _ = s.DecrementPrev(ctx, id, "g")
	was := lease.Counter{ID: id, Gen: "none", UpdatedAt: longAgo, Audit: &lease.Audit{}}
	_, _ = s.OpenAudit(ctx, was, "g", 0)
	_, _ = s.BookedBefore(ctx, id, "g")
	_, _ = s.CloseAudit(ctx, was, 0, "g", 0)
	_, _ = s.CorrectCounter(ctx, was, 0, "g", 0)
	_, _ = s.RemoveCounter(ctx, was, 0)
}

// longAgo is a time that a correction has read.
var longAgo = time.UnixMilli(1_000_000_000_000)

// What the cap depends on is written by a majority and read at the primary, no
// command is repeated by the driver, and none carries this machine's time,
// whatever the URI says.
func TestEveryCommandIsOneThatTheCapCanDependOn(t *testing.T) {
	var mu sync.Mutex
	var seen []bson.Raw
	uri, name := mongo.Database(t)
	with := "&"
	if !strings.Contains(uri, "?") {
		with = "?"
		if strings.Count(uri, "/") < 3 {
			with = "/?"
		}
	}
	weak := uri + with + "w=1&journal=false&readPreference=secondaryPreferred&retryWrites=true"
	s, err := Open(t.Context(), Options{URI: weak, Database: name, Monitor: &event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, append(bson.Raw(nil), e.Command...))
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(context.WithoutCancel(t.Context())) }()
	mu.Lock()
	seen = nil // what prepares the database
	mu.Unlock()
	begun := time.Now()
	use(t.Context(), s)
	mu.Lock()
	defer mu.Unlock()
	kinds := map[string]int{}
	for _, c := range seen {
		elements, err := c.Elements()
		if err != nil {
			t.Fatal(err)
		}
		kind := elements[0].Key()
		kinds[kind]++
		switch kind {
		case "update", "findAndModify", "delete":
			if w, ok := c.Lookup("writeConcern", "w").StringValueOK(); !ok || w != "majority" {
				t.Errorf("not by a majority: %s", c)
			}
			if _, err := c.LookupErr("txnNumber"); err == nil { // on a replica set
				t.Errorf("the driver may repeat it: %s", c)
			}
		case "find", "aggregate", "distinct":
			if _, err := c.LookupErr("readConcern", "level"); err != nil {
				t.Errorf("without a read concern: %s", c)
			}
		default:
			t.Errorf("what is this? %s", c)
		}
		if mode, ok := c.Lookup("$readPreference", "mode").StringValueOK(); ok && mode != "primary" && mode != "primaryPreferred" {
			t.Errorf("not at the primary: %s", c)
		}
		dates(t, c, bson.Raw(c), begun)
	}
	for _, kind := range []string{"update", "findAndModify", "delete", "find", "aggregate", "distinct"} {
		if kinds[kind] == 0 {
			t.Errorf("no %s among %v", kind, kinds)
		}
	}
}

// dates refuses every date in a command that this machine's clock can have made.
func dates(t *testing.T, command, part bson.Raw, begun time.Time) {
	t.Helper()
	elements, err := part.Elements()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range elements {
		switch v := e.Value(); v.Type {
		case bson.TypeDateTime:
			if at := v.Time(); at.After(begun.Add(-time.Hour)) {
				t.Errorf("%s is a time of this machine: %s", e.Key(), command)
			}
		case bson.TypeEmbeddedDocument:
			if e.Key() != "lsid" && e.Key() != "$clusterTime" {
				dates(t, command, v.Document(), begun)
			}
		case bson.TypeArray:
			dates(t, command, bson.Raw(v.Array()), begun)
		}
	}
}

// The queries of sweeps and views have their indexes, and nothing deletes a
// holder by itself: who deletes one gives its counters back.
func TestIndexesAreMadeAtStart(t *testing.T) {
	uri, name := mongo.Database(t)
	s, err := Open(t.Context(), Options{URI: uri, Database: name})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(context.WithoutCancel(t.Context())) }()
	client, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	for collection, want := range map[string][]string{
		holdersName: {"resource state lastSeenAt", "state _id", "levels.id state createdAt", "pod state _id", "tenantId state _id", "revoked.at", "revoked.handledAt"},
		eventsName:  {"at", "tenantId at"},
		recordsName: {"expiresAt"},
	} {
		cur, err := client.Database(name).Collection(collection).Indexes().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var indexes []bson.Raw
		if err := cur.All(t.Context(), &indexes); err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, i := range indexes {
			keys, err := i.Lookup("key").Document().Elements()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, k := range keys {
				names = append(names, k.Key())
			}
			there[strings.Join(names, " ")] = true
			if _, err := i.LookupErr("expireAfterSeconds"); (err == nil) && collection == holdersName {
				t.Errorf("holders expire by themselves: %s", i)
			}
		}
		for _, keys := range want {
			if !there[keys] {
				t.Errorf("%s has no index on %s: %v", collection, keys, there)
			}
		}
	}
}
