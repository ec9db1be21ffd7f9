//go:build external

package mongostore

import (
	"context"
	"errors"
	"slices"
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

// Each verb is one command. The claim of a record that is new is three: see
// ClaimRecord.
func TestEachVerbIsOneCommand(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	uri, name := mongo.Database(t)
	s, err := Open(t.Context(), Options{URI: uri, Database: name, Monitor: &event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, e.CommandName)
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	defer func() { _ = s.Close(context.WithoutCancel(ctx)) }()

	const a, b, id = lease.Token("a"), lease.Token("b"), lease.CounterID("tex|global|*")
	bound := lease.Booking{ID: id, Gen: "g"}
	was := lease.Counter{ID: id, Gen: "none", Audit: &lease.Audit{}}
	record := lease.Record{Kind: "job", Key: "7", TTL: time.Hour}
	for _, step := range []struct {
		verb string
		run  func() error
		want []string
	}{
		{"CreateHolder", func() error { return s.CreateHolder(ctx, lease.Holder{Token: a, Resource: "tex", TTL: time.Hour}) }, []string{"update"}},
		{"CreateHolder, another", func() error { return s.CreateHolder(ctx, lease.Holder{Token: b, TTL: time.Hour}) }, []string{"update"}},
		{"Increment, no counter", func() error { _, _, _, err := s.Increment(ctx, id, 2); return err }, []string{"findAndModify"}},
		{"EnsureCounter", func() error { return s.EnsureCounter(ctx, id, "g") }, []string{"update"}},
		{"EnsureCounter, again", func() error { return s.EnsureCounter(ctx, id, "g") }, []string{"update"}},
		{"Increment", func() error { _, _, _, err := s.Increment(ctx, id, 2); return err }, []string{"findAndModify"}},
		{"PushLevel", func() error { _, err := s.PushLevel(ctx, b, bound, time.Hour); return err }, []string{"update"}},
		{"PushLast", func() error { _, err := s.PushLast(ctx, a, bound, nil, time.Hour, time.Hour); return err }, []string{"update"}},
		{"Touch", func() error { _, err := s.Touch(ctx, a, "pod"); return err }, []string{"update"}},
		{"SetPayload", func() error { _, err := s.SetPayload(ctx, a, nil); return err }, []string{"update"}},
		{"AdoptHolder", func() error { _, err := s.AdoptHolder(ctx, a, "pod", "pod2"); return err }, []string{"update"}},
		{"MarkHolder", func() error { _, _, err := s.MarkHolder(ctx, a, lease.Mark{}); return err }, []string{"findAndModify"}},
		{"MarkHandled", func() error { _, err := s.MarkHandled(ctx, a); return err }, []string{"update"}},
		{"DeleteHolder", func() error { _, _, err := s.DeleteHolder(ctx, b); return err }, []string{"findAndModify"}},
		{"PurgeHandled", func() error { _, err := s.PurgeHandled(ctx, time.Hour); return err }, []string{"delete"}},
		{"Decrement", func() error { _, err := s.Decrement(ctx, id, "g", "g"); return err }, []string{"update"}},
		{"DecrementPrev", func() error { _, err := s.DecrementPrev(ctx, id, "g"); return err }, []string{"update"}},
		{"OpenAudit", func() error { _, err := s.OpenAudit(ctx, was, "g", 0); return err }, []string{"update"}},
		{"CloseAudit", func() error { _, err := s.CloseAudit(ctx, was, 0, "g", 0); return err }, []string{"update"}},
		{"BookedBefore", func() error { _, err := s.BookedBefore(ctx, id, "g"); return err }, []string{"aggregate"}},
		{"CorrectCounter", func() error { _, err := s.CorrectCounter(ctx, was, 0, "g", 0); return err }, []string{"update"}},
		{"RemoveCounter", func() error { _, err := s.RemoveCounter(ctx, was, 0); return err }, []string{"findAndModify"}},
		{"Holder", func() error { _, _, err := s.Holder(ctx, a); return err }, []string{"find"}},
		{"Holders", func() error { _, err := s.Holders(ctx, lease.Filter{}); return err }, []string{"find"}},
		{"HolderPods", func() error { _, err := s.HolderPods(ctx); return err }, []string{"distinct"}},
		{"Expired", func() error { _, err := s.Expired(ctx, "tex", 0, 10); return err }, []string{"find"}},
		{"Unhandled", func() error { _, err := s.Unhandled(ctx, 10); return err }, []string{"find"}},
		{"OldestBooking", func() error { _, err := s.OldestBooking(ctx, id); return err }, []string{"find"}},
		{"Counters", func() error { _, err := s.Counters(ctx, []lease.CounterID{id, "x"}); return err }, []string{"find"}},
		{"Booked", func() error { _, err := s.Booked(ctx, []lease.CounterID{id, "x"}); return err }, []string{"aggregate"}},
		{"ListCounters", func() error { _, err := s.ListCounters(ctx, "tex", "", 10); return err }, []string{"find"}},
		{"PutPod", func() error { return s.PutPod(ctx, lease.Pod{ID: "p"}) }, []string{"update"}},
		{"BeatPod", func() error { _, err := s.BeatPod(ctx, "p"); return err }, []string{"update"}},
		{"Pods", func() error { _, err := s.Pods(ctx); return err }, []string{"find"}},
		{"RemovePod", func() error { return s.RemovePod(ctx, "p") }, []string{"delete"}},
		{"AddEvent", func() error { return s.AddEvent(ctx, lease.Event{}) }, []string{"update"}},
		{"Events", func() error { _, err := s.Events(ctx, "", 10); return err }, []string{"find"}},
		{"ClaimRecord, new", func() error { _, err := s.ClaimRecord(ctx, record); return err }, []string{"findAndModify", "update", "findAndModify"}},
		{"ClaimRecord, again", func() error { _, err := s.ClaimRecord(ctx, record); return err }, []string{"findAndModify"}},
		{"LookupRecord", func() error { _, _, err := s.LookupRecord(ctx, "job", "7"); return err }, []string{"find"}},
		{"PurgeRecords", func() error { _, err := s.PurgeRecords(ctx); return err }, []string{"delete"}},
		{"Ping", func() error { return s.Ping(ctx) }, []string{"ping"}},
	} {
		mu.Lock()
		seen = nil
		mu.Unlock()
		if err := step.run(); err != nil {
			t.Errorf("%s: %v", step.verb, err)
		}
		mu.Lock()
		if !slices.Equal(seen, step.want) {
			t.Errorf("%s: %v, want %v", step.verb, seen, step.want)
		}
		mu.Unlock()
	}
}

// Two systems in one database would reap each other's holders.
func TestAnotherSystemsDatabaseIsRefused(t *testing.T) {
	uri, name := mongo.Database(t)
	client, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	theirs := client.Database(name).Collection(holdersName)
	if _, err := theirs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "theirs"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{URI: uri, Database: name}); !errors.Is(err, ErrForeign) {
		t.Fatalf("opened beside another system: %v", err)
	}
	if n, err := theirs.CountDocuments(t.Context(), bson.D{}); n != 1 || err != nil {
		t.Fatalf("their documents: %d, %v", n, err)
	}
}

// Pods that start at once on a new database all take it for theirs.
func TestManyPodsPrepareOneDatabase(t *testing.T) {
	uri, name := mongo.Database(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			s, err := Open(t.Context(), Options{URI: uri, Database: name})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Ping(t.Context()); err != nil {
				t.Error(err)
			}
			_ = s.Close(context.WithoutCancel(t.Context()))
		})
	}
	wg.Wait()
}
