package storetest

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// audited makes a counter with this count and opens an audit of it, which
// changes its gen from g1 to g2.
func (c *contract) audited(id lease.CounterID, count int) lease.Counter {
	c.Helper()
	c.yes("open")(c.OpenAudit(c.ctx, c.counter(id, count), "g2", 0))
	return c.count(id)
}

// closes asks for the end of an audit until it is old enough.
func (c *contract) closes(was lease.Counter, booked int, gen lease.Gen) lease.Counter {
	c.Helper()
	c.eventually("the audit is old enough", func() bool {
		ok, err := c.CloseAudit(c.ctx, was, booked, gen, 5*msec)
		c.must(err)
		return ok
	})
	return c.count(was.ID)
}

// is demands a count and, where old is not negative, an open audit with so many
// old ones.
func (c *contract) is(id lease.CounterID, count, old int) {
	c.Helper()
	got := c.count(id)
	if got.Count != count || (got.Audit == nil) != (old < 0) || got.Audit != nil && got.Audit.Old != old {
		c.Fatalf("count %d, audit %+v; want count %d and %d old ones", got.Count, got.Audit, count, old)
	}
}

const noAudit = -1

var auditTests = map[string]func(*contract){
	"an audit's beginning changes the gen, takes the count for old and nothing else": func(c *contract) {
		was := c.counter(userCounter, 3)
		c.behind(was.UpdatedAt)
		c.yes("open")(c.OpenAudit(c.ctx, was, "$g2", long))
		got := c.count(userCounter)
		want := was
		want.Gen, want.Audit = "$g2", &lease.Audit{Old: 3}
		c.same("counter", got, want, cmpopts.IgnoreFields(lease.Audit{}, "OpenedAt"))
		if !got.Audit.OpenedAt.After(was.UpdatedAt) {
			c.Fatalf("opened at %v, changed at %v", got.Audit.OpenedAt, was.UpdatedAt)
		}
		gen, count, ok, err := c.Increment(c.ctx, userCounter, 9)
		if gen != "$g2" || count != 4 || !ok || err != nil {
			c.Fatalf("increment: %s, %d, %v, %v", gen, count, ok, err)
		}
		c.is(userCounter, 4, 3)
	},
	"an audit begins on the counter that was read, and one at a time": func(c *contract) {
		was := c.counter(userCounter, 3)
		other := was
		other.Count++
		c.no("another count")(c.OpenAudit(c.ctx, other, "g2", 0))
		other = was
		other.Gen = "g9"
		c.no("another generation")(c.OpenAudit(c.ctx, other, "g2", 0))
		c.no("missing")(c.OpenAudit(c.ctx, lease.Counter{ID: globalCounter, Gen: "g1"}, "g2", 0))
		c.noCounter(globalCounter)
		c.same("after refusals", c.count(userCounter), was)
		c.yes("open")(c.OpenAudit(c.ctx, was, "g2", 0))
		open := c.count(userCounter)
		c.no("again")(c.OpenAudit(c.ctx, was, "g3", 0))
		c.no("a second one")(c.OpenAudit(c.ctx, open, "g3", 0))
		c.same("after refusals", c.count(userCounter), open)
	},
	"a listed counter has the age of its audit": func(c *contract) {
		c.counter(globalCounter, 1)
		want := c.audited(userCounter, 1)
		c.eventually("it ages", func() bool {
			got, err := c.ListCounters(c.ctx, "", "", 10)
			c.must(err)
			if len(got) != 2 {
				c.Fatalf("listed %d", len(got))
			}
			if got[0].Audit != nil || got[0].AuditAge != 0 {
				c.Fatalf("without an audit: %+v", got[0])
			}
			c.same("counter", got[1].Counter, want)
			return got[1].AuditAge > 20*msec
		})
	},
	"giving back an old booking lowers the old ones, a new one does not": func(c *contract) {
		c.audited(userCounter, 5)
		c.increment(userCounter, 9)
		c.yes("new")(c.Decrement(c.ctx, userCounter, "g2", "g2"))
		c.is(userCounter, 5, 5)
		c.yes("old, the gen was read")(c.Decrement(c.ctx, userCounter, "g2", "g0"))
		c.is(userCounter, 4, 4)
		before := c.count(userCounter)
		c.behind(before.UpdatedAt)
		c.yes("old, by the list")(c.DecrementPrev(c.ctx, userCounter, "g1"))
		c.is(userCounter, 3, 3)
		if !c.count(userCounter).UpdatedAt.After(before.UpdatedAt) {
			c.Fatal("updatedAt has not moved")
		}
		c.no("the gen from before")(c.Decrement(c.ctx, userCounter, "g1", "g1"))
		c.no("not the gen from before")(c.DecrementPrev(c.ctx, userCounter, "g2"))
		c.no("no gen")(c.DecrementPrev(c.ctx, userCounter, ""))
		c.no("missing")(c.DecrementPrev(c.ctx, globalCounter, "g1"))
		c.noCounter(globalCounter)
		c.is(userCounter, 3, 3)
		for range 3 {
			c.yes("down to zero")(c.DecrementPrev(c.ctx, userCounter, "g1"))
		}
		c.no("below zero")(c.DecrementPrev(c.ctx, userCounter, "g1"))
		c.is(userCounter, 0, 0)
	},
	"what a counter had been through leaves its next audit right": func(c *contract) {
		c.counter(userCounter, 5)
		c.no("no gen before")(c.DecrementPrev(c.ctx, userCounter, ""))
		c.yes("an old list")(c.Decrement(c.ctx, userCounter, "g1", "g0"))
		c.is(userCounter, 4, noAudit)
		c.yes("open")(c.OpenAudit(c.ctx, c.count(userCounter), "g2", 0))
		c.is(userCounter, 4, 4)
	},
	"bookings from before are those that list another gen": func(c *contract) {
		list := func(id lease.CounterID, gen lease.Gen) lease.Holder {
			h := c.pending()
			c.yes("push")(c.PushLevel(c.ctx, h.Token, lease.Booking{ID: id, Level: "user", Gen: gen}, long))
			return h
		}
		list(userCounter, "g0")
		list(userCounter, "g1")
		list(userCounter, "g2")
		list(globalCounter, "g1")
		two := list(userCounter, "g2")
		c.yes("push")(c.PushLast(c.ctx, two.Token, lease.Booking{ID: globalCounter, Level: "global", Gen: "g0"}, []lease.CounterID{userCounter}, long, long))
		held := c.held(long, []lease.CounterID{userCounter, globalCounter})
		c.marked(c.held(long, []lease.CounterID{userCounter}).Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}})
		before := func(id lease.CounterID, gen lease.Gen) int {
			n, err := c.BookedBefore(c.ctx, id, gen)
			c.must(err)
			return n
		}
		c.same("user", before(userCounter, "g2"), 3)
		c.same("global", before(globalCounter, "g2"), 3)
		c.same("global, another gen", before(globalCounter, "g1"), 1)
		c.same("nobody", before(tenantCounter, "g2"), 0)
		_, ok, err := c.DeleteHolder(c.ctx, held.Token)
		c.yes("delete")(ok, err)
		c.same("user, without the one that has ended", before(userCounter, "g2"), 2)
	},
	"an audit's end takes off what of the old ones nobody books": func(c *contract) {
		was := c.audited(userCounter, 5)
		c.increment(userCounter, 9)
		c.increment(userCounter, 9)
		c.behind(c.count(userCounter).UpdatedAt)
		before := c.count(userCounter)
		got := c.closes(was, 3, "g3")
		c.same("counter", got, lease.Counter{ID: userCounter, Count: 5, Cap: 9, Gen: "g3"}, cmpopts.IgnoreFields(lease.Counter{}, "UpdatedAt"))
		if !got.UpdatedAt.After(before.UpdatedAt) {
			c.Fatal("updatedAt has not moved")
		}
		c.no("a gen that was read during the audit")(c.Decrement(c.ctx, userCounter, "g2", "g1"))
		c.no("a list from before the audit")(c.DecrementPrev(c.ctx, userCounter, "g1"))
		c.yes("a list from during the audit")(c.DecrementPrev(c.ctx, userCounter, "g2"))
		c.yes("a gen that was read after it")(c.Decrement(c.ctx, userCounter, "g3", "g1"))
		c.is(userCounter, 3, noAudit)
		c.no("a second end")(c.CloseAudit(c.ctx, was, 3, "g4", 0))
		c.no("a second end, by now's gen")(c.CloseAudit(c.ctx, lease.Counter{ID: userCounter, Gen: "g3", Audit: was.Audit}, 3, "g4", 0))
	},
	"an audit's end demands its margin and unchanged old ones": func(c *contract) {
		was := c.audited(userCounter, 5)
		c.no("too young")(c.CloseAudit(c.ctx, was, 3, "g3", long))
		c.yes("an old one is given back")(c.DecrementPrev(c.ctx, userCounter, "g1"))
		c.behind(c.count(userCounter).UpdatedAt)
		is := c.count(userCounter)
		c.no("what was read before it")(c.CloseAudit(c.ctx, was, 3, "g3", 0))
		other := is
		other.Gen = "g1"
		c.no("another generation")(c.CloseAudit(c.ctx, other, 3, "g3", 0))
		other = is
		other.Audit = nil
		c.no("no audit")(c.CloseAudit(c.ctx, other, 3, "g3", 0))
		c.no("missing")(c.CloseAudit(c.ctx, lease.Counter{ID: globalCounter, Gen: "g2", Audit: is.Audit}, 0, "g3", 0))
		c.noCounter(globalCounter)
		c.same("after refusals", c.count(userCounter), is)
		c.yes("a new one is given back")(c.Decrement(c.ctx, userCounter, "g2", "g2"))
		c.closes(is, 3, "g3")
		c.is(userCounter, 2, noAudit)
	},
	"an audit's end leaves what is right, raises what is too low and makes nothing negative": func(c *contract) {
		c.closes(c.audited(userCounter, 2), 2, "g3")
		c.is(userCounter, 2, noAudit)
		c.closes(c.audited(tenantCounter, 2), 3, "g3")
		c.is(tenantCounter, 3, noAudit)
		was := c.audited(globalCounter, 2)
		c.yes("an old one that calls itself new")(c.Decrement(c.ctx, globalCounter, "g2", "g2"))
		c.behind(was.Audit.OpenedAt)
		c.no("below zero")(c.CloseAudit(c.ctx, was, 0, "g3", 0))
		c.is(globalCounter, 1, 2)
	},
	"the next audit begins a margin after the last one has ended": func(c *contract) {
		c.closes(c.audited(userCounter, 2), 1, "g3")
		c.no("too soon")(c.OpenAudit(c.ctx, c.count(userCounter), "g4", long))
		c.eventually("it is late enough", func() bool {
			ok, err := c.OpenAudit(c.ctx, c.count(userCounter), "g4", 5*msec)
			c.must(err)
			return ok
		})
		c.is(userCounter, 1, 1)
		c.yes("a list from between the two")(c.DecrementPrev(c.ctx, userCounter, "g3"))
		c.is(userCounter, 0, 0)
	},
	"a correction and a removal leave nothing of an audit": func(c *contract) {
		correct := func(count int, gen lease.Gen) {
			c.Helper()
			was := c.count(userCounter)
			c.eventually("it is old enough", func() bool {
				ok, err := c.CorrectCounter(c.ctx, was, count, gen, 5*msec)
				c.must(err)
				return ok
			})
			c.is(userCounter, count, noAudit)
		}
		was := c.audited(userCounter, 5)
		correct(3, "g3")
		c.no("a list from before the audit")(c.DecrementPrev(c.ctx, userCounter, "g1"))
		c.no("a list from during it")(c.DecrementPrev(c.ctx, userCounter, "g2"))
		c.no("its end")(c.CloseAudit(c.ctx, was, 3, "g4", 0))
		c.yes("another audit")(c.OpenAudit(c.ctx, c.count(userCounter), "g5", long))
		c.closes(c.count(userCounter), 3, "g6")
		correct(2, "g7")
		c.no("a list from during the second")(c.DecrementPrev(c.ctx, userCounter, "g5"))
		c.yes("a third, at once")(c.OpenAudit(c.ctx, c.count(userCounter), "g8", long))
		was = c.count(userCounter)
		c.eventually("it is old enough", func() bool {
			ok, err := c.RemoveCounter(c.ctx, was, 5*msec)
			c.must(err)
			return ok
		})
		c.noCounter(userCounter)
		c.no("its end")(c.CloseAudit(c.ctx, was, 0, "g9", 0))
		c.counter(userCounter, 1)
		c.no("a list from before")(c.DecrementPrev(c.ctx, userCounter, "g7"))
		c.is(userCounter, 1, noAudit)
	},
	"one of many begins an audit, and one ends it": func(c *contract) {
		was := c.counter(userCounter, 7)
		name := func(i int) lease.Gen { return lease.Gen(fmt.Sprint("open", i)) }
		if wins := c.race(racers, func(i int) (bool, error) { return c.OpenAudit(c.ctx, was, name(i), 0) }); wins != 1 {
			c.Fatalf("%d have begun it", wins)
		}
		open := c.count(userCounter)
		c.behind(open.Audit.OpenedAt.Add(time.Millisecond))
		if wins := c.race(racers, func(i int) (bool, error) {
			return c.CloseAudit(c.ctx, open, 4, lease.Gen(fmt.Sprint("close", i)), 0)
		}); wins != 1 {
			c.Fatalf("%d have ended it", wins)
		}
		c.is(userCounter, 4, noAudit)
	},
}
