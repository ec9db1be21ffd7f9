package storetest

import (
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// odd are texts that a store must keep as data.
var odd = []string{"$pod", "$$NOW", "$$ROOT.x", "a.b", `"};{"$where":1`, "100%", "%2E%24", "a|b/c", "ünï", "<b>&amp;</b>", "a\x00b", "line\nbreak"}

var holderTests = map[string]func(*contract){
	"a created holder is PENDING, with its fields and the store's time": func(c *contract) {
		h := c.pending()
		got := c.read(h.Token)
		want := h
		want.State = lease.Pending
		c.same("holder", got, want, cmpopts.IgnoreFields(lease.Holder{}, "CreatedAt", "LastSeenAt"))
		if got.CreatedAt.IsZero() || !got.CreatedAt.Equal(got.LastSeenAt) {
			c.Fatalf("createdAt %v and lastSeenAt %v: want one time", got.CreatedAt, got.LastSeenAt)
		}
	},
	"a second creation leaves the first holder untouched": func(c *contract) {
		h := c.held(long, nil)
		before := c.read(h.Token)
		h.User = "bob"
		_ = c.CreateHolder(c.ctx, h) // whether it is an error is left to the store
		c.same("the first holder", c.read(h.Token), before)
	},
	"texts that look like code are data": func(c *contract) {
		for _, s := range odd {
			h := c.held(long, nil, func(h *lease.Holder) {
				h.Type, h.Resource, h.Lease, h.Label, h.Tenant, h.Project, h.User, h.HolderRef = s, s, s, s, s, s, s, s
				h.Pod, h.Payload = lease.PodID(s), lease.Payload{s: s, lease.PayloadKey: s}
			})
			c.yes("touch")(c.Touch(c.ctx, h.Token, lease.PodID(s)))
			got := c.read(h.Token)
			c.same("holder", got, h, cmpopts.IgnoreFields(lease.Holder{}, "State", "Levels", "CreatedAt", "LastSeenAt"))
			found, err := c.Holders(c.ctx, lease.Filter{Tenant: s, Project: s, User: s, Resource: s, Type: s, Pod: lease.PodID(s), Key: s})
			c.must(err)
			c.same("found", tokens(found), []lease.Token{h.Token})
			c.yes("payload")(c.SetPayload(c.ctx, h.Token, lease.Payload{s + s: s}))
			c.same("payload", c.read(h.Token).Payload, lease.Payload{s + s: s})
			c.yes("mark")(c.markOK(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke, By: s, Tenant: s, Pod: lease.PodID(s)}}))
			if by := c.read(h.Token).Revocation.By; by != s {
				c.Fatalf("by: got %q, want %q", by, s)
			}
		}
	},
	"a push appends its booking, once for each counter": func(c *contract) {
		h := c.pending()
		c.yes("first")(c.PushLevel(c.ctx, h.Token, booking(userCounter), long))
		c.yes("second")(c.PushLevel(c.ctx, h.Token, booking(tenantCounter), long))
		again := booking(userCounter)
		again.Gen = "g2"
		c.no("a counter that is listed")(c.PushLevel(c.ctx, h.Token, again, long))
		got := c.read(h.Token)
		c.same("levels", got.Levels, []lease.Booking{booking(userCounter), booking(tenantCounter)})
		if got.State != lease.Pending {
			c.Fatalf("state: got %s", got.State)
		}
	},
	"a push demands a young PENDING holder": func(c *contract) {
		c.no("unknown")(c.PushLevel(c.ctx, token(), booking(userCounter), long))
		c.no("too old")(c.PushLevel(c.ctx, c.pending().Token, booking(userCounter), 0))
		c.no("HELD")(c.PushLevel(c.ctx, c.held(long, nil).Token, booking(globalCounter), long))
		c.no("REVOKED")(c.PushLevel(c.ctx, c.revoked().Token, booking(globalCounter), long))
		h := c.pending()
		c.eventually("a holder grows older than the age that is allowed", func() bool {
			ok, err := c.PushLevel(c.ctx, h.Token, lease.Booking{ID: lease.CounterID(token()), Gen: "g"}, 5*msec)
			c.must(err)
			return !ok
		})
	},
	"the last push makes the holder HELD with its real TTL": func(c *contract) {
		h := c.pending()
		c.yes("push")(c.PushLevel(c.ctx, h.Token, booking(userCounter), long))
		pending := c.read(h.Token)
		c.behind(pending.CreatedAt)
		c.yes("last")(c.PushLast(c.ctx, h.Token, booking(globalCounter), []lease.CounterID{userCounter}, 1500*msec, long))
		got := c.read(h.Token)
		want := pending
		want.State, want.TTL, want.LastSeenAt = lease.Held, 1500*msec, got.LastSeenAt
		want.Levels = []lease.Booking{booking(userCounter), booking(globalCounter)}
		c.same("holder", got, want)
		if !got.LastSeenAt.After(got.CreatedAt) {
			c.Fatalf("lastSeenAt %v is not after createdAt %v", got.LastSeenAt, got.CreatedAt)
		}
	},
	"the last push demands exactly the other levels": func(c *contract) {
		h := c.pending()
		c.no("none is listed yet")(c.PushLast(c.ctx, h.Token, booking(globalCounter), []lease.CounterID{userCounter}, long, long))
		c.yes("push")(c.PushLevel(c.ctx, h.Token, booking(userCounter), long))
		c.no("one too many is listed")(c.PushLast(c.ctx, h.Token, booking(globalCounter), nil, long, long))
		c.no("another is listed")(c.PushLast(c.ctx, h.Token, booking(globalCounter), []lease.CounterID{tenantCounter}, long, long))
		c.no("one is missing")(c.PushLast(c.ctx, h.Token, booking(globalCounter), []lease.CounterID{userCounter, tenantCounter}, long, long))
		c.no("it is listed itself")(c.PushLast(c.ctx, h.Token, booking(userCounter), []lease.CounterID{userCounter}, long, long))
		c.no("too old")(c.PushLast(c.ctx, h.Token, booking(globalCounter), []lease.CounterID{userCounter}, long, 0))
		if got := c.read(h.Token); got.State != lease.Pending || len(got.Levels) != 1 {
			c.Fatalf("after refused pushes: %s with %d levels", got.State, len(got.Levels))
		}
		c.yes("exactly")(c.PushLast(c.ctx, h.Token, booking(globalCounter), []lease.CounterID{userCounter}, long, long))
		c.no("twice")(c.PushLast(c.ctx, h.Token, booking(tenantCounter), []lease.CounterID{userCounter, globalCounter}, long, long))
		c.no("REVOKED")(c.PushLast(c.ctx, c.revoked().Token, booking(globalCounter), []lease.CounterID{userCounter}, long, long))
	},
	"one level is pushed as the last": func(c *contract) {
		h := c.pending()
		c.yes("last")(c.PushLast(c.ctx, h.Token, booking(globalCounter), nil, long, long))
		c.same("levels", c.read(h.Token).Levels, []lease.Booking{booking(globalCounter)})
	},
	"a delete returns the document that it deleted, once": func(c *contract) {
		for _, h := range []lease.Holder{c.pending(), c.held(long, []lease.CounterID{userCounter, globalCounter})} {
			want := c.read(h.Token)
			got, ok, err := c.DeleteHolder(c.ctx, h.Token)
			c.yes("delete")(ok, err)
			c.same("deleted", got, want)
			c.gone(h.Token)
			_, ok, err = c.DeleteHolder(c.ctx, h.Token)
			c.no("a second delete")(ok, err)
			c.no("a touch after it")(c.Touch(c.ctx, h.Token, h.Pod))
			c.no("a payload after it")(c.SetPayload(c.ctx, h.Token, h.Payload))
			c.gone(h.Token)
		}
		_, ok, err := c.DeleteHolder(c.ctx, c.revoked().Token)
		c.no("delete of a REVOKED holder")(ok, err)
	},
	"a touch moves lastSeenAt of a HELD holder only": func(c *contract) {
		h := c.held(long, nil)
		before := c.read(h.Token)
		c.eventually("lastSeenAt moves on", func() bool {
			c.yes("touch")(c.Touch(c.ctx, h.Token, h.Pod))
			return c.read(h.Token).LastSeenAt.After(before.LastSeenAt)
		})
		c.same("the rest", c.read(h.Token), before, cmpopts.IgnoreFields(lease.Holder{}, "LastSeenAt"))
		p := c.pending()
		c.no("PENDING")(c.Touch(c.ctx, p.Token, p.Pod))
		r := c.revoked()
		c.no("REVOKED")(c.Touch(c.ctx, r.Token, r.Pod))
		unknown := token()
		c.no("unknown")(c.Touch(c.ctx, unknown, h.Pod))
		c.gone(unknown)
	},
	"touches in one millisecond all match": func(c *contract) {
		h := c.held(long, nil)
		for range 50 {
			c.yes("touch")(c.Touch(c.ctx, h.Token, h.Pod))
		}
	},
	"a touch moves the pod of a holder that is not bound to it": func(c *contract) {
		free := c.held(long, nil)
		c.yes("touch")(c.Touch(c.ctx, free.Token, "pod-2"))
		if pod := c.read(free.Token).Pod; pod != "pod-2" {
			c.Fatalf("pod: got %s", pod)
		}
		bound := c.held(long, nil, func(h *lease.Holder) { h.PodBound = true })
		c.yes("touch")(c.Touch(c.ctx, bound.Token, "pod-2"))
		if pod := c.read(bound.Token).Pod; pod != "pod-1" {
			c.Fatalf("pod of a podBound holder: got %s", pod)
		}
		of2, err := c.Holders(c.ctx, lease.Filter{Pod: "pod-2"})
		c.must(err)
		c.same("holders of pod-2", tokens(of2), []lease.Token{free.Token})
	},
	"a payload replaces the one before, of a HELD holder only": func(c *contract) {
		h := c.held(long, nil)
		p := lease.Payload{"jobId": "7", lease.PayloadKey: "k2"}
		c.yes("set")(c.SetPayload(c.ctx, h.Token, p))
		c.same("payload", c.read(h.Token).Payload, p)
		for key, want := range map[string][]lease.Token{"k1": nil, "k2": {h.Token}} {
			found, err := c.Holders(c.ctx, lease.Filter{Key: key})
			c.must(err)
			c.same("holders with key "+key, tokens(found), want)
		}
		c.yes("clear")(c.SetPayload(c.ctx, h.Token, nil))
		c.same("payload", c.read(h.Token).Payload, lease.Payload(nil))
		c.no("PENDING")(c.SetPayload(c.ctx, c.pending().Token, p))
		r := c.revoked()
		c.no("REVOKED")(c.SetPayload(c.ctx, r.Token, p))
		c.same("payload of a mark", c.read(r.Token).Payload, r.Payload)
	},
	"an adoption moves a HELD holder that is not podBound": func(c *contract) {
		h := c.held(long, nil)
		before := c.read(h.Token)
		c.no("from another pod")(c.AdoptHolder(c.ctx, h.Token, "pod-9", "pod-2"))
		c.behind(before.LastSeenAt)
		c.yes("adopt")(c.AdoptHolder(c.ctx, h.Token, "pod-1", "pod-2"))
		got := c.read(h.Token)
		if got.Pod != "pod-2" || !got.LastSeenAt.After(before.LastSeenAt) {
			c.Fatalf("adopted: pod %s, lastSeenAt %v, before %v", got.Pod, got.LastSeenAt, before.LastSeenAt)
		}
		c.no("once more")(c.AdoptHolder(c.ctx, h.Token, "pod-1", "pod-3"))
		c.no("podBound")(c.AdoptHolder(c.ctx, c.held(long, nil, func(h *lease.Holder) { h.PodBound = true }).Token, "pod-1", "pod-2"))
		c.no("PENDING")(c.AdoptHolder(c.ctx, c.pending().Token, "pod-1", "pod-2"))
		c.no("REVOKED")(c.AdoptHolder(c.ctx, c.revoked().Token, "pod-1", "pod-2"))
	},
}

