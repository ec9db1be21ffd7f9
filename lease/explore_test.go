package lease_test

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

const (
	exploreTTL     = 40 * time.Second
	explorePending = 20 * time.Second
	exploreMargin  = 60 * time.Second
	// exploreJump is longer than every period: a process that is paused for it
	// wakes up in another world.
	exploreJump = 61*time.Second + 500*time.Millisecond
	// exploreOp is the operation timeout: none, so that a paused process finds
	// its operation under way and not given up.
	exploreOp = 1000 * time.Hour
)

// exploreDefinition has two levels, or with a project cap of zero one.
func exploreDefinition(project, global definition.Cap) *definition.Definition {
	caps := map[definition.Level]definition.Cap{definition.Global: global}
	if project > 0 {
		caps[definition.Project] = project
	}
	return &definition.Definition{Name: "browser", Resource: "browser", Label: "browser", TTL: exploreTTL, Caps: caps}
}

var (
	projectCounter = must(lease.NewCounterID("browser", definition.Project, lease.Scope{Tenant: "t", Project: "p"}))
	globalCounter  = must(lease.NewCounterID("browser", definition.Global, lease.Scope{}))
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// scene is what is explored: who does what from which beginning.
type scene struct {
	name            string
	project, global definition.Cap
	// old is how many holders stand from before: HELD, and idle for longer than
	// their TTL where expired.
	old     int
	expired bool
	// drift is what the counters show beyond their holders.
	drift int
	// start is what stands from before where that is not enough.
	start  func(now time.Time) ([]lease.Holder, []storetest.CounterDoc)
	actors []role
	jumps  int
}

// role is one actor. Actors of one kind are alike until they begin.
type role struct {
	name string
	kind string
	pod  string // "" is a pod of its own
	do   func(ctx context.Context, m *lease.Manager, e *episode)
}

// episode is one run of a scene.
type episode struct {
	s     *scheduler
	sc    *scene
	def   *definition.Definition
	pods  map[string]*lease.Manager
	kinds map[string]string
	jumps int
	begun time.Time
	wrap  func(lease.Store) lease.Store
}

func (e *episode) request() lease.Request {
	return lease.Request{Type: "t", Definition: e.def, Tenant: "t", Project: "p", MaxWait: lease.NoWait}
}

func acquirer(name string) role {
	return role{name: name, kind: "acquirer", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		l, err := m.Acquire(ctx, e.request())
		if err != nil {
			return
		}
		e.s.forgets(ctx, "has", string(l.Ref().Token))
		_ = l.Check(ctx)
		_ = l.Release(ctx)
	}}
}

// keeper acquires and keeps.
func keeper(name string) role {
	return role{name: name, kind: "keeper", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		_, _ = m.Acquire(ctx, e.request())
	}}
}

// leaver releases a lease that stands from before.
func leaver(name string, token lease.Token) role {
	return role{name: name, kind: "leaver", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		_ = m.Attach(lease.Ref{Token: token, Type: "t", TTL: exploreTTL}).Release(ctx)
	}}
}

// user checks a lease that stands from before, and releases it.
func user(name string, token lease.Token) role {
	return role{name: name, kind: "user", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		l := m.Attach(lease.Ref{Token: token, Type: "t", TTL: exploreTTL})
		if l.Check(ctx) == nil {
			_ = l.Release(ctx)
		}
	}}
}

func reaper(name string) role {
	return role{name: name, kind: "reaper", do: func(ctx context.Context, m *lease.Manager, e *episode) { _, _ = m.ReapIdle(ctx) }}
}

func revoker(name string, token lease.Token) role {
	return role{name: name, kind: "revoker", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		_, _ = m.Revoke(ctx, token, lease.Cause{By: "operator"})
	}}
}

func accountant(name string) role {
	return role{name: name, kind: "accountant", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		e.s.goesByCounts(ctx)
		_, _ = m.ReconcilePeriodically(ctx)
	}}
}

