package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// fault says how the k-th operation of a run goes wrong.
type fault struct {
	at  int
	how verdict
}

// drive runs one schedule that rng chooses, with at most one planned fault and,
// with a chance per operation, others. It judges after every step and at the
// end, and returns how many steps there were.
func (p plan) drive(sc *scene, rng *rand.Rand, planned *fault, chance float64, trace bool) (steps int, said []string, err error) {
	e := p.begin(sc)
	defer e.abort()
	e.s.tracing = trace
	current := ""
	idle := 0
	for {
		ops := e.s.ready()
		if len(ops) == 0 {
			if !e.s.alive() {
				break
			}
			// Somebody waits for a slot or for the time to pass.
			if idle++; idle > 2000 {
				return steps, e.s.trace, fmt.Errorf("I10: somebody waits for ever")
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if e.jumps > 0 && rng.IntN(60) == 0 {
			e.jump()
			continue
		}
		if len(e.s.late) > 0 && rng.IntN(10) == 0 {
			e.s.applyLateOp()
			if err := e.s.judge(); err != nil {
				return steps, e.s.trace, err
			}
			continue
		}
		// Mostly the one that runs goes on, so that actors get far; else anyone.
		op := ops[rng.IntN(len(ops))]
		if rng.IntN(3) > 0 {
			for _, o := range ops {
				if o.actor.name == current {
					op = o
					break
				}
			}
		}
		how := applied
		if op.label != "start" {
			if planned != nil && planned.at == steps {
				how = planned.how
			} else if chance > 0 && rng.Float64() < chance {
				how = verdict(1 + rng.IntN(4))
			}
			steps++
		}
		current = op.actor.name
		e.s.resume(op, how)
		synctest.Wait()
		if err := e.s.judge(); err != nil {
			return steps, e.s.trace, err
		}
	}
	err = e.end()
	return steps, e.s.trace, err
}

var ways = []verdict{dieBefore, dieAfter, replyLost, applyLate}

// crash runs every scene with every operation failing in each of the four ways,
// each under a few schedules.
func (p plan) crash(scenes []scene, seeds int) (runs int, err error) {
	for i := range scenes {
		sc := &scenes[i]
		for seed := range uint64(seeds) {
			fresh := func() *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(i))) }
			steps, said, err := p.drive(sc, fresh(), nil, 0, false)
			if err != nil {
				return runs, fmt.Errorf("%s, seed %d: %w\n%s", sc.name, seed, err, strings.Join(said, "\n"))
			}
			for k := range steps {
				for _, how := range ways {
					runs++
					if _, _, err := p.drive(sc, fresh(), &fault{k, how}, 0, false); err != nil {
						_, said, _ = p.drive(sc, fresh(), &fault{k, how}, 0, true)
						return runs, fmt.Errorf("%s, seed %d, operation %d %s: %w\n%s", sc.name, seed, k, how, err, strings.Join(said, "\n"))
					}
				}
			}
		}
	}
	return runs, nil
}

func TestEveryOperationCanFail(t *testing.T) {
	seeds := 3
	if raceEnabled {
		seeds = 1
	}
	if n, err := strconv.Atoi(os.Getenv("LEASE_CRASH_SCHEDULES")); err == nil {
		seeds = n
	}
	synctest.Test(t, func(t *testing.T) {
		var of audits
		runs, err := plan{audits: &of}.crash(explored, seeds)
		t.Logf("%d runs: %d scenes, %d schedules each, every operation in %d ways; %d audits begun, %d ended", runs, len(explored), seeds, len(ways), of.begun.Load(), of.ended.Load())
		if err != nil {
			t.Fatal(err)
		}
		if of.begun.Load() == 0 || of.ended.Load() == 0 {
			t.Error("no audit was looked at")
		}
	})
}

