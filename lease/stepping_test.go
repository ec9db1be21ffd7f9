package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// A scheduler runs the real engine step by step: every actor is a goroutine of
// the engine that parks at each store operation until the scheduler lets that
// one operation happen. It runs in a synctest bubble, whose Wait tells when all
// actors are parked, asleep or done.
type scheduler struct {
	mem *storetest.Memory

	mu      sync.Mutex
	parked  []*parkedOp
	actors  map[string]*actor
	off     bool // operations pass without parking
	stopped bool // every operation fails: the run is being given up
	late    []*lateOp
	broken  error
	credits map[credit]int
	reached map[lease.Token]int // handler runs
	taken   map[lease.Token]bool
	left    map[lease.Token]bool
	steps   int
	audits  *audits
	trace   []string
	tracing bool
	caps    map[lease.CounterID]int
	levels  int
}

// audits are those that runs have begun and ended.
type audits struct{ begun, ended atomic.Int64 }

type actor struct {
	mu    sync.Mutex
	name  string
	hist  uint64                        // hash of what it has seen
	asked map[lease.CounterID]uint64    // the part of it that asked for a slot in vain
	gens  map[lease.CounterID]lease.Gen // those that it knows
	lists map[lease.CounterID]lease.Gen // those of the levels that it has to give back
	// counts says that it goes by what it reads of a counter, not by its gen alone.
	counts bool
	dead   bool
	done   bool
}

type parkedOp struct {
	actor *actor
	label string
	go_   chan verdict
}

type lateOp struct {
	label string
	apply func()
}

// verdict is how an operation goes.
type verdict int

const (
	applied   verdict = iota
	dieBefore         // the process ends before the operation reaches the store
	dieAfter          // the process ends right after it
	replyLost         // the operation is applied and its answer is lost
	applyLate         // the answer is lost and the operation is applied some time later
)

func (v verdict) String() string {
	return [...]string{"applied", "process dies before", "process dies after", "reply lost", "applied late"}[v]
}

type credit struct {
	actor string
	id    lease.CounterID
}

var (
	errStopped = errors.New("the run is given up")
	errDied    = errors.New("the process has died")
	errLost    = errors.New("the reply was lost")
)

type actorKey struct{}

func newScheduler(mem *storetest.Memory) *scheduler {
	return &scheduler{
		mem: mem, actors: map[string]*actor{}, credits: map[credit]int{},
		reached: map[lease.Token]int{}, taken: map[lease.Token]bool{}, left: map[lease.Token]bool{},
		caps: map[lease.CounterID]int{},
	}
}

// as is a context whose store operations are those of the named actor.
func (s *scheduler) as(name string) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.actors[name] == nil {
		s.actors[name] = &actor{name: name, asked: map[lease.CounterID]uint64{}, gens: map[lease.CounterID]lease.Gen{}, lists: map[lease.CounterID]lease.Gen{}}
	}
	return context.WithValue(context.Background(), actorKey{}, s.actors[name])
}

// asPod is the context of what a pod does for nobody in particular.
func (s *scheduler) asPod(pod string) context.Context {
	ctx := s.as("pod " + pod)
	ctx.Value(actorKey{}).(*actor).done = true // nobody waits for it
	return ctx
}

// launch runs f as an actor.
func (s *scheduler) launch(name string, f func(ctx context.Context)) {
	ctx := s.as(name)
	a := ctx.Value(actorKey{}).(*actor)
	go func() {
		// Nobody has an id before the scheduler says who begins.
		if s.step(ctx, "start", func(*actor) (string, error) { return "", nil }) == nil {
			f(ctx)
		}
		s.mu.Lock()
		a.done = true
		s.mu.Unlock()
	}()
}

// step parks the caller's goroutine until the scheduler decides how its
// operation goes. apply does it and says what came of it.
func (s *scheduler) step(ctx context.Context, label string, apply func(a *actor) (result string, err error)) error {
	a := ctx.Value(actorKey{}).(*actor)
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return errStopped
	}
	if a.dead {
		s.mu.Unlock()
		return errDied
	}
	if s.off {
		s.mu.Unlock()
		a.mu.Lock() // its goroutines run side by side now
		defer a.mu.Unlock()
		_, err := apply(a)
		return err
	}
	op := &parkedOp{actor: a, label: label, go_: make(chan verdict, 1)}
	s.parked = append(s.parked, op)
	s.mu.Unlock()

	v := <-op.go_
	s.mu.Lock()
	stopped, dead := s.stopped, a.dead
	if v == dieBefore || v == dieAfter {
		a.dead = true
	}
	s.mu.Unlock()
	switch {
	case stopped:
		return errStopped
	case dead, v == dieBefore:
		return errDied
	case v == applyLate:
		s.mu.Lock()
		s.late = append(s.late, &lateOp{label: label, apply: func() { _, _ = apply(a) }})
		s.mu.Unlock()
		a.saw(label, "lost")
		return errLost
	}
	result, err := apply(a)
	switch v {
	case dieAfter:
		return errDied
	case replyLost:
		a.saw(label, "lost")
		return errLost
	}
	a.saw(label, result)
	return err
}