// auditor makes a pass that begins and ends what audits it can.
func auditor(name string) role {
	return role{name: name, kind: "auditor", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		e.s.goesByCounts(ctx)
		_, _ = m.Reconcile(ctx)
	}}
}

// auditorTwice is an auditor that comes back: a margin may have passed meanwhile.
func auditorTwice(name string) role {
	return role{name: name, kind: "auditor twice", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		e.s.goesByCounts(ctx)
		_, _ = m.Reconcile(ctx)
		e.s.forgets(ctx, "second pass")
		_, _ = m.Reconcile(ctx)
	}}
}

// standing is a HELD holder that stands from before.
func standing(token lease.Token, made, seen time.Time, levels ...lease.Booking) lease.Holder {
	return lease.Holder{
		Token: token, State: lease.Held, Type: "t", Resource: "browser", Lease: "browser",
		Tenant: "t", Project: "p", Pod: "gone", TTL: exploreTTL, CreatedAt: made, LastSeenAt: seen, Levels: levels,
	}
}

func onGlobal(gen lease.Gen) lease.Booking {
	return lease.Booking{ID: globalCounter, Level: definition.Global, Gen: gen}
}

// inUse is a counter in use that a crash has left one too high, some time after
// an audit of it: two old leases, of which one is idle, and a young one.
func inUse(now time.Time) ([]lease.Holder, []storetest.CounterDoc) {
	made := now.Add(-2 * exploreMargin)
	return []lease.Holder{
			standing("old0", made, now, onGlobal("first")), standing("old1", made, made, onGlobal("second")),
			standing("young0", now.Add(-10*time.Second), now, onGlobal("third")),
		}, []storetest.CounterDoc{{
			Counter: lease.Counter{ID: globalCounter, Count: 4, Gen: "third", UpdatedAt: now}, Prev: "second", ClosedAt: made,
		}}
}

// audited is a counter in use at the end of its audit. A crash has left what is
// older than the audit one too high.
func audited(now time.Time) ([]lease.Holder, []storetest.CounterDoc) {
	made := now.Add(-2 * exploreMargin)
	return []lease.Holder{
			standing("old0", made, now, onGlobal("first")), standing("old1", made, made, onGlobal("zeroth")),
			standing("young0", now.Add(-10*time.Second), now, onGlobal("second")),
		}, []storetest.CounterDoc{{
			Counter: lease.Counter{
				ID: globalCounter, Count: 4, Gen: "second", UpdatedAt: now,
				Audit: &lease.Audit{Old: 3, OpenedAt: now.Add(-exploreMargin - time.Second)},
			},
			Prev: "first",
		}}
}

// underAudit is a counter in use whose audit has just begun. Nothing is wrong with
// it, so that whatever goes wrong is seen at once.
func underAudit(now time.Time) ([]lease.Holder, []storetest.CounterDoc) {
	made := now.Add(-2 * exploreMargin)
	return []lease.Holder{
			standing("old0", made, now, onGlobal("zeroth")), standing("young0", now.Add(-10*time.Second), now, onGlobal("first")),
		}, []storetest.CounterDoc{{
			Counter: lease.Counter{ID: globalCounter, Count: 2, Gen: "second", UpdatedAt: now, Audit: &lease.Audit{Old: 2, OpenedAt: now}},
			Prev:    "first",
		}}
}

// auditedQuiet is audited, and nothing has changed for a while.
func auditedQuiet(now time.Time) ([]lease.Holder, []storetest.CounterDoc) {
	hs, cs := audited(now)
	cs[0].UpdatedAt = now.Add(-2 * exploreMargin)
	return hs, cs
}

