package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

func (c *contract) pods() map[lease.PodID]lease.Pod {
	c.Helper()
	got, err := c.Pods(c.ctx)
	c.must(err)
	out := map[lease.PodID]lease.Pod{}
	for _, p := range got {
		out[p.ID] = p
	}
	return out
}

var podTests = map[string]func(*contract){
	"a registration is kept, with the store's times": func(c *contract) {
		p := lease.Pod{ID: "pod-1", Endpoint: "$10.0.0.1:8081", State: lease.PodStarting, StartedAt: time.Now()}
		c.must(c.PutPod(c.ctx, p))
		c.must(c.PutPod(c.ctx, lease.Pod{ID: "pod-2", State: lease.PodRunning}))
		first := c.pods()["pod-1"]
		c.same("pod", first, p, cmpopts.IgnoreFields(lease.Pod{}, "StartedAt", "BeatAt", "BeatAge"))
		if first.StartedAt.IsZero() || first.BeatAt.IsZero() || len(c.pods()) != 2 {
			c.Fatalf("registered: %+v", c.pods())
		}
		p.State, p.HandedOver = lease.PodStopped, true
		c.eventually("another registration moves the beat and not the start", func() bool {
			c.must(c.PutPod(c.ctx, p))
			second := c.pods()["pod-1"]
			c.same("pod", second, p, cmpopts.IgnoreFields(lease.Pod{}, "StartedAt", "BeatAt", "BeatAge"))
			c.same("started", second.StartedAt, first.StartedAt)
			return second.BeatAt.After(first.BeatAt)
		})
	},
	"a beat makes a pod young again, unless it is STOPPED or unknown": func(c *contract) {
		c.must(c.PutPod(c.ctx, lease.Pod{ID: "pod-1", State: lease.PodStopping}))
		c.eventually("the beat ages", func() bool { return c.pods()["pod-1"].BeatAge > 50*msec })
		old := c.pods()["pod-1"].BeatAt
		c.yes("beat")(c.BeatPod(c.ctx, "pod-1"))
		if got := c.pods()["pod-1"]; !got.BeatAt.After(old) {
			c.Fatalf("beat at %v, before %v", got.BeatAt, old)
		}
		c.must(c.PutPod(c.ctx, lease.Pod{ID: "pod-1", State: lease.PodStopped}))
		c.no("STOPPED")(c.BeatPod(c.ctx, "pod-1"))
		c.no("unknown")(c.BeatPod(c.ctx, "pod-9"))
		if len(c.pods()) != 1 {
			c.Fatal("a beat registered a pod")
		}
	},
	"a registration is removed, and removed again": func(c *contract) {
		c.must(c.PutPod(c.ctx, lease.Pod{ID: "pod-1", State: lease.PodRunning}))
		c.must(c.RemovePod(c.ctx, "pod-1"))
		c.must(c.RemovePod(c.ctx, "pod-1"))
		if len(c.pods()) != 0 {
			c.Fatal("still registered")
		}
	},
}

var eventTests = map[string]func(*contract){
	"events are listed newest first, by tenant": func(c *contract) {
		var all, acme []string
		for i := range 9 {
			tenant := []string{"acme", "acm", "$acme"}[i%3]
			e := lease.Event{Kind: "refused", Level: definition.User, Tenant: tenant, By: fmt.Sprint(i), Resource: "tex", Lease: "tex", Project: "p", User: "u", Pod: "pod-1", Token: "t…", Type: "mcp", Reason: "r"}
			c.must(c.AddEvent(c.ctx, e))
			all = append([]string{e.By}, all...)
			if tenant == "acme" {
				acme = append([]string{e.By}, acme...)
			}
			got, err := c.Events(c.ctx, "", 1)
			c.must(err)
			c.same("the newest", got, []lease.Event{e}, cmpopts.IgnoreFields(lease.Event{}, "At"))
			if got[0].At.IsZero() {
				c.Fatal("an event without a time")
			}
			// Within one millisecond the order is not defined everywhere.
			c.behind(got[0].At)
		}
		by := func(tenant string, limit int) (out []string) {
			got, err := c.Events(c.ctx, tenant, limit)
			c.must(err)
			for _, e := range got {
				out = append(out, e.By)
			}
			return out
		}
		c.same("all", by("", 100), all)
		c.same("the newest four", by("", 4), all[:4])
		c.same("of a tenant", by("acme", 100), acme)
		c.same("the newest two of a tenant", by("acme", 2), acme[:2])
		c.same("of an unknown tenant", by("nobody", 100), []string(nil))
	},
}