// everything is more of everything than can be explored: shared pods, waiting,
// whole sweeps, revocations, pauses, and faults at random.
func everything(rng *rand.Rand) *scene {
	sc := &scene{name: "everything", jumps: rng.IntN(4), old: rng.IntN(3), drift: rng.IntN(2)}
	sc.project = 1 + definition.Cap(rng.IntN(2))
	sc.global = sc.project + definition.Cap(rng.IntN(2))
	sc.old = min(sc.old, int(sc.project))
	sc.expired = rng.IntN(2) == 0
	pods := []string{"p0", "p1", "p2"}
	add := func(n int, r func(string) role) {
		for range n {
			x := r(fmt.Sprintf("%c%d", 'a'+len(sc.actors)%26, len(sc.actors)))
			if rng.IntN(2) == 0 {
				x.pod = pods[rng.IntN(len(pods))]
			}
			sc.actors = append(sc.actors, x)
		}
	}
	add(1+rng.IntN(3), acquirer)
	add(1+rng.IntN(3), waiter)
	add(rng.IntN(3), keeper)
	add(1+rng.IntN(3), sweeper)
	add(1+rng.IntN(2), accountant)
	if rng.IntN(3) == 0 {
		// One level, and an audit somewhere between its beginning and its end.
		starts := []func(time.Time) ([]lease.Holder, []storetest.CounterDoc){inUse, audited, auditedQuiet}
		sc.project, sc.global, sc.old, sc.start = 0, 3+definition.Cap(rng.IntN(3)), 1, starts[rng.IntN(len(starts))]
		sc.jumps = 1 + rng.IntN(3)
		add(1+rng.IntN(2), auditorTwice)
		add(rng.IntN(2), func(n string) role { return leaver(n, "young0") })
		add(rng.IntN(2), func(n string) role { return revoker(n, "old1") })
	}
	if sc.old > 0 {
		add(rng.IntN(2), func(n string) role { return leaver(n, "old0") })
		add(rng.IntN(2), func(n string) role { return user(n, "old0") })
		add(rng.IntN(2), func(n string) role { return revoker(n, "old0") })
	}
	return sc
}

// waiter waits for its slot, uses it and gives it back.
func waiter(name string) role {
	return role{name: name, kind: "waiter", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		r := e.request()
		r.MaxWait = 0
		l, err := m.Acquire(ctx, r)
		if err != nil {
			return
		}
		_ = l.Check(ctx)
		_ = l.UpdatePayload(ctx, lease.Payload{"k": "v"})
		time.Sleep(time.Second)
		_ = l.Check(ctx)
		_ = l.Release(ctx)
	}}
}

// sweeper does whole reaper rounds.
func sweeper(name string) role {
	return role{name: name, kind: "sweeper", do: func(ctx context.Context, m *lease.Manager, e *episode) {
		_, _ = m.Sweep(ctx)
		_, _ = m.Sweep(ctx)
	}}
}

// seedsFrom is how many random schedules to run: n, or what LEASE_SEEDS says,
// from the seed that LEASE_SEED says.
func seedsFrom(t *testing.T, n int) (first, count uint64) {
	number := func(name string, or uint64) uint64 {
		s := os.Getenv(name)
		if s == "" {
			return or
		}
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	return number("LEASE_SEED", 1), number("LEASE_SEEDS", uint64(n))
}

func TestExploreRandomSchedules(t *testing.T) {
	n := 1500
	if raceEnabled {
		n = 200
	}
	first, count := seedsFrom(t, n)
	synctest.Test(t, func(t *testing.T) {
		steps, actors := 0, 0
		var of audits
		for seed := first; seed < first+count; seed++ {
			rng := func() *rand.Rand { return rand.New(rand.NewPCG(seed, 77)) }
			r := rng()
			sc := everything(r)
			chance := []float64{0, 0, 0.01, 0.05}[seed%4]
			k, _, err := plan{all: true, audits: &of}.drive(sc, r, nil, chance, false)
			steps += k
			actors += len(sc.actors)
			if err != nil {
				r = rng()
				_, said, _ := plan{all: true}.drive(everything(r), r, nil, chance, true)
				t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(said, "\n"))
			}
		}
		t.Logf("seeds %d to %d: %d actors, %d operations; %d audits begun, %d ended", first, first+count-1, actors, steps, of.begun.Load(), of.ended.Load())
	})
}
