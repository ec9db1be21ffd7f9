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

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// Many goroutines in four whole pods, with everything running that runs in a
// pod: what the stepping scheduler cannot show, real parallelism under the race
// detector, is looked at here. Caps are judged all the time.
func TestFourPodsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{mem: storetest.NewMemory(nil), failing: map[lease.Token]int{}}
		w.calls = &calls{Store: w.mem, slow: 2 * time.Millisecond}
		pods := make([]*lease.Manager, 4)
		for i := range pods {
			pods[i] = w.pod(fmt.Sprintf("p%d", i), func(o *lease.Options) {
				o.ReapInterval, o.ReconcileSafety, o.PendingTTL = 2*time.Second, 4*time.Second, 2*time.Second
				o.Heartbeat, o.StaleAfter = time.Second, 3*time.Second
			})
		}
		caps := map[definition.Level]definition.Cap{definition.User: 1, definition.Project: 3, definition.Tenant: 5, definition.Global: 8}
		d := &definition.Definition{Name: "b", Resource: "b", Label: "b", Caps: caps, TTL: 3 * time.Second, Wait: 2 * time.Second}
		limits := map[lease.CounterID]definition.Cap{}

		ctx, end := context.WithTimeout(context.Background(), 15*time.Second)
		defer end()
		var got, refused, revoked atomic.Int64
		var work sync.WaitGroup
		for i := range 40 {
			scope := lease.Scope{Tenant: fmt.Sprint("t", i%3), Project: fmt.Sprint("p", i%2), User: fmt.Sprint("u", i%20)}
			for level, limit := range caps {
				limits[must(lease.NewCounterID("b", level, scope))] = limit
			}
			work.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 3))
				for ctx.Err() == nil {
					r := lease.Request{Type: "t", Definition: d, Tenant: scope.Tenant, Project: scope.Project, User: scope.User, PodBound: i%4 == 0}
					if rng.IntN(3) == 0 {
						r.MaxWait = lease.NoWait
					}
					l, err := pods[rng.IntN(4)].Acquire(ctx, r)
					if err != nil {
						refused.Add(1)
						time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
						continue
					}
					got.Add(1)
					for range rng.IntN(4) {
						time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
						if !r.PodBound && rng.IntN(2) == 0 {
							l = pods[rng.IntN(4)].Attach(l.Ref())
						}
						_ = l.Check(ctx)
					}
					switch rng.IntN(10) {
					case 0: // forgotten: left to its TTL
					case 1:
						_ = l.ReleaseUnconfirmed(ctx)
					case 2:
						if _, err := pods[rng.IntN(4)].Revoke(ctx, l.Ref().Token, lease.Cause{By: "op"}); err == nil {
							revoked.Add(1)
						}
					default:
						_ = l.Release(ctx)
					}
				}
			})
		}
		for ctx.Err() == nil {
			time.Sleep(3 * time.Millisecond)
			held := map[lease.CounterID]int{}
			for _, h := range w.mem.AllHolders() {
				if h.State == lease.Held {
					for _, b := range h.Levels {
						held[b.ID]++
					}
				}
			}
			for id, n := range held {
				if n > int(limits[id]) {
					t.Fatalf("%d holders on %s, whose cap is %d", n, id, limits[id])
				}
			}
		}
		work.Wait()
		time.Sleep(30 * time.Second)
		if n := w.living(); n != 0 {
			t.Errorf("%d holders are left", n)
		}
		if n := len(w.counts()); n != 0 {
			t.Errorf("counters that nobody books are left: %v", w.counts())
		}
		for _, h := range w.mem.AllHolders() {
			if h.Revocation.HandledAt.IsZero() {
				t.Errorf("the mark of %s is not handled", h.Token)
			}
		}
		for _, m := range pods {
			if err := m.Stop(context.Background(), false); err != nil {
				t.Error(err)
			}
		}
		t.Logf("%d leases, %d refusals, %d revocations", got.Load(), refused.Load(), revoked.Load())
		if got.Load() == 0 || refused.Load() == 0 || revoked.Load() == 0 {
			t.Error("too little has happened")
		}
		if len(w.failed) > 0 {
			t.Error(w.failed)
		}
	})
}
