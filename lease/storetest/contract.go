package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Run holds a Store to every promise in the comments of lease.Store. open gives
// an empty store, which Run closes; it is called once for each test.
//
// Store time cannot be set, so what depends on it uses times of a few
// milliseconds and asks until the store says so.
func Run(t *testing.T, open func(t *testing.T) lease.Store) {
	for _, group := range []struct {
		name  string
		tests map[string]func(*contract)
	}{
		{"holders", holderTests},
		{"marks", markTests},
		{"lists", listTests},
		{"counters", counterTests},
		{"audits", auditTests},
		{"races", raceTests},
		{"pods", podTests},
		{"events", eventTests},
		{"records", recordTests},
		{"the store", storeTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for name, test := range group.tests {
				t.Run(name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					t.Cleanup(cancel)
					s := open(t)
					t.Cleanup(func() { _ = s.Close(context.WithoutCancel(ctx)) })
					test(&contract{T: t, Store: s, ctx: ctx})
				})
			}
		})
	}
}

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// long is a time that no test reaches.
const long = time.Hour

// contract is one test's store and what it says in a few words.
type contract struct {
	*testing.T
	lease.Store
	ctx context.Context
}

var unique atomic.Int64

// token gives a token that sorts behind those before it.
func token() lease.Token { return lease.Token(fmt.Sprintf("token-%06d", unique.Add(1))) }

const (
	userCounter   = lease.CounterID("tex|user|acme/ann")
	tenantCounter = lease.CounterID("tex|tenant|acme")
	globalCounter = lease.CounterID("tex|global|*")
)

func booking(id lease.CounterID) lease.Booking {
	level := definition.Global
	switch id {
	case userCounter:
		level = definition.User
	case tenantCounter:
		level = definition.Tenant
	}
	return lease.Booking{ID: id, Level: level, Gen: "g1"}
}

// sample is a holder with everything set, not podBound.
func sample() lease.Holder {
	return lease.Holder{
		Token: token(), Type: "mcp", Resource: "tex", Lease: "tex", Label: "tex",
		Tenant: "acme", Project: "thesis", User: "ann", HolderRef: "a session", Pod: "pod-1",
		Payload: lease.Payload{"endpoint": "http://upstream/mcp", lease.PayloadKey: "k1"}, TTL: long,
	}
}

func (c *contract) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// yes demands that a verb matched.
func (c *contract) yes(what string) func(bool, error) {
	return func(ok bool, err error) {
		c.Helper()
		if err != nil || !ok {
			c.Fatalf("%s: got %v, %v; it must match", what, ok, err)
		}
	}
}

// no demands that a verb did not match.
func (c *contract) no(what string) func(bool, error) {
	return func(ok bool, err error) {
		c.Helper()
		if err != nil || ok {
			c.Fatalf("%s: got %v, %v; it must not match", what, ok, err)
		}
	}
}

// eventually asks until f says yes.
func (c *contract) eventually(what string, f func() bool) {
	c.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			c.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// behind waits until store time lies behind t: a store may count milliseconds.
func (c *contract) behind(t time.Time) {
	c.Helper()
	c.eventually("store time moves on", func() bool { return c.read(c.pending().Token).CreatedAt.After(t) })
}

// none is an empty list of holders.
var none []lease.Token

// pending makes a PENDING holder.
func (c *contract) pending(change ...func(*lease.Holder)) lease.Holder {
	c.Helper()
	h := sample()
	for _, f := range change {
		f(&h)
	}
	c.must(c.CreateHolder(c.ctx, h))
	return h
}

// held makes a HELD holder that lists ids, the user's counter by default.
func (c *contract) held(ttl time.Duration, ids []lease.CounterID, change ...func(*lease.Holder)) lease.Holder {
	c.Helper()
	h := c.pending(change...)
	if len(ids) == 0 {
		ids = []lease.CounterID{userCounter}
	}
	last := len(ids) - 1
	for _, id := range ids[:last] {
		c.yes("push")(c.PushLevel(c.ctx, h.Token, booking(id), long))
	}
	c.yes("last push")(c.PushLast(c.ctx, h.Token, booking(ids[last]), ids[:last], ttl, long))
	return h
}

// revoked makes a REVOKED holder whose handler has not run.
func (c *contract) revoked(change ...func(*lease.Holder)) lease.Holder {
	c.Helper()
	h := c.held(long, nil, change...)
	c.marked(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}})
	return h
}

// marked marks and demands that it matched.
func (c *contract) marked(t lease.Token, m lease.Mark) lease.Holder {
	c.Helper()
	before, ok, err := c.MarkHolder(c.ctx, t, m)
	c.yes("mark")(ok, err)
	return before
}

func (c *contract) markOK(t lease.Token, m lease.Mark) (bool, error) {
	_, ok, err := c.MarkHolder(c.ctx, t, m)
	return ok, err
}

// read reads a holder that must be there.
func (c *contract) read(t lease.Token) lease.Holder {
	c.Helper()
	h, ok, err := c.Holder(c.ctx, t)
	c.yes("read holder")(ok, err)
	return h
}

// gone demands that there is no such holder.
func (c *contract) gone(t lease.Token) {
	c.Helper()
	_, ok, err := c.Holder(c.ctx, t)
	c.no("read holder")(ok, err)
}

// counter makes a counter with this count.
func (c *contract) counter(id lease.CounterID, count int) lease.Counter {
	c.Helper()
	c.must(c.EnsureCounter(c.ctx, id, "g1"))
	for range count {
		_, _, ok, err := c.Increment(c.ctx, id, definition.Cap(count))
		c.yes("increment")(ok, err)
	}
	return c.count(id)
}

// count reads a counter that must be there.
func (c *contract) count(id lease.CounterID) lease.Counter {
	c.Helper()
	got, err := c.Counters(c.ctx, []lease.CounterID{id})
	c.must(err)
	if len(got) != 1 {
		c.Fatalf("counters %s: got %d, want it", id, len(got))
	}
	return got[0]
}

// noCounter demands that there is no such counter.
func (c *contract) noCounter(id lease.CounterID) {
	c.Helper()
	got, err := c.Counters(c.ctx, []lease.CounterID{id})
	c.must(err)
	if len(got) != 0 {
		c.Fatalf("counters %s: got %+v, want none", id, got)
	}
}

// same compares, and takes an empty list for a missing one.
func (c *contract) same(what string, got, want any, opts ...cmp.Option) {
	c.Helper()
	if d := cmp.Diff(want, got, append(opts, cmpopts.EquateEmpty())...); d != "" {
		c.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

func tokens(hs []lease.Holder) []lease.Token {
	out := make([]lease.Token, len(hs))
	for i, h := range hs {
		out[i] = h.Token
	}
	return out
}
