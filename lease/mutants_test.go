package lease_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// A mutant is the engine without one of its safeguards, or with one of the
// slips that come easily. Those that lie in the condition of a store verb wrap
// the Store, or are slips of the reference store where its documents show them;
// the others are edits of the engine's own text.
type mutant struct {
	name  string
	edits []edit
	slips storetest.Slips
	wrap  func(lease.Store) lease.Store
	// killedBy names the check that must notice: a sentence of TestProofs, a
	// scene of the exploration (with its budget), or the crashes.
	killedBy string
	budget   int
}

const (
	byCrash  = "every operation failing in four ways"
	byGroups = "every schedule of groups"
	scene0   = "three first users of a cap of one"
	scene1   = "an idle holder, two reapers and three who want its slot"
	scene2   = "a release beside a reconcile pass and two who keep"
	scene3   = "a release beside the correction of a counter that a crash left too high"
	scene4   = "the last use of an idle holder beside its reap and revocation"
	scene5   = "the beginning of an audit beside those who take and give"
	scene6   = "the end of an audit beside those who take and give"
	scene7   = "the correction of a quiet counter that is under audit"
)

// twisted overrides single verbs of a Store.
type twisted struct {
	lease.Store
	increment func(s lease.Store, ctx context.Context, id lease.CounterID, c definition.Cap) (lease.Gen, int, bool, error)
	decrement func(s lease.Store, ctx context.Context, id lease.CounterID, g, listed lease.Gen) (bool, error)
	decPrev   func(s lease.Store, ctx context.Context, id lease.CounterID, listed lease.Gen) (bool, error)
	open      func(s lease.Store, ctx context.Context, was lease.Counter, g lease.Gen, margin time.Duration) (bool, error)
	before    func(s lease.Store, ctx context.Context, id lease.CounterID, g lease.Gen) (int, error)
	end       func(s lease.Store, ctx context.Context, was lease.Counter, booked int, g lease.Gen, margin time.Duration) (bool, error)
	ensure    func(s lease.Store, ctx context.Context, id lease.CounterID, g lease.Gen) error
	counters  func(s lease.Store, ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error)
	list      func(s lease.Store, ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error)
	booked    func(s lease.Store, ctx context.Context, ids []lease.CounterID) (map[lease.CounterID]int, error)
	correct   func(s lease.Store, ctx context.Context, was lease.Counter, n int, g lease.Gen, margin time.Duration) (bool, error)
	remove    func(s lease.Store, ctx context.Context, was lease.Counter, margin time.Duration) (bool, error)
	create    func(s lease.Store, ctx context.Context, h lease.Holder) error
	push      func(s lease.Store, ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error)
	last      func(s lease.Store, ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error)
	drop      func(s lease.Store, ctx context.Context, t lease.Token) (lease.Holder, bool, error)
	touch     func(s lease.Store, ctx context.Context, t lease.Token, pod lease.PodID) (bool, error)
	mark      func(s lease.Store, ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error)
	holder    func(s lease.Store, ctx context.Context, t lease.Token) (lease.Holder, bool, error)
	purge     func(s lease.Store, ctx context.Context, age time.Duration) (int, error)
	unhandled func(s lease.Store, ctx context.Context, limit int) ([]lease.Holder, error)
	named     func(s lease.Store, ctx context.Context) ([]lease.PodID, error)
	pods      func(s lease.Store, ctx context.Context) ([]lease.Pod, error)
}

func twist(change func(x *twisted)) func(lease.Store) lease.Store {
	return func(s lease.Store) lease.Store {
		x := &twisted{Store: s}
		change(x)
		return x
	}
}

func (x *twisted) Increment(ctx context.Context, id lease.CounterID, c definition.Cap) (lease.Gen, int, bool, error) {
	if x.increment != nil {
		return x.increment(x.Store, ctx, id, c)
	}
	return x.Store.Increment(ctx, id, c)
}

func (x *twisted) Decrement(ctx context.Context, id lease.CounterID, g, listed lease.Gen) (bool, error) {
	if x.decrement != nil {
		return x.decrement(x.Store, ctx, id, g, listed)
	}
	return x.Store.Decrement(ctx, id, g, listed)
}

func (x *twisted) DecrementPrev(ctx context.Context, id lease.CounterID, listed lease.Gen) (bool, error) {
	if x.decPrev != nil {
		return x.decPrev(x.Store, ctx, id, listed)
	}
	return x.Store.DecrementPrev(ctx, id, listed)
}

func (x *twisted) OpenAudit(ctx context.Context, was lease.Counter, g lease.Gen, margin time.Duration) (bool, error) {
	if x.open != nil {
		return x.open(x.Store, ctx, was, g, margin)
	}
	return x.Store.OpenAudit(ctx, was, g, margin)
}

func (x *twisted) BookedBefore(ctx context.Context, id lease.CounterID, g lease.Gen) (int, error) {
	if x.before != nil {
		return x.before(x.Store, ctx, id, g)
	}
	return x.Store.BookedBefore(ctx, id, g)
}