var recordTests = map[string]func(*contract){
	"the first claim stands": func(c *contract) {
		mine := lease.Record{Kind: "job", Key: "7", Value: map[string]string{"owner": "$ann", "a.b": "c"}, TTL: long}
		got, err := c.ClaimRecord(c.ctx, mine)
		c.must(err)
		c.same("claimed", got, mine)
		theirs := mine
		theirs.Value, theirs.TTL = map[string]string{"owner": "bob"}, 2*long
		got, err = c.ClaimRecord(c.ctx, theirs)
		c.must(err)
		c.same("claimed by another", got, mine)
		got, ok, err := c.LookupRecord(c.ctx, "job", "7")
		c.yes("lookup")(ok, err)
		c.same("looked up", got, mine)
	},
	"kind and key are apart": func(c *contract) {
		for _, k := range [][2]string{{"a", "b|c"}, {"a|b", "c"}, {"a", "b"}, {"a%7Cb", "c"}, {"ab", ""}, {"a", ""}, {"$a", "$b"}, {"a\x00", "b"}, {"a", "\x00b"}} {
			r := lease.Record{Kind: k[0], Key: k[1], Value: map[string]string{"is": fmt.Sprintf("%q", k)}, TTL: long}
			got, err := c.ClaimRecord(c.ctx, r)
			c.must(err)
			c.same("claimed", got, r)
		}
		_, ok, err := c.LookupRecord(c.ctx, "b", "a")
		c.no("unknown")(ok, err)
	},
	"a record ends with its TTL and can be claimed anew": func(c *contract) {
		short := lease.Record{Kind: "job", Key: "7", Value: map[string]string{"owner": "ann"}, TTL: 40 * msec}
		_, err := c.ClaimRecord(c.ctx, short)
		c.must(err)
		c.eventually("it ends", func() bool {
			_, ok, err := c.LookupRecord(c.ctx, "job", "7")
			c.must(err)
			return !ok
		})
		next := lease.Record{Kind: "job", Key: "7", Value: map[string]string{"owner": "bob"}, TTL: long}
		got, err := c.ClaimRecord(c.ctx, next)
		c.must(err)
		c.same("claimed anew", got, next)
	},
	"a claim counts the record's own TTL anew": func(c *contract) {
		const ttl = 400 * msec
		mine := lease.Record{Kind: "job", Key: "7", Value: map[string]string{"owner": "ann"}, TTL: ttl}
		theirs := lease.Record{Kind: "job", Key: "7", Value: map[string]string{"owner": "bob"}, TTL: msec}
		_, err := c.ClaimRecord(c.ctx, mine)
		c.must(err)
		_, err = c.ClaimRecord(c.ctx, lease.Record{Kind: "clock", Key: "1", TTL: ttl}) // ends when mine would have
		c.must(err)
		c.eventually("the first TTL passes", func() bool {
			_, err := c.ClaimRecord(c.ctx, theirs)
			c.must(err)
			_, ok, err := c.LookupRecord(c.ctx, "clock", "1")
			c.must(err)
			return !ok
		})
		got, ok, err := c.LookupRecord(c.ctx, "job", "7")
		c.yes("it lives on")(ok, err)
		c.same("record", got, mine)
	},
	"ended records are purged": func(c *contract) {
		for i := range 3 {
			_, err := c.ClaimRecord(c.ctx, lease.Record{Kind: "short", Key: fmt.Sprint(i), TTL: msec})
			c.must(err)
		}
		_, err := c.ClaimRecord(c.ctx, lease.Record{Kind: "long", Key: "1", TTL: long})
		c.must(err)
		purged := 0
		c.eventually("all that ended are purged", func() bool {
			n, err := c.PurgeRecords(c.ctx)
			c.must(err)
			purged += n
			return purged >= 3
		})
		if purged != 3 {
			c.Fatalf("purged %d of 3", purged)
		}
		_, ok, err := c.LookupRecord(c.ctx, "long", "1")
		c.yes("the living one")(ok, err)
	},
}

