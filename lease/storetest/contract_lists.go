package storetest

import (
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

const msec = time.Millisecond

var listTests = map[string]func(*contract){
	"holders are listed in token order, living ones by default": func(c *contract) {
		a, b := c.pending(), c.held(long, nil)
		r := c.revoked()
		living, err := c.Holders(c.ctx, lease.Filter{})
		c.must(err)
		c.same("living", tokens(living), []lease.Token{a.Token, b.Token})
		c.same("a listed holder", living[1], c.read(b.Token))
		marks, err := c.Holders(c.ctx, lease.Filter{States: []lease.State{lease.Revoked}})
		c.must(err)
		c.same("marks", tokens(marks), []lease.Token{r.Token})
		all, err := c.Holders(c.ctx, lease.Filter{States: []lease.State{lease.Revoked, lease.Held}})
		c.must(err)
		c.same("both", tokens(all), []lease.Token{b.Token, r.Token})
	},
	"each filter selects": func(c *contract) {
		c.held(long, nil)
		other := c.held(long, nil, func(h *lease.Holder) {
			h.Tenant, h.Project, h.User, h.Resource, h.Type, h.Pod = "t2", "p2", "u2", "r2", "y2", "pod-2"
			h.Payload = lease.Payload{lease.PayloadKey: "key2"}
		})
		c.pending()
		for name, f := range map[string]lease.Filter{
			"token": {Token: other.Token}, "tenant": {Tenant: "t2"}, "project": {Project: "p2"}, "user": {User: "u2"},
			"resource": {Resource: "r2"}, "type": {Type: "y2"}, "pod": {Pod: "pod-2"}, "key": {Key: "key2"},
			"all of them": {Token: other.Token, Tenant: "t2", Project: "p2", User: "u2", Resource: "r2", Type: "y2", Pod: "pod-2", Key: "key2"},
		} {
			got, err := c.Holders(c.ctx, f)
			c.must(err)
			c.same("by "+name, tokens(got), []lease.Token{other.Token})
			f.States = []lease.State{lease.Pending}
			got, err = c.Holders(c.ctx, f)
			c.must(err)
			c.same("by "+name+" in another state", tokens(got), none)
		}
		for name, f := range map[string]lease.Filter{
			"two that do not meet": {Tenant: "acme", Pod: "pod-2"}, "nothing like it": {Key: "key"}, "behind it": {Token: other.Token, After: other.Token},
		} {
			got, err := c.Holders(c.ctx, f)
			c.must(err)
			c.same(name, tokens(got), none)
		}
	},
	"pages follow each other": func(c *contract) {
		var want []lease.Token
		for range 7 {
			want = append(want, c.pending().Token)
			c.pending(func(h *lease.Holder) { h.Pod, h.Payload = "pod-2", nil })
		}
		for name, f := range map[string]lease.Filter{"by pod": {Pod: "pod-1"}, "by key": {Key: "k1"}, "by pod and tenant": {Pod: "pod-1", Tenant: "acme"}} {
			f.Limit = 3
			var got []lease.Token
			for {
				page, err := c.Holders(c.ctx, f)
				c.must(err)
				if len(page) > f.Limit {
					c.Fatalf("%s: a page of %d", name, len(page))
				}
				if len(page) == 0 {
					break
				}
				got = append(got, tokens(page)...)
				f.After = got[len(got)-1]
			}
			c.same(name, got, want)
		}
	},
	"the pods of living holders are listed once each": func(c *contract) {
		on := func(pod lease.PodID) func(*lease.Holder) { return func(h *lease.Holder) { h.Pod = pod } }
		c.revoked(on("pod-0"))
		c.revoked(on("pod-2"))
		c.pending(on("pod-2"))
		c.held(long, nil, on("pod-2"))
		c.held(long, nil, on("pod-1"))
		got, err := c.HolderPods(c.ctx)
		c.must(err)
		slices.Sort(got)
		c.same("pods", got, []lease.PodID{"pod-1", "pod-2"})
	},
	"expired holders are listed by resource, PENDING and HELD": func(c *contract) {
		in := func(resource string, ttl time.Duration) func(*lease.Holder) {
			return func(h *lease.Holder) { h.Resource, h.TTL = resource, ttl }
		}
		pending := c.pending(in("tex", 5*msec))
		held := c.held(5*msec, nil)
		other := c.held(5*msec, nil, in("tex2", long))
		bound := c.held(5*msec, nil, func(h *lease.Holder) { h.Resource = "tex2"; h.PodBound = true })
		c.held(long, nil)
		c.pending()
		gone := c.held(5*msec, nil)
		c.marked(gone.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}})
		expired := func(resource string, grace time.Duration, limit int) []lease.Token {
			got, err := c.Expired(c.ctx, resource, grace, limit)
			c.must(err)
			ts := tokens(got)
			slices.Sort(ts)
			return ts
		}
		c.eventually("all expire", func() bool { return len(expired("", 0, 10)) == 4 })
		c.same("tex", expired("tex", 0, 10), []lease.Token{pending.Token, held.Token})
		c.same("tex2", expired("tex2", 0, 10), []lease.Token{other.Token, bound.Token})
		c.same("te", expired("te", 0, 10), none)
		c.same("within the grace", expired("", long, 10), none)
		if n := len(expired("", 0, 3)); n != 3 {
			c.Fatalf("limit 3: %d", n)
		}
		got, err := c.Expired(c.ctx, "tex2", 0, 10)
		c.must(err)
		for _, h := range got {
			c.same("an expired holder", h, c.read(h.Token))
		}
	},
	"a touched holder is not listed as expired": func(c *contract) {
		const ttl = 250 * msec
		h := c.held(ttl, nil)
		expired := func() int {
			got, err := c.Expired(c.ctx, "tex", 0, 10)
			c.must(err)
			return len(got)
		}
		c.eventually("it expires", func() bool { return expired() == 1 })
		c.yes("touch")(c.Touch(c.ctx, h.Token, h.Pod))
		if expired() != 0 {
			c.Fatal("listed as expired after a touch")
		}
		c.eventually("it expires again", func() bool { return expired() == 1 })
	},
	"the oldest booking of a counter has its age": func(c *contract) {
		age := func() time.Duration {
			d, err := c.OldestBooking(c.ctx, userCounter)
			c.must(err)
			return d
		}
		if age() != 0 {
			c.Fatal("an age of nothing")
		}
		const apart = 20 * msec
		first := c.held(long, []lease.CounterID{userCounter, globalCounter})
		c.eventually("it ages", func() bool { return age() > apart })
		c.held(long, nil)
		begin := time.Now()
		old := age()
		if old < apart {
			c.Fatalf("age %v is the younger holder's", old)
		}
		c.marked(first.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}})
		// The second is younger than the first by what lies between them, however
		// long the mark took.
		if a := age(); a > old+time.Since(begin)-apart+2*msec {
			c.Fatalf("age %v after the oldest, aged %v, was marked %v ago", a, old, time.Since(begin))
		}
		if d, err := c.OldestBooking(c.ctx, globalCounter); d != 0 || err != nil {
			c.Fatalf("a counter that only a mark lists: %v, %v", d, err)
		}
	},
}