// saw adds an operation and its result to what the actor has seen. Its
// goroutines are a function of it; the order does not matter, since operations
// that one of them does one after another have different names. Who reads a
// counter and tries again has one goroutine, whose order does matter.
func (a *actor) saw(parts ...string) {
	if a.counts {
		a.hist *= 1099511628211
	}
	a.hist += factOf(parts...)
}

func factOf(parts ...string) uint64 {
	h := uint64(14695981039346656037)
	for _, p := range parts {
		for i := range len(p) {
			h = (h ^ uint64(p[i])) * 1099511628211
		}
		h = (h ^ '|') * 1099511628211
	}
	h ^= h >> 29
	return h * 0xbf58476d1ce4e5b9
}

// forgets sets what an actor has seen to one fact, where nothing else of it
// matters any more.
func (s *scheduler) forgets(ctx context.Context, parts ...string) {
	a := ctx.Value(actorKey{}).(*actor)
	a.hist = factOf(parts...)
	clear(a.gens)
	clear(a.lists)
}

// goesByCounts says that an actor decides by what it reads of a counter.
func (s *scheduler) goesByCounts(ctx context.Context) { ctx.Value(actorKey{}).(*actor).counts = true }

// ready waits until every actor is parked, asleep or done and returns the
// parked operations in a fixed order.
func (s *scheduler) ready() []*parkedOp {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.parked, func(a, b *parkedOp) int {
		if c := strings.Compare(a.actor.name, b.actor.name); c != 0 {
			return c
		}
		return strings.Compare(a.label, b.label)
	})
	return slices.Clone(s.parked)
}

// parks reports whether a goroutine of a is parked.
func (s *scheduler) parks(a *actor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.parked, func(op *parkedOp) bool { return op.actor == a })
}

// resume lets one operation go.
func (s *scheduler) resume(op *parkedOp, v verdict) {
	s.mu.Lock()
	s.parked = slices.DeleteFunc(s.parked, func(o *parkedOp) bool { return o == op })
	s.steps++
	if s.tracing {
		how := ""
		if v != applied {
			how = " (" + v.String() + ")"
		}
		s.trace = append(s.trace, op.actor.name+": "+op.label+how)
	}
	s.mu.Unlock()
	op.go_ <- v
}

// alive reports whether an actor has not finished.
func (s *scheduler) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.actors {
		if !a.done {
			return true
		}
	}
	return false
}

// stop gives the run up: every operation fails at once.
func (s *scheduler) stop() {
	s.mu.Lock()
	s.stopped = true
	ops := s.parked
	s.parked = nil
	s.mu.Unlock()
	for _, op := range ops {
		op.go_ <- applied
	}
}

// pass lets everything run freely from now on.
func (s *scheduler) pass() {
	s.mu.Lock()
	s.off = true
	ops := s.parked
	s.parked = nil
	late := s.late
	s.late = nil
	s.mu.Unlock()
	for _, op := range ops {
		op.go_ <- applied
	}
	for _, l := range late {
		l.apply()
	}
}

// applyLateOp does one of the operations that were applied late.
func (s *scheduler) applyLateOp() {
	s.mu.Lock()
	l := s.late[0]
	s.late = s.late[1:]
	if s.tracing {
		s.trace = append(s.trace, "late: "+l.label)
	}
	s.mu.Unlock()
	l.apply()
}

func (s *scheduler) breaks(format string, args ...any) {
	if s.broken == nil {
		s.broken = fmt.Errorf(format, args...)
	}
}