var explored = []scene{
	{
		name: "three first users of a cap of one", project: 1, global: 2, jumps: 1,
		actors: []role{acquirer("a0"), acquirer("a1"), acquirer("a2"), reaper("r0"), reaper("r1"), accountant("x0")},
	},
	{
		name: "an idle holder, two reapers and three who want its slot", project: 1, global: 1, old: 1, expired: true, jumps: 1,
		actors: []role{keeper("a0"), keeper("a1"), keeper("a2"), reaper("r0"), reaper("r1"), accountant("x0")},
	},
	{
		name: "a release beside a reconcile pass and two who keep", project: 1, global: 2, old: 1, jumps: 1,
		actors: []role{leaver("l0", "old0"), keeper("a1"), keeper("a2"), reaper("r0"), accountant("x0")},
	},
	{
		name: "a release beside the correction of a counter that a crash left too high", project: 3, global: 3, old: 2, drift: 1, jumps: 1,
		actors: []role{leaver("l0", "old0"), keeper("a1"), keeper("a2"), reaper("r0"), accountant("x0")},
	},
	{
		name: "the last use of an idle holder beside its reap and revocation", project: 1, global: 1, old: 1, expired: true,
		actors: []role{user("u0", "old0"), revoker("v0", "old0"), keeper("a2"), reaper("r0"), reaper("r1"), accountant("x0")},
	},
	{
		name: "the beginning of an audit beside those who take and give", global: 4, start: inUse, jumps: 1,
		actors: []role{leaver("l0", "old0"), leaver("l1", "young0"), keeper("a0"), auditorTwice("x0"), auditor("x1")},
	},
	{
		name: "an audit under way beside those who take and give", global: 3, start: underAudit, jumps: 1,
		actors: []role{leaver("l0", "old0"), leaver("l1", "young0"), acquirer("a0"), keeper("a1"), auditor("x0")},
	},
	{
		name: "the end of an audit beside those who take and give", global: 5, start: audited,
		actors: []role{leaver("l0", "old0"), leaver("l1", "young0"), acquirer("a0"), reaper("r0"), auditor("x0"), auditor("x1")},
	},
	{
		name: "the correction of a quiet counter that is under audit", global: 5, start: auditedQuiet,
		actors: []role{leaver("l0", "old0"), leaver("l1", "young0"), acquirer("a0"), reaper("r0"), auditor("x0"), accountant("x1")},
	},
}

// plan is what an exploration runs with.
type plan struct {
	mutant func(lease.Store) lease.Store
	slips  storetest.Slips
	all    bool
	audits *audits // what is counted of them; may be nil
}

func (p plan) begin(sc *scene) *episode {
	mem := storetest.NewMemory(nil)
	mem.Slips = p.slips
	s := newScheduler(mem)
	s.audits = p.audits
	s.caps[projectCounter], s.caps[globalCounter] = int(sc.project), int(sc.global)
	def := exploreDefinition(sc.project, sc.global)
	s.levels = len(def.Caps)
	e := &episode{s: s, sc: sc, def: def, jumps: sc.jumps, begun: time.Now(), wrap: p.mutant, kinds: map[string]string{}, pods: map[string]*lease.Manager{}}
	for _, r := range sc.actors {
		e.kinds[r.name] = r.kind
	}
	switch {
	case sc.start != nil:
		mem.Put(sc.start(time.Now()))
	case sc.old > 0 || sc.drift > 0:
		made := time.Now().Add(-2 * exploreMargin)
		seen := time.Now()
		if sc.expired {
			seen = made
		}
		var hs []lease.Holder
		for i := range sc.old {
			hs = append(hs, standing(lease.Token("old"+strconv.Itoa(i)), made, seen,
				lease.Booking{ID: projectCounter, Level: definition.Project, Gen: "first"}, onGlobal("first")))
		}
		n := sc.old + sc.drift
		mem.Put(hs, []storetest.CounterDoc{
			{Counter: lease.Counter{ID: projectCounter, Count: n, Gen: "first", UpdatedAt: made}},
			{Counter: lease.Counter{ID: globalCounter, Count: n, Gen: "first", UpdatedAt: made}},
		})
	}
	// Ids count up over all actors: who comes first has the first, whoever it is.
	tokens, gens := 0, 0
	for _, r := range sc.actors {
		pod := r.pod
		ctx := s.as(r.name)
		if pod == "" {
			pod = r.name
		} else {
			ctx = s.asPod(pod)
		}
		if e.pods[pod] != nil {
			continue
		}
		store := lease.Store(&steppedStore{Store: mem, s: s, all: p.all})
		if p.mutant != nil {
			store = p.mutant(store)
		}
		m, err := lease.NewStepped(lease.Options{
			Store: store, Pod: lease.Pod{ID: lease.PodID(pod), Endpoint: pod},
			OpTimeout: exploreOp, ReconcileSafety: exploreMargin, PendingTTL: explorePending,
		}, func() lease.Token {
			tokens++
			return lease.Token("t" + strconv.Itoa(tokens))
		}, func() lease.Gen {
			gens++
			return lease.Gen("g" + strconv.Itoa(gens))
		}, ctx)
		if err != nil {
			panic(err)
		}
		m.Register("t", recorder{s})
		e.pods[pod] = m
	}
	for _, r := range sc.actors {
		m := e.pods[cmp.Or(r.pod, r.name)]
		s.launch(r.name, func(ctx context.Context) { r.do(ctx, m, e) })
	}
	return e
}