func (x *twisted) CloseAudit(ctx context.Context, was lease.Counter, booked int, g lease.Gen, margin time.Duration) (bool, error) {
	if x.end != nil {
		return x.end(x.Store, ctx, was, booked, g, margin)
	}
	return x.Store.CloseAudit(ctx, was, booked, g, margin)
}

func (x *twisted) EnsureCounter(ctx context.Context, id lease.CounterID, g lease.Gen) error {
	if x.ensure != nil {
		return x.ensure(x.Store, ctx, id, g)
	}
	return x.Store.EnsureCounter(ctx, id, g)
}

func (x *twisted) Counters(ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error) {
	if x.counters != nil {
		return x.counters(x.Store, ctx, ids)
	}
	return x.Store.Counters(ctx, ids)
}

func (x *twisted) ListCounters(ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
	if x.list != nil {
		return x.list(x.Store, ctx, resource, after, limit)
	}
	return x.Store.ListCounters(ctx, resource, after, limit)
}

func (x *twisted) Booked(ctx context.Context, ids []lease.CounterID) (map[lease.CounterID]int, error) {
	if x.booked != nil {
		return x.booked(x.Store, ctx, ids)
	}
	return x.Store.Booked(ctx, ids)
}

func (x *twisted) CorrectCounter(ctx context.Context, was lease.Counter, n int, g lease.Gen, margin time.Duration) (bool, error) {
	if x.correct != nil {
		return x.correct(x.Store, ctx, was, n, g, margin)
	}
	return x.Store.CorrectCounter(ctx, was, n, g, margin)
}

func (x *twisted) RemoveCounter(ctx context.Context, was lease.Counter, margin time.Duration) (bool, error) {
	if x.remove != nil {
		return x.remove(x.Store, ctx, was, margin)
	}
	return x.Store.RemoveCounter(ctx, was, margin)
}

func (x *twisted) CreateHolder(ctx context.Context, h lease.Holder) error {
	if x.create != nil {
		return x.create(x.Store, ctx, h)
	}
	return x.Store.CreateHolder(ctx, h)
}

func (x *twisted) PushLevel(ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
	if x.push != nil {
		return x.push(x.Store, ctx, t, b, maxAge)
	}
	return x.Store.PushLevel(ctx, t, b, maxAge)
}

func (x *twisted) PushLast(ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error) {
	if x.last != nil {
		return x.last(x.Store, ctx, t, b, others, ttl, maxAge)
	}
	return x.Store.PushLast(ctx, t, b, others, ttl, maxAge)
}

func (x *twisted) DeleteHolder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	if x.drop != nil {
		return x.drop(x.Store, ctx, t)
	}
	return x.Store.DeleteHolder(ctx, t)
}

func (x *twisted) Touch(ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
	if x.touch != nil {
		return x.touch(x.Store, ctx, t, pod)
	}
	return x.Store.Touch(ctx, t, pod)
}

func (x *twisted) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
	if x.mark != nil {
		return x.mark(x.Store, ctx, t, m)
	}
	return x.Store.MarkHolder(ctx, t, m)
}

func (x *twisted) Holder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	if x.holder != nil {
		return x.holder(x.Store, ctx, t)
	}
	return x.Store.Holder(ctx, t)
}

func (x *twisted) PurgeHandled(ctx context.Context, age time.Duration) (int, error) {
	if x.purge != nil {
		return x.purge(x.Store, ctx, age)
	}
	return x.Store.PurgeHandled(ctx, age)
}

func (x *twisted) Unhandled(ctx context.Context, limit int) ([]lease.Holder, error) {
	if x.unhandled != nil {
		return x.unhandled(x.Store, ctx, limit)
	}
	return x.Store.Unhandled(ctx, limit)
}

func (x *twisted) HolderPods(ctx context.Context) ([]lease.PodID, error) {
	if x.named != nil {
		return x.named(x.Store, ctx)
	}
	return x.Store.HolderPods(ctx)
}

func (x *twisted) Pods(ctx context.Context) ([]lease.Pod, error) {
	if x.pods != nil {
		return x.pods(x.Store, ctx)
	}
	return x.Store.Pods(ctx)
}