// judge looks at the store between two steps (I1, I2, I3, I5). While an audit is
// open I1 holds for what is older than it and for what is newer.
func (s *scheduler) judge() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	holders, counters := s.mem.AllHolders(), s.mem.AllCounters()
	count := make(map[lease.CounterID]int, len(counters))
	var audited []lease.Counter
	for _, c := range counters {
		count[c.ID] = c.Count
		if c.Audit != nil {
			audited = append(audited, c)
		}
		if c.Count < 0 {
			s.breaks("I5: counter %s is %d", c.ID, c.Count)
		}
	}
	booked, held := map[lease.CounterID]int{}, map[lease.CounterID]int{}
	for _, h := range holders {
		if h.State == lease.Revoked {
			continue
		}
		for _, b := range h.Levels {
			booked[b.ID]++
			if h.State == lease.Held {
				held[b.ID]++
			}
		}
		if h.State == lease.Held && len(h.Levels) != s.levels {
			s.breaks("I3: holder %s is HELD with %d of %d levels", h.Token, len(h.Levels), s.levels)
		}
	}
	for _, c := range audited {
		old := 0
		for _, h := range holders {
			if h.State != lease.Revoked && slices.ContainsFunc(h.Levels, func(b lease.Booking) bool { return b.ID == c.ID && b.Gen != c.Gen }) {
				old++
			}
		}
		if c.Audit.Old < old || c.Count-c.Audit.Old < booked[c.ID]-old {
			s.breaks("I1: counter %s is %d with %d from before its audit, and %d and %d holders book them", c.ID, c.Count, c.Audit.Old, booked[c.ID], old)
		}
	}
	for id, n := range booked {
		if count[id] < n {
			s.breaks("I1: counter %s is %d and %d holders book it", id, count[id], n)
		}
		if held[id] > s.caps[id] {
			s.breaks("I2: %d holders are HELD on %s, whose cap is %d", held[id], id, s.caps[id])
		}
	}
	return s.broken
}

// won gives the actor whose delete or mark matched the right to decrement each
// listed counter once (I4).
func (s *scheduler) won(a *actor, h lease.Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range h.Levels {
		s.credits[credit{a.name, b.ID}]++
		a.lists[b.ID] = b.Gen
	}
}

func (s *scheduler) spends(a *actor, id lease.CounterID, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := credit{a.name, id}
	if s.credits[c] -= n; s.credits[c] < 0 {
		s.breaks("I4: %s decrements %s without having won a holder that lists it", a.name, id)
	}
}

// steppedStore parks each operation that the caps depend on. The others pass.
type steppedStore struct {
	lease.Store // what lies below: the memory, or a mutant around it
	s           *scheduler
	all         bool // park reads and marks of handlers, too
}

func (x *steppedStore) CreateHolder(ctx context.Context, h lease.Holder) error {
	return x.s.step(ctx, "create "+string(h.Token), func(*actor) (string, error) {
		err := x.Store.CreateHolder(context.Background(), h)
		return fmt.Sprint(err), err
	})
}