var storeTests = map[string]func(*contract){
	"a verb whose context has ended is an error": func(c *contract) {
		h := c.held(long, nil)
		ended, cancel := context.WithCancel(c.ctx)
		cancel()
		for name, err := range verbs(ended, c.Store, h) {
			if err == nil {
				c.Errorf("%s succeeded", name)
			}
		}
		c.same("the holder", c.read(h.Token).State, lease.Held)
	},
	"a closed store is an error and no panic": func(c *contract) {
		h := c.held(long, nil)
		c.must(c.Ping(c.ctx))
		c.must(c.Close(c.ctx))
		for name, err := range verbs(c.ctx, c.Store, h) {
			if err == nil {
				c.Errorf("%s succeeded", name)
			}
		}
	},
}

// verbs calls every verb and returns what each said.
func verbs(ctx context.Context, s lease.Store, h lease.Holder) map[string]error {
	out := map[string]error{}
	note := func(name string) func(err error) { return func(err error) { out[name] = err } }
	two := func(name string) func(_ bool, err error) { return func(_ bool, err error) { out[name] = err } }
	idle := lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}}
	was := lease.Counter{ID: userCounter, Gen: "g1"}

	note("CreateHolder")(s.CreateHolder(ctx, sample()))
	two("PushLevel")(s.PushLevel(ctx, h.Token, booking(userCounter), long))
	two("PushLast")(s.PushLast(ctx, h.Token, booking(userCounter), nil, long, long))
	two("Touch")(s.Touch(ctx, h.Token, h.Pod))
	two("SetPayload")(s.SetPayload(ctx, h.Token, nil))
	two("AdoptHolder")(s.AdoptHolder(ctx, h.Token, h.Pod, h.Pod))
	two("MarkHandled")(s.MarkHandled(ctx, h.Token))
	two("Decrement")(s.Decrement(ctx, userCounter, "g1", "g1"))
	two("DecrementPrev")(s.DecrementPrev(ctx, userCounter, "g1"))
	two("OpenAudit")(s.OpenAudit(ctx, was, "g2", 0))
	was.Audit = &lease.Audit{}
	two("CloseAudit")(s.CloseAudit(ctx, was, 0, "g2", 0))
	two("CorrectCounter")(s.CorrectCounter(ctx, was, 0, "g2", 0))
	two("RemoveCounter")(s.RemoveCounter(ctx, was, 0))
	two("BeatPod")(s.BeatPod(ctx, "pod-1"))
	note("EnsureCounter")(s.EnsureCounter(ctx, userCounter, "g1"))
	note("PutPod")(s.PutPod(ctx, lease.Pod{ID: "pod-1"}))
	note("RemovePod")(s.RemovePod(ctx, "pod-1"))
	note("AddEvent")(s.AddEvent(ctx, lease.Event{}))
	note("Ping")(s.Ping(ctx))
	_, _, out["DeleteHolder"] = s.DeleteHolder(ctx, h.Token)
	_, _, out["MarkHolder"] = s.MarkHolder(ctx, h.Token, idle)
	_, out["PurgeHandled"] = s.PurgeHandled(ctx, 0)
	_, _, out["Holder"] = s.Holder(ctx, h.Token)
	_, out["Holders"] = s.Holders(ctx, lease.Filter{})
	_, out["HolderPods"] = s.HolderPods(ctx)
	_, out["Expired"] = s.Expired(ctx, "", 0, 1)
	_, out["Unhandled"] = s.Unhandled(ctx, 1)
	_, out["OldestBooking"] = s.OldestBooking(ctx, userCounter)
	_, _, _, out["Increment"] = s.Increment(ctx, userCounter, 1)
	_, out["Counters"] = s.Counters(ctx, []lease.CounterID{userCounter})
	_, out["Booked"] = s.Booked(ctx, []lease.CounterID{userCounter})
	_, out["BookedBefore"] = s.BookedBefore(ctx, userCounter, "g1")
	_, out["ListCounters"] = s.ListCounters(ctx, "", "", 1)
	_, out["Pods"] = s.Pods(ctx)
	_, out["Events"] = s.Events(ctx, "", 1)
	_, out["ClaimRecord"] = s.ClaimRecord(ctx, lease.Record{Kind: "k", Key: "k", TTL: long})
	_, _, out["LookupRecord"] = s.LookupRecord(ctx, "k", "k")
	_, out["PurgeRecords"] = s.PurgeRecords(ctx)
	return out
}