var markTests = map[string]func(*contract){
	"a mark returns the holder as it was and keeps it as REVOKED": func(c *contract) {
		h := c.held(long, []lease.CounterID{userCounter, globalCounter})
		c.yes("touch")(c.Touch(c.ctx, h.Token, h.Pod))
		want := c.read(h.Token)
		before := c.marked(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke, By: "ops"}})
		c.same("before", before, want)
		got := c.read(h.Token)
		if got.State != lease.Revoked || got.Revocation == nil || got.Revocation.Reason != lease.ReasonRevoke ||
			got.Revocation.By != "ops" || got.Revocation.At.IsZero() || !got.Revocation.HandledAt.IsZero() {
			c.Fatalf("after: %s %+v", got.State, got.Revocation)
		}
		want.State, want.Revocation = lease.Revoked, got.Revocation
		c.same("after", got, want)
		c.no("a second mark")(c.markOK(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}}))
		c.no("unknown")(c.markOK(token(), lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}}))
	},
	"a mark says whether it was made without a pod": func(c *contract) {
		for _, forced := range []bool{true, false} {
			h := c.held(long, []lease.CounterID{globalCounter})
			c.marked(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke, By: "ops", Forced: forced}})
			if r := c.read(h.Token).Revocation; r == nil || r.Forced != forced {
				c.Fatalf("forced %v: %+v", forced, r)
			}
		}
	},
	"the mark of a PENDING holder is handled at once": func(c *contract) {
		h := c.pending()
		c.yes("push")(c.PushLevel(c.ctx, h.Token, booking(userCounter), long))
		before := c.marked(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonPod}})
		if before.State != lease.Pending || len(before.Levels) != 1 {
			c.Fatalf("before: %s with %d levels", before.State, len(before.Levels))
		}
		if r := c.read(h.Token).Revocation; r == nil || r.HandledAt.IsZero() {
			c.Fatalf("revocation: %+v", r)
		}
		unhandled, err := c.Unhandled(c.ctx, 10)
		c.must(err)
		c.same("unhandled", tokens(unhandled), none)
		c.no("handled again")(c.MarkHandled(c.ctx, h.Token))
	},
	"a mark demands its cause's tenant and pod": func(c *contract) {
		h := c.held(long, nil)
		cause := func(tenant string, pod lease.PodID) lease.Mark {
			return lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke, Tenant: tenant, Pod: pod}}
		}
		c.no("another tenant")(c.markOK(h.Token, cause("other", "")))
		c.no("another pod")(c.markOK(h.Token, cause("", "pod-2")))
		c.no("the tenant and another pod")(c.markOK(h.Token, cause("acme", "pod-2")))
		c.yes("touch")(c.Touch(c.ctx, h.Token, "pod-2"))
		c.no("the pod that it had")(c.markOK(h.Token, cause("acme", "pod-1")))
		c.yes("tenant and pod")(c.markOK(h.Token, cause("acme", "pod-2")))
	},
	"an expired mark demands that TTL and grace have passed": func(c *contract) {
		expired := lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}, Expired: true}
		c.no("fresh")(c.markOK(c.held(long, nil).Token, expired))
		h := c.held(10*msec, nil)
		late := expired
		late.Grace = long
		c.no("within the grace")(c.markOK(h.Token, late))
		c.eventually("the TTL passes", func() bool {
			ok, err := c.markOK(h.Token, expired)
			c.must(err)
			return ok
		})
		p := c.pending(func(h *lease.Holder) { h.TTL = 10 * msec })
		c.eventually("the pending TTL passes", func() bool {
			ok, err := c.markOK(p.Token, expired)
			c.must(err)
			return ok
		})
	},
	"a touch between listing and mark saves the holder": func(c *contract) {
		const ttl = 250 * msec // far more than a touch and a mark take
		h := c.held(ttl, nil)
		c.eventually("it expires", func() bool {
			listed, err := c.Expired(c.ctx, "tex", 0, 10)
			c.must(err)
			return len(listed) == 1
		})
		c.yes("touch")(c.Touch(c.ctx, h.Token, h.Pod))
		c.no("mark")(c.markOK(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}, Expired: true}))
		c.yes("touch")(c.Touch(c.ctx, h.Token, h.Pod))
		if s := c.read(h.Token).State; s != lease.Held {
			c.Fatalf("state: %s", s)
		}
	},
	"a handler's end is noted once, on a mark only": func(c *contract) {
		h := c.revoked()
		c.yes("handled")(c.MarkHandled(c.ctx, h.Token))
		r := c.read(h.Token).Revocation
		if r.HandledAt.Before(r.At) {
			c.Fatalf("handled at %v, marked at %v", r.HandledAt, r.At)
		}
		c.no("twice")(c.MarkHandled(c.ctx, h.Token))
		c.no("HELD")(c.MarkHandled(c.ctx, c.held(long, nil).Token))
		c.no("PENDING")(c.MarkHandled(c.ctx, c.pending().Token))
		c.no("unknown")(c.MarkHandled(c.ctx, token()))
	},
	"unhandled marks are listed, oldest first": func(c *contract) {
		first, second, third := c.revoked(), c.held(long, nil), c.revoked()
		c.behind(c.read(third.Token).Revocation.At)
		c.marked(second.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}})
		c.yes("handled")(c.MarkHandled(c.ctx, first.Token))
		all, err := c.Unhandled(c.ctx, 10)
		c.must(err)
		c.same("unhandled", tokens(all), []lease.Token{third.Token, second.Token})
		one, err := c.Unhandled(c.ctx, 1)
		c.must(err)
		c.same("one", tokens(one), []lease.Token{third.Token})
		c.same("payload of a mark", one[0].Payload, third.Payload)
	},
	"handled marks are purged when they are old enough": func(c *contract) {
		handled, unhandled, held := c.revoked(), c.revoked(), c.held(long, nil)
		c.yes("handled")(c.MarkHandled(c.ctx, handled.Token))
		n, err := c.PurgeHandled(c.ctx, long)
		c.must(err)
		if n != 0 {
			c.Fatalf("purged %d that are too young", n)
		}
		c.eventually("it grows old", func() bool {
			n, err := c.PurgeHandled(c.ctx, msec)
			c.must(err)
			return n == 1
		})
		c.gone(handled.Token)
		c.read(unhandled.Token)
		c.read(held.Token)
	},
}
