package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// use is one operation of a history: a slot of a project taken, refused, or
// given back.
type use struct {
	project int
	release bool
}

// slots is the order that a history must have: as many taken as the caps of the
// project and of all allow. A refusal fits anywhere: a try that failed further
// on may have been in the way for an instant.
func slots(project, global int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return [3]int{} }, // two projects, all
		Step: func(state, input, output any) (bool, any) {
			n, op, ok := state.([3]int), input.(use), output.(bool)
			switch {
			case op.release:
				n[op.project]--
				n[2]--
			case !ok:
			case n[op.project] >= project || n[2] >= global:
				return false, state
			default:
				n[op.project]++
				n[2]++
			}
			return true, n
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
	}
}

// history records what clients of four pods see.
func history(w *world, seed uint64, project, global definition.Cap) []porcupine.Operation {
	w.calls.set(func() { w.calls.slow = time.Millisecond })
	d := browser(map[definition.Level]definition.Cap{definition.Project: project, definition.Global: global})
	d.Wait = 30 * time.Millisecond
	var clock atomic.Int64
	var mu sync.Mutex
	var ops []porcupine.Operation
	record := func(client int, u use, f func() bool) bool {
		call := clock.Add(1)
		ok := f()
		done := clock.Add(1)
		mu.Lock()
		defer mu.Unlock()
		ops = append(ops, porcupine.Operation{ClientId: client, Input: u, Call: call, Output: ok, Return: done})
		return ok
	}
	pods := make([]*lease.Manager, 4)
	for i := range pods {
		pods[i] = w.pod(fmt.Sprint("p", i), quiet)
	}
	var all sync.WaitGroup
	for client := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			for range 12 {
				p := rng.IntN(2)
				var l *lease.Lease
				ok := record(client, use{project: p}, func() bool {
					var err error
					l, err = pods[client%4].Acquire(context.Background(), lease.Request{Type: "t", Definition: d, Tenant: "t", Project: fmt.Sprint(p)})
					return err == nil
				})
				time.Sleep(time.Duration(rng.IntN(4)) * time.Millisecond)
				if ok {
					record(client, use{project: p, release: true}, func() bool { return l.Release(context.Background()) == nil })
				}
			}
		})
	}
	all.Wait()
	return ops
}

// What clients of several pods see at the same time is what they could have
// seen one after another from a set of slots.
func TestHistoriesAreLinearizable(t *testing.T) {
	judged := func(seed uint64, mutant func(lease.Store) lease.Store) (result porcupine.CheckResult, taken int) {
		var ops []porcupine.Operation
		synctest.Test(t, func(*testing.T) {
			w := &world{mem: storetest.NewMemory(nil), mutant: mutant, failing: map[lease.Token]int{}}
			w.calls = &calls{Store: w.mem}
			ops = history(w, seed, 1, 2)
			for _, m := range w.pods {
				_ = m.Stop(context.Background(), false)
			}
		})
		for _, o := range ops {
			if !o.Input.(use).release && o.Output.(bool) {
				taken++
			}
		}
		result, _ = porcupine.CheckOperationsVerbose(slots(1, 2), ops, 30*time.Second)
		return result, taken
	}
	for seed := range uint64(10) {
		result, taken := judged(seed, nil)
		if result != porcupine.Ok {
			t.Errorf("seed %d: %s", seed, result)
		}
		if taken < 10 {
			t.Errorf("seed %d: only %d leases were taken", seed, taken)
		}
	}
	result, _ := judged(1, twist(func(x *twisted) {
		x.increment = func(s lease.Store, ctx context.Context, id lease.CounterID, c definition.Cap) (lease.Gen, int, bool, error) {
			return s.Increment(ctx, id, c+1)
		}
	}))
	if result != porcupine.Illegal {
		t.Errorf("a store that lets one too many in is judged %s", result)
	}
}