// end lets everybody die or finish and judges what remains (I6, I9): TTL,
// margin and two sweeps later every counter equals its holders, and what nobody
// books is gone.
func (e *episode) end() error {
	s := e.s
	s.pass()
	synctest.Wait()
	if s.broken != nil {
		return s.broken
	}
	ctx := s.as("sweeper")
	store := lease.Store(&steppedStore{Store: s.mem, s: s})
	if e.wrap != nil {
		store = e.wrap(store)
	}
	n := 0
	m := must(lease.NewStepped(lease.Options{
		Store: store, Pod: lease.Pod{ID: "sweeper", Endpoint: "sweeper"}, OpTimeout: exploreOp, ReconcileSafety: exploreMargin, PendingTTL: explorePending,
	}, func() lease.Token { n++; return lease.Token("s" + strconv.Itoa(n)) },
		func() lease.Gen { n++; return lease.Gen("s" + strconv.Itoa(n)) }, ctx))
	m.Register("t", recorder{s})
	defer m.Halt()
	for range 2 {
		time.Sleep(exploreTTL + exploreMargin + time.Second)
		if _, err := m.Sweep(ctx); err != nil {
			return fmt.Errorf("I6: %w", err)
		}
		m.Settle()
		if _, err := m.Reconcile(ctx); err != nil {
			return fmt.Errorf("I6: %w", err)
		}
	}
	if s.broken != nil {
		return s.broken
	}
	for _, h := range s.mem.AllHolders() {
		if h.State != lease.Revoked {
			return fmt.Errorf("I6: holder %s is still %s", h.Token, h.State)
		}
		if h.Revocation.HandledAt.IsZero() {
			return fmt.Errorf("I9: the mark of %s is still unhandled", h.Token)
		}
	}
	for _, c := range s.mem.AllCounters() {
		return fmt.Errorf("I6: nobody books counter %s and it is there, at %d", c.ID, c.Count)
	}
	for t := range s.taken {
		if s.reached[t] == 0 {
			return fmt.Errorf("I9: %s was taken away and its handler never ran", t)
		}
	}
	return nil
}

// abort gives a run up that leads nowhere new.
func (e *episode) abort() {
	e.s.stop()
	synctest.Wait()
	for _, m := range e.pods {
		m.Halt()
	}
}

// option is what may happen next.
type option struct {
	op   *parkedOp // nil: time jumps
	cost int
}