// listsTwice is a store whose push does not ask whether the level is listed
// already.
func listsTwice(s lease.Store) lease.Store {
	var mu sync.Mutex
	again := map[lease.Token][]lease.Booking{}
	return twist(func(x *twisted) {
		x.push = func(s lease.Store, ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
			ok, err := s.PushLevel(ctx, t, b, maxAge)
			if err != nil || ok {
				return ok, err
			}
			h, _, err := s.Holder(ctx, t)
			if err != nil || h.State != lease.Pending || !slices.Contains(h.Levels, b) {
				return false, err
			}
			mu.Lock()
			defer mu.Unlock()
			again[t] = append(again[t], b)
			return true, nil
		}
		x.drop = func(s lease.Store, ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
			h, ok, err := s.DeleteHolder(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			h.Levels = append(h.Levels, again[t]...)
			return h, ok, err
		}
	})(s)
}

// leavesPending is a store whose mark of a PENDING holder waits for a handler as
// any other does.
func leavesPending(s lease.Store) lease.Store {
	var mu sync.Mutex
	left := map[lease.Token]bool{}
	show := func(h lease.Holder) lease.Holder {
		mu.Lock()
		defer mu.Unlock()
		if left[h.Token] && h.Revocation != nil {
			h.Revocation.HandledAt = time.Time{}
		}
		return h
	}
	return twist(func(x *twisted) {
		x.mark = func(s lease.Store, ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
			before, ok, err := s.MarkHolder(ctx, t, m)
			mu.Lock()
			defer mu.Unlock()
			left[t] = left[t] || ok && before.State == lease.Pending
			return before, ok, err
		}
		x.holder = func(s lease.Store, ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
			h, ok, err := s.Holder(ctx, t)
			return show(h), ok, err
		}
		x.unhandled = func(s lease.Store, ctx context.Context, limit int) ([]lease.Holder, error) {
			hs, err := s.Unhandled(ctx, limit)
			marked, _ := s.Holders(ctx, lease.Filter{States: []lease.State{lease.Revoked}})
			for _, h := range marked {
				if h = show(h); h.Revocation.HandledAt.IsZero() && !slices.ContainsFunc(hs, func(o lease.Holder) bool { return o.Token == h.Token }) {
					hs = append(hs, h)
				}
			}
			return hs, err
		}
	})(s)
}

// joinsPlainly keeps counters under ids whose parts are joined as they are.
func joinsPlainly(x *twisted) {
	raw := func(id lease.CounterID) lease.CounterID {
		plain, err := url.PathUnescape(string(id))
		if err != nil {
			panic(err)
		}
		return lease.CounterID(plain)
	}
	x.increment = func(s lease.Store, ctx context.Context, id lease.CounterID, c definition.Cap) (lease.Gen, int, bool, error) {
		return s.Increment(ctx, raw(id), c)
	}
	x.ensure = func(s lease.Store, ctx context.Context, id lease.CounterID, g lease.Gen) error {
		return s.EnsureCounter(ctx, raw(id), g)
	}
	x.decrement = func(s lease.Store, ctx context.Context, id lease.CounterID, g, listed lease.Gen) (bool, error) {
		return s.Decrement(ctx, raw(id), g, listed)
	}
}

// countsFirst is a store whose bookings are counted before the counter is read.
func countsFirst(s lease.Store) lease.Store {
	var mu sync.Mutex
	counted := map[lease.Gen]int{}
	return twist(func(x *twisted) {
		x.counters = func(s lease.Store, ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error) {
			cs, err := s.Counters(ctx, ids)
			if err != nil || len(cs) != 1 || cs[0].Audit == nil {
				return cs, err
			}
			n, err := s.BookedBefore(ctx, ids[0], cs[0].Gen)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			counted[cs[0].Gen] = n
			mu.Unlock()
			return s.Counters(ctx, ids)
		}
		x.before = func(_ lease.Store, _ context.Context, _ lease.CounterID, g lease.Gen) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return counted[g], nil
		}
	})(s)
}

const always = 1000 * time.Hour

