package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

func (c *contract) increment(id lease.CounterID, limit definition.Cap) bool {
	c.Helper()
	_, _, ok, err := c.Increment(c.ctx, id, limit)
	c.must(err)
	return ok
}

var counterTests = map[string]func(*contract){
	"an increment never creates a counter": func(c *contract) {
		if c.increment(userCounter, 5) {
			c.Fatal("incremented nothing")
		}
		c.noCounter(userCounter)
	},
	"an increment stops at the cap of its caller": func(c *contract) {
		c.must(c.EnsureCounter(c.ctx, userCounter, "g1"))
		for want := 1; want <= 2; want++ {
			gen, count, ok, err := c.Increment(c.ctx, userCounter, 2)
			if gen != "g1" || count != want || !ok || err != nil {
				c.Fatalf("increment %d: %s, %d, %v, %v", want, gen, count, ok, err)
			}
		}
		before := c.count(userCounter)
		if c.increment(userCounter, 2) || c.increment(userCounter, 1) {
			c.Fatal("incremented beyond the cap")
		}
		c.same("a refused increment changes nothing", c.count(userCounter), before)
		if !c.increment(userCounter, 3) {
			c.Fatal("a raised cap has room")
		}
		c.same("counter", c.count(userCounter), lease.Counter{ID: userCounter, Count: 3, Cap: 3, Gen: "g1"}, cmpopts.IgnoreFields(lease.Counter{}, "UpdatedAt"))
	},
	"ensuring leaves an existing counter untouched": func(c *contract) {
		c.must(c.EnsureCounter(c.ctx, userCounter, "$gen"))
		first := c.count(userCounter)
		if first.Count != 0 || first.Gen != "$gen" || first.UpdatedAt.IsZero() {
			c.Fatalf("a new counter: %+v", first)
		}
		c.behind(first.UpdatedAt)
		c.must(c.EnsureCounter(c.ctx, userCounter, "g2"))
		c.same("counter", c.count(userCounter), first)
		c.increment(userCounter, 5)
		second := c.count(userCounter)
		c.must(c.EnsureCounter(c.ctx, userCounter, "g2"))
		c.same("counter", c.count(userCounter), second)
	},
	"each change moves updatedAt": func(c *contract) {
		first := c.counter(userCounter, 0).UpdatedAt
		c.behind(first)
		c.increment(userCounter, 5)
		second := c.count(userCounter).UpdatedAt
		c.behind(second)
		c.yes("decrement")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		third := c.count(userCounter).UpdatedAt
		if !second.After(first) || !third.After(second) {
			c.Fatalf("made at %v, incremented at %v, decremented at %v", first, second, third)
		}
	},
	"a decrement demands the generation, has a floor and never creates": func(c *contract) {
		c.no("missing")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		c.noCounter(userCounter)
		c.counter(userCounter, 2)
		c.no("another generation")(c.Decrement(c.ctx, userCounter, "g2", "g2"))
		c.no("no generation")(c.Decrement(c.ctx, userCounter, "", ""))
		c.yes("first")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		c.yes("second")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		c.no("below zero")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		if n := c.count(userCounter).Count; n != 0 {
			c.Fatalf("count: %d", n)
		}
	},
	"counters that are missing are left out": func(c *contract) {
		c.counter(userCounter, 1)
		c.counter(globalCounter, 2)
		got, err := c.Counters(c.ctx, []lease.CounterID{globalCounter, tenantCounter, userCounter})
		c.must(err)
		counts := map[lease.CounterID]int{}
		for _, x := range got {
			counts[x.ID] = x.Count
		}
		c.same("counts", counts, map[lease.CounterID]int{userCounter: 1, globalCounter: 2})
		none, err := c.Counters(c.ctx, nil)
		c.must(err)
		if len(none) != 0 {
			c.Fatalf("none asked for: %v", none)
		}
	},
	"bookings of PENDING and HELD holders are counted": func(c *contract) {
		c.held(long, []lease.CounterID{userCounter, globalCounter})
		c.held(long, []lease.CounterID{globalCounter})
		p := c.pending()
		c.yes("push")(c.PushLevel(c.ctx, p.Token, booking(userCounter), long))
		c.marked(c.held(long, []lease.CounterID{userCounter, tenantCounter}).Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}})
		d := c.held(long, []lease.CounterID{userCounter, tenantCounter})
		_, ok, err := c.DeleteHolder(c.ctx, d.Token)
		c.yes("delete")(ok, err)
		got, err := c.Booked(c.ctx, []lease.CounterID{userCounter, tenantCounter, globalCounter, "tex|user|acme/an"})
		c.must(err)
		for id, want := range map[lease.CounterID]int{userCounter: 2, globalCounter: 2, tenantCounter: 0, "tex|user|acme/an": 0} {
			if got[id] != want {
				c.Fatalf("%s: got %d, want %d", id, got[id], want)
			}
		}
		only, err := c.Booked(c.ctx, []lease.CounterID{userCounter})
		c.must(err)
		c.same("only the counters that were asked for", only, map[lease.CounterID]int{userCounter: 2})
	},
	"counters are listed in order, by page and by resource": func(c *contract) {
		var want []lease.CounterID
		for i := range 5 {
			id := lease.CounterID(fmt.Sprintf("tex|user|acme/u%d", i))
			c.counter(id, 1)
			want = append(want, id)
		}
		for _, other := range []lease.CounterID{"te|global|*", "tex2|global|*", "tex2pdf|user|acme/u1", "tex%7C|global|*"} {
			c.counter(other, 1)
		}
		ids := func(resource string, after lease.CounterID, limit int) []lease.CounterID {
			got, err := c.ListCounters(c.ctx, resource, after, limit)
			c.must(err)
			var out []lease.CounterID
			for _, x := range got {
				out = append(out, x.ID)
			}
			return out
		}
		c.same("a resource", ids("tex", "", 10), want)
		c.same("first page", ids("tex", "", 2), want[:2])
		c.same("next page", ids("tex", want[1], 10), want[2:])
		c.same("behind the last", ids("tex", want[4], 10), want[:0])
		c.same("unknown", ids("t", "", 10), want[:0])
		all := slices.Concat([]lease.CounterID{"tex%7C|global|*", "tex2pdf|user|acme/u1", "tex2|global|*"}, want, []lease.CounterID{"te|global|*"})
		c.same("all", ids("", "", 100), all)
		c.same("all, behind one", ids("", "tex2|global|*", 100), all[3:])
	},
	"a listed counter has its age": func(c *contract) {
		want := c.counter(userCounter, 1)
		c.eventually("it ages", func() bool {
			got, err := c.ListCounters(c.ctx, "", "", 10)
			c.must(err)
			if len(got) != 1 {
				c.Fatalf("listed %d", len(got))
			}
			c.same("counter", got[0].Counter, want)
			return got[0].Age > 20*msec
		})
	},
	"a correction demands an unchanged, old counter": func(c *contract) {
		testUnchanged(c, func(was lease.Counter, margin time.Duration) (bool, error) {
			return c.CorrectCounter(c.ctx, was, 7, "g7", margin)
		})
		got := c.count(userCounter)
		c.same("corrected", got, lease.Counter{ID: userCounter, Count: 7, Cap: 9, Gen: "g7"}, cmpopts.IgnoreFields(lease.Counter{}, "UpdatedAt"))
		c.no("a decrement meant for before")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		c.yes("a decrement meant for now")(c.Decrement(c.ctx, userCounter, "g7", "g7"))
		c.no("missing")(c.CorrectCounter(c.ctx, lease.Counter{ID: globalCounter, Gen: "g1"}, 1, "g", 0))
		c.noCounter(globalCounter)
	},
	"a removal demands an unchanged, old counter": func(c *contract) {
		testUnchanged(c, func(was lease.Counter, margin time.Duration) (bool, error) {
			return c.RemoveCounter(c.ctx, was, margin)
		})
		c.noCounter(userCounter)
		c.no("missing")(c.RemoveCounter(c.ctx, lease.Counter{ID: userCounter, Gen: "g1"}, 0))
	},
}

// testUnchanged tries f with what the counter is not any more, and at last with
// what it is.
func testUnchanged(c *contract, f func(was lease.Counter, margin time.Duration) (bool, error)) {
	const young = time.Hour
	was := c.counter(userCounter, 3)
	c.no("too young")(f(was, young))
	// A decrement and an increment give the same count at another time.
	c.eventually("updatedAt moves", func() bool {
		c.yes("decrement")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		c.increment(userCounter, 9)
		return c.count(userCounter).UpdatedAt.After(was.UpdatedAt)
	})
	c.no("changed and changed back")(f(was, 0))
	is := c.count(userCounter)
	other := is
	other.Count++
	c.no("another count")(f(other, 0))
	other = is
	other.Gen = "g2"
	c.no("another generation")(f(other, 0))
	c.same("after refusals", c.count(userCounter), is)
	c.eventually("it is old enough", func() bool {
		ok, err := f(is, 5*msec)
		c.must(err)
		return ok
	})
}