// options are the operations that may go next under the preemption budget. The
// running actor goes on for free as long as it can; of its own parallel
// operations in their order. Another order, another actor before it is done
// and a jump of time cost one each. Actors of one kind that have not
// begun are alike, so only the first of them may begin.
func (e *episode) options(current string, budget int) []option {
	ops := e.s.ready()
	out := make([]option, 0, len(ops)+1)
	cost := 0
	for _, op := range ops {
		if op.actor.name != current {
			continue
		}
		if strings.HasPrefix(op.label, "create") {
			return append(out, option{op: op}) // its begin, in one with its start
		}
		if cost <= budget {
			out = append(out, option{op: op, cost: cost})
		}
		cost = 1
	}
	if cost > budget {
		return out
	}
	var begun [8]string
	kinds := begun[:0]
	for _, op := range ops {
		if op.actor.name == current {
			continue
		}
		if op.label == "start" {
			kind := e.kinds[op.actor.name]
			if slices.Contains(kinds, kind) {
				continue
			}
			kinds = append(kinds, kind)
		}
		out = append(out, option{op: op, cost: cost})
	}
	if e.jumps > 0 && len(ops) > 0 && budget > 0 {
		out = append(out, option{cost: 1})
	}
	return out
}

// key names a state: the store's, what each actor has seen, and who runs.
func (e *episode) key(current string, h *maphash.Hash) uint64 {
	h.Reset()
	b := make([]byte, 0, 512)
	// Gens are compared for equality only: they are named in the order in which
	// they appear here.
	var names [16]lease.Gen
	known := names[:0]
	gen := func(g lease.Gen) {
		i := slices.Index(known, g)
		if i < 0 {
			i = len(known)
			known = append(known, g)
		}
		b = append(b, 'g', byte('a'+i))
	}
	num := func(n int64) { b = strconv.AppendInt(append(b, '|'), n, 36) }
	at := func(t time.Time) { num(int64(t.Sub(e.begun))) }
	for _, x := range e.s.mem.AllHolders() {
		b = append(append(b, x.Token...), x.State...)
		at(x.CreatedAt) // it decides whether a release reads the gens
		at(x.LastSeenAt)
		num(int64(x.TTL))
		b = append(b, x.Pod...)
		for _, l := range x.Levels {
			b = append(b, l.Level...)
			gen(l.Gen)
		}
		if x.Revocation != nil {
			b = append(b, x.Revocation.Reason...)
			if !x.Revocation.HandledAt.IsZero() {
				b = append(b, '!')
			}
		}
	}
	for _, c := range e.s.mem.CounterDocs() {
		b = append(append(b, c.ID...), '=')
		gen(c.Gen)
		num(int64(c.Count))
		at(c.UpdatedAt)
		if c.Prev != "" {
			b = append(b, 'p')
			gen(c.Prev)
			at(c.ClosedAt)
		}
		if c.Audit != nil {
			b = append(b, 'a')
			num(int64(c.Audit.Old))
			at(c.Audit.OpenedAt)
		}
	}
	at(time.Now())
	// Who is done has left its traces in the store; actors of one kind with the
	// same past are the same.
	var buf [16]actorState
	states := buf[:0]
	for _, r := range e.sc.actors {
		a := e.s.actors[r.name]
		st := actorState{kind: r.kind, hist: a.hist, running: r.name == current, gens: a.gens, lists: a.lists}
		if a.done && !e.s.parks(a) {
			st = actorState{kind: "done"}
		}
		states = append(states, st)
	}
	slices.SortFunc(states, func(a, b actorState) int {
		return cmp.Or(strings.Compare(a.kind, b.kind), cmp.Compare(a.hist, b.hist))
	})
	for _, st := range states {
		b = append(b, st.kind...)
		num(int64(st.hist))
		for _, id := range []lease.CounterID{projectCounter, globalCounter} {
			if g, ok := st.gens[id]; ok {
				gen(g)
			}
			if g, ok := st.lists[id]; ok {
				b = append(b, 'l')
				gen(g)
			}
		}
		if st.running {
			b = append(b, '<')
		}
	}
	_, _ = h.Write(b)
	return h.Sum64()
}