var mutants = []mutant{
	// Acquire.
	{name: "a pending holder has the lease's TTL", killedBy: crashedAcquirerFrees, wrap: twist(func(x *twisted) {
		x.create = func(s lease.Store, ctx context.Context, h lease.Holder) error {
			h.TTL = 10 * time.Minute
			return s.CreateHolder(ctx, h)
		}
	})},
	{name: "an entry is written however old the holder is", killedBy: scene0, budget: 2, wrap: twist(func(x *twisted) {
		x.push = func(s lease.Store, ctx context.Context, t lease.Token, b lease.Booking, _ time.Duration) (bool, error) {
			return s.PushLevel(ctx, t, b, always)
		}
		x.last = func(s lease.Store, ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, _ time.Duration) (bool, error) {
			return s.PushLast(ctx, t, b, others, ttl, always)
		}
	})},
	{name: "HELD does not demand all levels, and a failed entry is passed over", killedBy: byCrash, wrap: twist(func(x *twisted) {
		x.push = func(s lease.Store, ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
			_, _ = s.PushLevel(ctx, t, b, maxAge)
			return true, nil
		}
		x.last = func(s lease.Store, ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error) {
			h, _, _ := s.Holder(ctx, t)
			listed := []lease.CounterID{}
			for _, l := range h.Levels {
				listed = append(listed, l.ID)
			}
			return s.PushLast(ctx, t, b, listed, ttl, maxAge)
		}
	})},
	{name: "an increment whose reply was lost is undone", killedBy: byCrash, wrap: twist(func(x *twisted) {
		x.increment = func(s lease.Store, ctx context.Context, id lease.CounterID, c definition.Cap) (lease.Gen, int, bool, error) {
			gen, n, ok, err := s.Increment(ctx, id, c)
			if err != nil {
				if cs, rerr := s.Counters(ctx, []lease.CounterID{id}); rerr == nil && len(cs) == 1 {
					_, _ = s.Decrement(ctx, id, cs[0].Gen, cs[0].Gen)
				}
			}
			return gen, n, ok, err
		}
	})},
	{name: "the first use of a counter is refused", killedBy: firstUseIsNotRefused, wrap: func(s lease.Store) lease.Store {
		var mu sync.Mutex
		missing := map[lease.CounterID]bool{}
		return twist(func(x *twisted) {
			x.increment = func(s lease.Store, ctx context.Context, id lease.CounterID, c definition.Cap) (lease.Gen, int, bool, error) {
				cs, _ := s.Counters(ctx, []lease.CounterID{id})
				mu.Lock()
				first := len(cs) == 0 || missing[id]
				if first {
					missing[id] = len(cs) == 0
				}
				mu.Unlock()
				if first {
					return "", 0, false, nil
				}
				return s.Increment(ctx, id, c)
			}
		})(s)
	}},
	{name: "a failed acquire leaves its holder to the reaper", killedBy: fullRollsBack, edits: []edit{
		{"funnel.go", "func (m *Manager) rollback(ctx context.Context, t Token) {", "func (m *Manager) rollback(ctx context.Context, t Token) {\n\tif true {\n\t\treturn\n\t}"},
	}},
	{name: "a rollback ends with its caller", killedBy: expiredCallerRollsBack, edits: []edit{
		{"funnel.go", "ctx, cancel := m.own(ctx)", "ctx, cancel := context.WithCancel(ctx)"},
	}},
	{name: "a rollback gives back whether or not its delete matched", killedBy: byCrash, edits: []edit{
		{"funnel.go", "\th, ok, err := m.store.DeleteHolder(ctx, t)", "\th, _, _ := m.store.Holder(ctx, t)\n\t_, _, err := m.store.DeleteHolder(ctx, t)\n\tok := true"},
		{"funnel.go", "\tcase err != nil:\n\t\tm.log.Warn(\"a failed acquire could", "\tcase err != nil && h.Token == \"\":\n\t\tm.log.Warn(\"a failed acquire could"},
	}},
	{name: "a rollback deletes PENDING only", killedBy: lostPushRollsBack, wrap: twist(func(x *twisted) {
		x.drop = func(s lease.Store, ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
			if h, ok, err := s.Holder(ctx, t); err != nil || !ok || h.State != lease.Pending {
				return lease.Holder{}, false, err
			}
			return s.DeleteHolder(ctx, t)
		}
	})},
	{name: "a level is listed as often as its entry arrives", killedBy: levelIsListedOnce, wrap: listsTwice},
	{name: "the parts of a scope are joined as they are", killedBy: scopesAreApart, wrap: twist(joinsPlainly)},
	{name: "a lease without caps asks the store", killedBy: noopNeedsNoStore, edits: []edit{
		{"funnel.go", "\tif r.Definition.Noop() {", "\tif r.Definition.Noop() {\n\t\t_ = m.seeOwnPod(ctx)"},
	}},
	{name: "a level without its scope is skipped", killedBy: noScopeIsRefused, edits: []edit{
		{"funnel.go", "\t\t\treturn nil, permanent(\"the lease \"+d.Name+\" is limited per \"", "\t\t\tcontinue\n\t\t\treturn nil, permanent(\"the lease \"+d.Name+\" is limited per \""},
		{"funnel.go", "\tif len(f.steps) != len(d.Caps) {", "\tif false {"},
	}},
	{name: "leases are taken before the registration was seen", killedBy: notBeforeRegistered, edits: []edit{
		{"funnel.go", "\tcase phaseNew:\n", "\tcase phaseNew:\n\tcase -1:\n"},
	}},
	{name: "a newcomer tries before those who wait", killedBy: waitersGoInOrder, edits: []edit{
		{"waitline.go", "func (q *waitLines) ahead(f *funnel) *full {", "func (q *waitLines) ahead(f *funnel) *full {\n\tif true {\n\t\treturn nil\n\t}"},
	}},
	{name: "who waits tries without looking", killedBy: waitingCostsOneRead, wrap: twist(func(x *twisted) {
		x.counters = func(s lease.Store, ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error) {
			_, err := s.Counters(ctx, ids)
			return nil, err
		}
	})},
	{name: "who has waited longer is looked for less often", killedBy: waitingCostsOneRead, edits: []edit{
		{"waitline.go", "	kick    chan struct{}", "	kick    chan struct{}\n	polls int"},
		{"waitline.go", "	t := time.NewTimer(q.jitter())", "	l.polls++\n	t := time.NewTimer(pollMin << min(l.polls, 6))"},
	}},
	{name: "each look sweeps", killedBy: waitingCostsOneRead, edits: []edit{
		{"reaper.go", "\tif !m.lazy.open(resource, time.Now()) {", "\tif m.lazy.open(resource, time.Now()); false {"},
	}},
	{name: "a release wakes nobody", killedBy: releaseWakes, edits: []edit{
		{"waitline.go", "func (q *waitLines) released(levels []Booking) {", "func (q *waitLines) released(levels []Booking) {\n\tif true {\n\t\treturn\n\t}"},
	}},

	// Release, reap, revoke.
	{name: "a decrement ignores the gen", killedBy: scene2, budget: 2, wrap: twist(func(x *twisted) {
		x.decrement = func(s lease.Store, ctx context.Context, id lease.CounterID, g, listed lease.Gen) (bool, error) {
			if cs, err := s.Counters(ctx, []lease.CounterID{id}); err == nil && len(cs) == 1 {
				g = cs[0].Gen
			}
			return s.Decrement(ctx, id, g, listed)
		}
	})},
	{name: "a decrement whose reply was lost is repeated", killedBy: byCrash, wrap: twist(func(x *twisted) {
		x.decrement = func(s lease.Store, ctx context.Context, id lease.CounterID, g, listed lease.Gen) (bool, error) {
			ok, err := s.Decrement(ctx, id, g, listed)
			if err != nil {
				return s.Decrement(ctx, id, g, listed)
			}
			return ok, err
		}
	})},
	{name: "an old lease is given back with the gens of its list", killedBy: correctedIsGivenBack, wrap: twist(func(x *twisted) {
		x.counters = func(lease.Store, context.Context, []lease.CounterID) ([]lease.Counter, error) { return nil, nil }
	})},
	{name: "a reap does not repeat that the lease is idle", killedBy: scene4, budget: 2, wrap: twist(func(x *twisted) {
		x.mark = func(s lease.Store, ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
			m.Expired = false
			return s.MarkHolder(ctx, t, m)
		}
	})},
	{name: "a reap does not repeat whose pod died", killedBy: movedLives, wrap: twist(func(x *twisted) {
		x.mark = func(s lease.Store, ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
			m.Pod = ""
			return s.MarkHolder(ctx, t, m)
		}
	})},
	{name: "a revocation does not repeat whose tenant may", killedBy: revokeOfTenant, wrap: twist(func(x *twisted) {
		x.mark = func(s lease.Store, ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
			m.Tenant = ""
			return s.MarkHolder(ctx, t, m)
		}
	})},
	{name: "a reap deletes instead of marking", killedBy: handlerSurvivesReaper, wrap: twist(func(x *twisted) {
		x.mark = func(s lease.Store, ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
			return s.DeleteHolder(ctx, t)
		}
	})},
	{name: "a mark and a release both win", killedBy: scene4, budget: 2, wrap: twist(func(x *twisted) {
		x.mark = func(s lease.Store, ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
			h, found, _ := s.Holder(ctx, t)
			before, ok, err := s.MarkHolder(ctx, t, m)
			if err == nil && !ok && found {
				return h, true, nil
			}
			return before, ok, err
		}
	})},
	{name: "the state of a mark is the listing's", killedBy: listingIsNotTrusted, edits: []edit{
		{"reaper.go", "\tif before.State == Held {", "\tif listed.State == Held {"},
	}},
	{name: "a mark counts as handled before its handler has run", killedBy: handlerRunsAgain, edits: []edit{
		{"dispatcher.go", "\terr = d.route(ctx, h)", "\t_, _ = d.m.store.MarkHandled(ctx, t)\n\terr = d.route(ctx, h)"},
	}},
	{name: "nobody sweeps for marks", killedBy: handlerSurvivesReaper, wrap: twist(func(x *twisted) {
		x.unhandled = func(lease.Store, context.Context, int) ([]lease.Holder, error) { return nil, nil }
	})},
	{name: "a reap tells no handler", killedBy: revokeDispatches, edits: []edit{
		{"reaper.go", "\tif before.State == Held {", "\tif false {"},
	}},
	{name: "the mark of a PENDING holder waits for a handler", killedBy: pendingHasNoHandler, wrap: leavesPending},
	{name: "a handled mark is removed at once", killedBy: marksArePurged, wrap: twist(func(x *twisted) {
		x.purge = func(s lease.Store, ctx context.Context, _ time.Duration) (int, error) { return s.PurgeHandled(ctx, 0) }
	})},
	{name: "the mark of a pod out of reach waits for that pod", killedBy: matrixUnreachable, edits: []edit{
		{"dispatcher.go", "d.m.opt.Peers.Revoked(peerCtx, p, h.Token); unreachable == nil {", "d.m.opt.Peers.Revoked(peerCtx, p, h.Token); true {"},
		{"dispatcher.go", "\t\t\treturn nil\n\t\t}\n\t}\n\tif h.PodBound {", "\t\t\treturn unreachable\n\t\t}\n\t}\n\tif h.PodBound {"},
	}},
	{name: "an unconfirmed close can be deleted", killedBy: unconfirmedStaysMark, edits: []edit{
		{"lease.go", "\t\tl.unconfirmed = true", "\t\tl.unconfirmed = false"},
	}},

	// Pods.
	{name: "the own pod is judged by its registration", killedBy: ownPodAlive, edits: []edit{
		{"pods.go", "\tif p.ID == m.opt.Pod.ID {\n\t\treturn true", "\tif false {\n\t\treturn true"},
	}},
	{name: "the registry is read before the holders", killedBy: newPodIsNotReaped, wrap: twist(func(x *twisted) {
		var before atomic.Pointer[[]lease.Pod]
		x.named = func(s lease.Store, ctx context.Context) ([]lease.PodID, error) {
			ps, _ := s.Pods(ctx)
			before.Store(&ps)
			return s.HolderPods(ctx)
		}
		x.pods = func(s lease.Store, ctx context.Context) ([]lease.Pod, error) {
			if ps := before.Load(); ps != nil {
				return *ps, nil
			}
			return s.Pods(ctx)
		}
	})},
	{name: "an outage counts against leases and pods", killedBy: outageCostsNothing, edits: []edit{
		{"reaper.go", "if !m.contact.idleGrace(now, h.TTL) {", "if now.Year() > 0 {"},
		{"pods.go", "|| !m.contact.podGrace(time.Now())", "|| true"},
	}},
	{name: "a start counts against leases and pods", killedBy: startIsPatient, edits: []edit{
		{"reaper.go", "if !m.contact.idleGrace(now, h.TTL) {", "if now.Year() > 0 {"},
		{"pods.go", "|| !m.contact.podGrace(time.Now())", "|| true"},
	}},
	{name: "a pod that has handed over is reaped", killedBy: handoverIsLeft, wrap: twist(func(x *twisted) {
		x.pods = func(s lease.Store, ctx context.Context) ([]lease.Pod, error) {
			ps, err := s.Pods(ctx)
			for i := range ps {
				ps[i].HandedOver = false
			}
			return ps, err
		}
	})},
	{name: "a dead pod's jobs are reaped", killedBy: jobsAreAdopted, edits: []edit{
		{"reaper.go", "(Adopter); ok {", "(Adopter); ok && false {"},
	}},

	// Check.
	{name: "a group answers a call that arrived after it began", killedBy: byGroups, edits: []edit{
		{"internal/groups/groups.go", "	inFlight int\n", "	inFlight int\n	running  []*call[T]\n"},
		{"internal/groups/groups.go", "	own := g.begin()\n", "	own := g.begin()\n	if own == nil && g.inFlight > 0 {\n		g.waiting = g.waiting[:len(g.waiting)-1]\n		g.running = append(g.running, c)\n	}\n"},
		{"internal/groups/groups.go", "	for _, c := range all {\n		c.yes,", "	g.mu.Lock()\n	all = append(all, g.running...)\n	g.running = nil\n	g.mu.Unlock()\n	for _, c := range all {\n		c.yes,"},
	}},
	{name: "a group takes the match of some for all", killedBy: byGroups, edits: []edit{
		{"internal/groups/groups.go", "	case matched == len(all):", "	case matched > 0:"},
	}},
	{name: "a group takes what was not found by its look for gone where the look failed", killedBy: byGroups, edits: []edit{
		{"internal/groups/groups.go", "		if hold, err = which(ctx, all); err != nil {\n			return nil, err\n		}", "		hold, _ = which(ctx, all)"},
	}},
	{name: "a group whose update failed takes its documents for gone", killedBy: byGroups, edits: []edit{
		{"internal/groups/groups.go", "	matched, err := update(ctx, all)\n	if err != nil {\n		return nil, err\n	}", "	matched, err := update(ctx, all)"},
	}},
	{name: "a group says what held at its update", killedBy: byGroups, edits: []edit{
		{"internal/groups/groups.go", "	hold := all\n", "	hold, before := all, all\n"},
		{"internal/groups/groups.go", "		if hold, err = which(ctx, all); err != nil {", "		if _, err = which(ctx, before); err != nil {"},
	}},
	{name: "a check counts the change and not the match", killedBy: checkKeeps, wrap: twist(func(x *twisted) {
		x.touch = func(s lease.Store, ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
			before, _, _ := s.Holder(ctx, t)
			ok, err := s.Touch(ctx, t, pod)
			after, _, _ := s.Holder(ctx, t)
			return ok && !before.LastSeenAt.Equal(after.LastSeenAt), err
		}
	})},
	{name: "a check of a lease that is gone makes it anew", killedBy: lossHasItsReason, wrap: twist(func(x *twisted) {
		x.touch = func(s lease.Store, ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
			ok, err := s.Touch(ctx, t, pod)
			return ok || err == nil, err
		}
	})},
	{name: "a check does not take the lease over", killedBy: checkTakesOver, wrap: twist(func(x *twisted) {
		x.touch = func(s lease.Store, ctx context.Context, t lease.Token, _ lease.PodID) (bool, error) {
			h, _, err := s.Holder(ctx, t)
			if err != nil {
				return false, err
			}
			return s.Touch(ctx, t, h.Pod)
		}
	})},
	{name: "a store out of reach is a lost lease", killedBy: lostIsNotUnreachable, wrap: twist(func(x *twisted) {
		x.touch = func(s lease.Store, ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
			ok, err := s.Touch(ctx, t, pod)
			return ok && err == nil, nil
		}
	})},

	// Reconcile.
	{name: "reconcile has no margin", killedBy: scene0, budget: 1, wrap: twist(func(x *twisted) {
		x.list = func(s lease.Store, ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
			cs, err := s.ListCounters(ctx, resource, after, limit)
			for i := range cs {
				cs[i].Age = always
			}
			return cs, err
		}
		x.correct = func(s lease.Store, ctx context.Context, was lease.Counter, n int, g lease.Gen, _ time.Duration) (bool, error) {
			return s.CorrectCounter(ctx, was, n, g, -always)
		}
		x.remove = func(s lease.Store, ctx context.Context, was lease.Counter, _ time.Duration) (bool, error) {
			return s.RemoveCounter(ctx, was, -always)
		}
	})},
	{name: "a correction keeps the gen", killedBy: scene3, budget: 2, wrap: twist(func(x *twisted) {
		x.correct = func(s lease.Store, ctx context.Context, was lease.Counter, n int, _ lease.Gen, margin time.Duration) (bool, error) {
			return s.CorrectCounter(ctx, was, n, was.Gen, margin)
		}
	})},
	{name: "reconcile zeroes what nobody books", killedBy: scene0, budget: 0, wrap: twist(func(x *twisted) {
		x.remove = func(s lease.Store, ctx context.Context, was lease.Counter, margin time.Duration) (bool, error) {
			return s.CorrectCounter(ctx, was, 0, was.Gen+"'", margin)
		}
	})},
	{name: "a counter is corrected and removed whatever it is by now", killedBy: scene2, budget: 2, wrap: twist(func(x *twisted) {
		now := func(s lease.Store, ctx context.Context, was lease.Counter) lease.Counter {
			if cs, err := s.Counters(ctx, []lease.CounterID{was.ID}); err == nil && len(cs) == 1 {
				return cs[0]
			}
			return was
		}
		x.correct = func(s lease.Store, ctx context.Context, was lease.Counter, n int, g lease.Gen, _ time.Duration) (bool, error) {
			return s.CorrectCounter(ctx, now(s, ctx, was), n, g, -always)
		}
		x.remove = func(s lease.Store, ctx context.Context, was lease.Counter, _ time.Duration) (bool, error) {
			return s.RemoveCounter(ctx, now(s, ctx, was), -always)
		}
	})},
	{name: "reconcile reads the holders before the counters", killedBy: scene0, budget: 2, wrap: twist(func(x *twisted) {
		var before map[lease.CounterID]int
		x.list = func(s lease.Store, ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
			if after == "" {
				n, err := s.Booked(ctx, []lease.CounterID{projectCounter, globalCounter})
				if err != nil {
					return nil, err
				}
				before = n
			}
			return s.ListCounters(ctx, resource, after, limit)
		}
		x.booked = func(lease.Store, context.Context, []lease.CounterID) (map[lease.CounterID]int, error) {
			return before, nil
		}
	})},
	{name: "reconcile counts HELD only", killedBy: scene0, budget: 2, wrap: twist(func(x *twisted) {
		x.booked = func(s lease.Store, ctx context.Context, ids []lease.CounterID) (map[lease.CounterID]int, error) {
			n, err := s.Booked(ctx, ids)
			if err != nil {
				return nil, err
			}
			hs, err := s.Holders(ctx, lease.Filter{States: []lease.State{lease.Pending}})
			for _, h := range hs {
				for _, b := range h.Levels {
					n[b.ID]--
				}
			}
			return n, err
		}
	})},

	// Audit.
	{name: "no audit begins", killedBy: busyIsMended, wrap: twist(func(x *twisted) {
		x.open = func(lease.Store, context.Context, lease.Counter, lease.Gen, time.Duration) (bool, error) {
			return false, nil
		}
	})},
	{name: "no audit ends", killedBy: busyIsMended, wrap: twist(func(x *twisted) {
		x.end = func(lease.Store, context.Context, lease.Counter, int, lease.Gen, time.Duration) (bool, error) {
			return false, nil
		}
	})},
	{name: "an audit begins with the first drift that is seen", killedBy: passingDriftIsLeft, edits: []edit{
		{"reconciler.go", "m.reconcile(ctx, m.suspects.before())", "m.reconcile(ctx, nil)"},
	}},
	{name: "an audit begins whatever the count is by now", killedBy: scene5, budget: 2, slips: storetest.Slips{OpensBlindly: true}},
	{name: "the next audit begins at once", killedBy: takenDuringAudit, wrap: twist(func(x *twisted) {
		x.open = func(s lease.Store, ctx context.Context, was lease.Counter, g lease.Gen, _ time.Duration) (bool, error) {
			return s.OpenAudit(ctx, was, g, -always)
		}
	})},
	{name: "an audit ends before its margin", killedBy: scene5, budget: 1, wrap: twist(func(x *twisted) {
		x.list = func(s lease.Store, ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
			cs, err := s.ListCounters(ctx, resource, after, limit)
			for i := range cs {
				cs[i].AuditAge = always
			}
			return cs, err
		}
		x.end = func(s lease.Store, ctx context.Context, was lease.Counter, booked int, g lease.Gen, _ time.Duration) (bool, error) {
			return s.CloseAudit(ctx, was, booked, g, -always)
		}
	})},
	{name: "an audit's end counts the bookings before it reads the counter", killedBy: auditEndsExactly, wrap: countsFirst},
	{name: "an audit's end takes the new bookings for old ones", killedBy: askedAuditsAtOnce, wrap: twist(func(x *twisted) {
		x.before = func(s lease.Store, ctx context.Context, id lease.CounterID, _ lease.Gen) (int, error) {
			n, err := s.Booked(ctx, []lease.CounterID{id})
			return n[id], err
		}
	})},
	{name: "an audit's end keeps the gen", killedBy: scene6, budget: 1, wrap: twist(func(x *twisted) {
		x.end = func(s lease.Store, ctx context.Context, was lease.Counter, booked int, _ lease.Gen, margin time.Duration) (bool, error) {
			return s.CloseAudit(ctx, was, booked, was.Gen, margin)
		}
	})},
	{name: "an audit's end does not demand the old ones that were read", killedBy: scene6, budget: 2, wrap: twist(func(x *twisted) {
		x.end = func(s lease.Store, ctx context.Context, was lease.Counter, booked int, g lease.Gen, margin time.Duration) (bool, error) {
			cs, err := s.Counters(ctx, []lease.CounterID{was.ID})
			if err != nil || len(cs) == 0 || cs[0].Gen != was.Gen {
				return false, err
			}
			return s.CloseAudit(ctx, cs[0], booked-was.Audit.Old+cs[0].Audit.Old, g, margin)
		}
	})},
	{name: "an audit's end leaves the gen from before it", killedBy: scene6, budget: 1, slips: storetest.Slips{EndKeepsPrev: true}},
	{name: "a correction leaves the gen from before an audit", killedBy: scene7, budget: 1, slips: storetest.Slips{CorrectionKeepsPrev: true}},
	{name: "a gen that was read is looked for as the one before, too", killedBy: scene6, budget: 1, wrap: twist(func(x *twisted) {
		x.decrement = func(s lease.Store, ctx context.Context, id lease.CounterID, g, listed lease.Gen) (bool, error) {
			ok, err := s.Decrement(ctx, id, g, listed)
			if err == nil && !ok {
				return s.DecrementPrev(ctx, id, g)
			}
			return ok, err
		}
	})},
	{name: "an old booking is given back as a new one", killedBy: scene6, budget: 1, wrap: twist(func(x *twisted) {
		x.decrement = func(s lease.Store, ctx context.Context, id lease.CounterID, g, _ lease.Gen) (bool, error) {
			return s.Decrement(ctx, id, g, g)
		}
	})},
	{name: "nobody looks for the gen before", killedBy: takenDuringAudit, wrap: twist(func(x *twisted) {
		x.decPrev = func(lease.Store, context.Context, lease.CounterID, lease.Gen) (bool, error) { return false, nil }
	})},
}