func (x *steppedStore) PushLevel(ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (ok bool, err error) {
	err = x.s.step(ctx, "push "+string(t)+" "+string(b.Level), func(*actor) (string, error) {
		ok, err = x.Store.PushLevel(context.Background(), t, b, maxAge)
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) PushLast(ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (ok bool, err error) {
	err = x.s.step(ctx, "push last "+string(t), func(*actor) (string, error) {
		ok, err = x.Store.PushLast(context.Background(), t, b, others, ttl, maxAge)
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) DeleteHolder(ctx context.Context, t lease.Token) (h lease.Holder, ok bool, err error) {
	var got lease.Holder
	err = x.s.step(ctx, "delete "+string(t), func(a *actor) (string, error) {
		var derr error
		got, ok, derr = x.Store.DeleteHolder(context.Background(), t)
		if ok {
			x.s.won(a, got)
			x.s.mu.Lock()
			x.s.left[t] = true
			x.s.mu.Unlock()
		}
		return fmt.Sprint(len(got.Levels), ok, derr), derr
	})
	if err != nil {
		return lease.Holder{}, false, err
	}
	return got, ok, nil
}

func (x *steppedStore) Touch(ctx context.Context, t lease.Token, pod lease.PodID) (ok bool, err error) {
	err = x.s.step(ctx, "touch "+string(t), func(*actor) (string, error) {
		ok, err = x.Store.Touch(context.Background(), t, pod)
		x.s.mu.Lock()
		if ok && x.s.taken[t] {
			x.s.breaks("I8: a check of %s is ok after its reap", t)
		}
		x.s.mu.Unlock()
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (h lease.Holder, ok bool, err error) {
	var got lease.Holder
	err = x.s.step(ctx, "mark "+string(t)+" "+string(m.Reason), func(a *actor) (string, error) {
		before, _, _ := x.s.mem.Holder(context.Background(), t)
		var derr error
		got, ok, derr = x.Store.MarkHolder(context.Background(), t, m)
		if ok {
			x.s.won(a, got)
			x.s.mu.Lock()
			if before.State == lease.Held {
				x.s.taken[t] = true
			}
			if m.Reason == lease.ReasonIdle && !before.LastSeenAt.Add(before.TTL).Before(time.Now()) {
				x.s.breaks("I7: %s was idle-reaped within its TTL", t)
			}
			x.s.mu.Unlock()
		}
		return fmt.Sprint(got.State, len(got.Levels), ok, derr), derr
	})
	if err != nil {
		return lease.Holder{}, false, err
	}
	return got, ok, nil
}

func (x *steppedStore) Increment(ctx context.Context, id lease.CounterID, limit definition.Cap) (gen lease.Gen, n int, ok bool, err error) {
	err = x.s.step(ctx, "increment "+string(id), func(a *actor) (string, error) {
		var ierr error
		gen, n, ok, ierr = x.Store.Increment(context.Background(), id, limit)
		if ok { // how often it had to ask does not matter any more
			a.hist -= a.asked[id]
			delete(a.asked, id)
			a.gens[id] = gen
			return "yes", ierr // nor how many there are
		}
		a.asked[id] += factOf("increment "+string(id), "no")
		return "no", ierr
	})
	if err != nil {
		return "", 0, false, err
	}
	return gen, n, ok, nil
}

func (x *steppedStore) EnsureCounter(ctx context.Context, id lease.CounterID, gen lease.Gen) error {
	return x.s.step(ctx, "ensure "+string(id), func(a *actor) (string, error) {
		a.asked[id] += factOf("ensure "+string(id), "")
		return "", x.Store.EnsureCounter(context.Background(), id, gen)
	})
}

func (x *steppedStore) Decrement(ctx context.Context, id lease.CounterID, gen, listed lease.Gen) (ok bool, err error) {
	return x.decrement(ctx, "decrement ", id, func() (bool, error) { return x.Store.Decrement(context.Background(), id, gen, listed) })
}

func (x *steppedStore) DecrementPrev(ctx context.Context, id lease.CounterID, listed lease.Gen) (ok bool, err error) {
	return x.decrement(ctx, "decrement prev ", id, func() (bool, error) { return x.Store.DecrementPrev(context.Background(), id, listed) })
}

// decrement lets an actor spend what it has won. Where nothing was found it has
// spent nothing, and may look elsewhere.
func (x *steppedStore) decrement(ctx context.Context, label string, id lease.CounterID, do func() (bool, error)) (ok bool, err error) {
	x.s.spends(ctx.Value(actorKey{}).(*actor), id, 1)
	err = x.s.step(ctx, label+string(id), func(a *actor) (string, error) {
		_, existed := counterOf(x.s.mem, id)
		ok, err = do()
		if !ok && err == nil {
			x.s.spends(a, id, -1)
		}
		if ok || strings.HasSuffix(label, "prev ") {
			delete(a.lists, id)
		}
		if _, exists := counterOf(x.s.mem, id); exists && !existed {
			x.s.mu.Lock()
			x.s.breaks("I5: a decrement made the counter %s", id)
			x.s.mu.Unlock()
		}
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func counterOf(m *storetest.Memory, id lease.CounterID) (lease.Counter, bool) {
	cs, _ := m.Counters(context.Background(), []lease.CounterID{id})
	if len(cs) == 0 {
		return lease.Counter{}, false
	}
	return cs[0], true
}

func (x *steppedStore) Counters(ctx context.Context, ids []lease.CounterID) (cs []lease.Counter, err error) {
	err = x.s.step(ctx, fmt.Sprint("read ", ids), func(a *actor) (string, error) {
		var rerr error
		cs, rerr = x.Store.Counters(context.Background(), ids)
		for _, id := range ids {
			delete(a.gens, id)
		}
		result := ""
		for _, c := range cs {
			a.gens[c.ID] = c.Gen // a release and a reap look at nothing else
			if a.counts {
				result += fmt.Sprint(c.ID, c.Count, auditOf(c))
			}
		}
		return result, rerr
	})
	if err != nil {
		return nil, err
	}
	return cs, nil
}

func auditOf(c lease.Counter) string {
	if c.Audit == nil {
		return ""
	}
	return fmt.Sprint("audit ", c.Audit.Old)
}

func (x *steppedStore) Booked(ctx context.Context, ids []lease.CounterID) (n map[lease.CounterID]int, err error) {
	err = x.s.step(ctx, "booked", func(*actor) (string, error) {
		var rerr error
		n, rerr = x.Store.Booked(context.Background(), ids)
		return fmt.Sprint(n, rerr), rerr
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (x *steppedStore) ListCounters(ctx context.Context, resource string, after lease.CounterID, limit int) (cs []lease.CounterAge, err error) {
	if after != "" { // the end of a listing that fits one page
		return x.Store.ListCounters(context.Background(), resource, after, limit)
	}
	err = x.s.step(ctx, "list counters", func(a *actor) (string, error) {
		var rerr error
		cs, rerr = x.Store.ListCounters(context.Background(), resource, after, limit)
		result := ""
		for _, c := range cs {
			a.gens[c.ID] = c.Gen
			result += fmt.Sprint(c.ID, c.Count, c.Age, auditOf(c.Counter), c.AuditAge)
		}
		return result, rerr
	})
	if err != nil {
		return nil, err
	}
	return cs, nil
}

func (x *steppedStore) CorrectCounter(ctx context.Context, was lease.Counter, count int, gen lease.Gen, margin time.Duration) (ok bool, err error) {
	err = x.s.step(ctx, "correct "+string(was.ID), func(*actor) (string, error) {
		ok, err = x.Store.CorrectCounter(context.Background(), was, count, gen, margin)
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) RemoveCounter(ctx context.Context, was lease.Counter, margin time.Duration) (ok bool, err error) {
	err = x.s.step(ctx, "remove "+string(was.ID), func(*actor) (string, error) {
		ok, err = x.Store.RemoveCounter(context.Background(), was, margin)
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) OpenAudit(ctx context.Context, was lease.Counter, gen lease.Gen, margin time.Duration) (ok bool, err error) {
	err = x.s.step(ctx, "open audit "+string(was.ID), func(*actor) (string, error) {
		if ok, err = x.Store.OpenAudit(context.Background(), was, gen, margin); ok && x.s.audits != nil {
			x.s.audits.begun.Add(1)
		}
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) BookedBefore(ctx context.Context, id lease.CounterID, gen lease.Gen) (n int, err error) {
	err = x.s.step(ctx, "booked before "+string(id), func(*actor) (string, error) {
		var rerr error
		n, rerr = x.Store.BookedBefore(context.Background(), id, gen)
		return fmt.Sprint(n, rerr), rerr
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (x *steppedStore) CloseAudit(ctx context.Context, was lease.Counter, booked int, gen lease.Gen, margin time.Duration) (ok bool, err error) {
	err = x.s.step(ctx, "close audit "+string(was.ID), func(*actor) (string, error) {
		if ok, err = x.Store.CloseAudit(context.Background(), was, booked, gen, margin); ok && x.s.audits != nil {
			x.s.audits.ended.Add(1)
		}
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) Expired(ctx context.Context, resource string, grace time.Duration, limit int) (hs []lease.Holder, err error) {
	err = x.s.step(ctx, "expired", func(*actor) (string, error) {
		var rerr error
		hs, rerr = x.Store.Expired(context.Background(), resource, grace, limit)
		return fmt.Sprint(tokensOf(hs), rerr), rerr
	})
	if err != nil {
		return nil, err
	}
	return hs, nil
}

func tokensOf(hs []lease.Holder) string {
	var b strings.Builder
	for _, h := range hs {
		fmt.Fprintf(&b, "%s:%s:%d ", h.Token, h.State, len(h.Levels))
	}
	return b.String()
}

func (x *steppedStore) MarkHandled(ctx context.Context, t lease.Token) (ok bool, err error) {
	if !x.all {
		if a := ctx.Value(actorKey{}).(*actor); a.dead {
			return false, errDied
		}
		return x.Store.MarkHandled(context.Background(), t)
	}
	err = x.s.step(ctx, "handled "+string(t), func(*actor) (string, error) {
		ok, err = x.Store.MarkHandled(context.Background(), t)
		return fmt.Sprint(ok, err), err
	})
	return ok && err == nil, err
}

func (x *steppedStore) Unhandled(ctx context.Context, limit int) (hs []lease.Holder, err error) {
	if !x.all {
		return x.Store.Unhandled(context.Background(), limit)
	}
	err = x.s.step(ctx, "unhandled", func(*actor) (string, error) {
		var rerr error
		hs, rerr = x.Store.Unhandled(context.Background(), limit)
		return fmt.Sprint(tokensOf(hs), rerr), rerr
	})
	if err != nil {
		return nil, err
	}
	return hs, nil
}

func (x *steppedStore) AddEvent(context.Context, lease.Event) error { return nil }

// recorder is a handler that notes which tokens reached it.
type recorder struct{ s *scheduler }

func (r recorder) OnRevoked(ctx context.Context, h lease.Holder) error {
	if a, ok := ctx.Value(actorKey{}).(*actor); ok && a.dead {
		return errDied
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.reached[h.Token]++
	if r.s.left[h.Token] {
		r.s.breaks("I9: the handler ran for %s, which was released", h.Token)
	}
	return nil
}