type actorState struct {
	kind    string
	hist    uint64
	running bool
	gens    map[lease.CounterID]lease.Gen
	lists   map[lease.CounterID]lease.Gen
}

// found is what an exploration came to.
type found struct {
	runs, ends, states, steps int
	err                       error
	trace                     []string
}

// explore runs every schedule of a scene with at most budget preemptions, each
// distinct state once, until one breaks an invariant.
func (p plan) explore(sc *scene, budget int) found {
	var f found
	seen := map[uint64]int8{} // state → largest budget it was left with
	var hash maphash.Hash
	todo := [][]uint16{nil}
	for len(todo) > 0 {
		prefix := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		f.runs++
		e := p.begin(sc)
		left, current := budget, ""
		path := append([]uint16(nil), prefix...)
		pruned := false
		for i := 0; ; i++ {
			opts := e.options(current, left)
			if len(opts) == 0 {
				break
			}
			choice := 0
			if i < len(prefix) {
				choice = int(prefix[i])
			} else {
				k := e.key(current, &hash)
				if best, ok := seen[k]; ok && int(best) > left {
					pruned = true
					break
				}
				seen[k] = int8(left + 1)
				for alt := len(opts) - 1; alt > 0; alt-- {
					todo = append(todo, append(append([]uint16(nil), path...), uint16(alt)))
				}
				path = append(path, 0)
			}
			o := opts[choice]
			left -= o.cost
			if o.op == nil {
				e.jump()
				current = "time"
			} else {
				current = o.op.actor.name
				e.s.resume(o.op, applied)
			}
			f.steps++
			if i < len(prefix)-1 {
				continue // judged when it was first run
			}
			synctest.Wait()
			if err := e.s.judge(); err != nil {
				f.err, f.trace = err, p.replay(sc, path[:i+1], budget)
				e.abort()
				f.states = len(seen)
				return f
			}
		}
		if !pruned {
			f.ends++
			if err := e.end(); err != nil {
				f.err, f.trace = err, p.replay(sc, path, budget)
				e.abort()
				f.states = len(seen)
				return f
			}
		}
		e.abort()
	}
	f.states = len(seen)
	return f
}

func (e *episode) jump() {
	e.jumps--
	if e.s.tracing {
		e.s.trace = append(e.s.trace, "time jumps by "+exploreJump.String())
	}
	time.Sleep(exploreJump)
	synctest.Wait()
}

// replay runs one schedule again and writes down what happened.
func (p plan) replay(sc *scene, path []uint16, budget int) []string {
	e := p.begin(sc)
	defer e.abort()
	e.s.tracing = true
	left, current := budget, ""
	for _, choice := range path {
		opts := e.options(current, left)
		if int(choice) >= len(opts) {
			return append(e.s.trace, "(the replay took another way)")
		}
		o := opts[choice]
		left -= o.cost
		if o.op == nil {
			e.jump()
			current = "time"
			continue
		}
		current = o.op.actor.name
		e.s.resume(o.op, applied)
	}
	return e.s.trace
}

// preemptions is what LEASE_PREEMPTIONS says (CI: 2, make explore: 3), else 1,
// and none with the race detector, which is there for the code and not for the
// schedules: one operation runs at a time.
func preemptions(t *testing.T) int {
	s := os.Getenv("LEASE_PREEMPTIONS")
	switch {
	case raceEnabled:
		return 0
	case s == "":
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestExploreEverySchedule(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	budget := preemptions(t)
	for i := range explored {
		sc := &explored[i]
		t.Run(sc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := plan{}.explore(sc, budget)
				t.Logf("%d preemptions: %d runs, %d to their end, %d states, %d steps", budget, f.runs, f.ends, f.states, f.steps)
				if f.err != nil {
					t.Fatalf("%v\n%s", f.err, strings.Join(f.trace, "\n"))
				}
			})
		})
	}
}