// attack runs the check that must kill a mutant and returns what it noticed.
func (x mutant) attack(t *testing.T) []string {
	if i := slices.IndexFunc(proofs, func(p proof) bool { return p.says == x.killedBy }); i >= 0 {
		return show(t, proofs[i], x.wrap)
	}
	var noticed []string
	synctest.Test(t, func(*testing.T) {
		p := plan{mutant: x.wrap, slips: x.slips}
		if x.killedBy == byCrash {
			if _, err := p.crash(explored, 20); err != nil {
				noticed = []string{err.Error()}
			}
			return
		}
		i := slices.IndexFunc(explored, func(sc scene) bool { return sc.name == x.killedBy })
		if i < 0 {
			panic(fmt.Sprintf("mutant %q: there is no check %q", x.name, x.killedBy))
		}
		if f := p.explore(&explored[i], x.budget); f.err != nil {
			noticed = append([]string{f.err.Error()}, f.trace...)
		}
	})
	return noticed
}

// TestMutantsAreKilled shows that every safeguard is needed and every check can
// fail: each mutant is noticed by the check that is named for it. Those that are
// edits of the engine have a build of their own; see
// TestMutantsOfTheTextAreKilled.
func TestMutantsAreKilled(t *testing.T) {
	for _, x := range mutants {
		if x.edits != nil {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			noticed := x.attack(t)
			if len(noticed) == 0 {
				t.Fatalf("it survives %q", x.killedBy)
			}
			t.Logf("killed by %q: %s", x.killedBy, strings.SplitN(noticed[0], "\n", 2)[0])
		})
	}
}
