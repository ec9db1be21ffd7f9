package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// BenchmarkEngine measures acquire+release of the real engine over four levels
// on a store, at 1, 32 and 256 goroutines, and beside it the floor: one bare
// conditional increment. Besides ns/op, which is throughput, it reports the
// 99th percentile of one acquire+release in milliseconds.
func BenchmarkEngine(b *testing.B, s lease.Store) {
	d := &definition.Definition{
		Name: "bench", Resource: "engine", Label: "bench", TTL: time.Hour, Wait: time.Minute,
		Caps: map[definition.Level]definition.Cap{
			definition.User: 1 << 20, definition.Project: 1 << 20, definition.Tenant: 1 << 20, definition.Global: 1 << 20,
		},
	}
	m, err := lease.New(lease.Options{Store: s, Pod: lease.Pod{ID: lease.PodID(b.Name()), Endpoint: "bench:1"}, ReapInterval: time.Hour, OpTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	m.Register("bench", nothing{})
	if err := m.Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.Stop(context.Background(), false) })
	const floor = lease.CounterID("engine|global|floor")
	if err := s.EnsureCounter(b.Context(), floor, "g"); err != nil {
		b.Fatal(err)
	}
	for _, workers := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("check/%d", workers), func(b *testing.B) {
			held := make([]*lease.Lease, workers)
			for w := range held {
				var err error
				if held[w], err = m.Acquire(b.Context(), lease.Request{Type: "bench", Definition: d, Tenant: "t", Project: "p", User: fmt.Sprintf("c%d", w)}); err != nil {
					b.Fatal(err)
				}
			}
			timed(b, workers, func(w int) error { return held[w].Check(b.Context()) })
			for _, l := range held {
				check(b, l.Release(b.Context()))
			}
		})
		b.Run(fmt.Sprintf("acquire and release/%d", workers), func(b *testing.B) {
			timed(b, workers, func(w int) error {
				l, err := m.Acquire(b.Context(), lease.Request{
					Type: "bench", Definition: d, Tenant: "t", Project: "p", User: fmt.Sprintf("u%d", w),
				})
				if err != nil {
					return err
				}
				return l.Release(b.Context())
			})
		})
		b.Run(fmt.Sprintf("floor/%d", workers), func(b *testing.B) {
			timed(b, workers, func(int) error {
				_, _, ok, err := s.Increment(b.Context(), floor, 1<<30)
				return matched(ok, err)
			})
		})
	}
}

type nothing struct{}

func (nothing) OnRevoked(context.Context, lease.Holder) error { return nil }

// timed shares b.N runs of f among workers and reports the 99th percentile.
func timed(b *testing.B, workers int, f func(worker int) error) {
	took := make([]time.Duration, b.N)
	next := make(chan int)
	var wg sync.WaitGroup
	b.ResetTimer()
	for w := range workers {
		wg.Go(func() {
			for i := range next {
				begun := time.Now()
				if err := f(w); err != nil {
					b.Error(err)
				}
				took[i] = time.Since(begun)
			}
		})
	}
	for i := range b.N {
		next <- i
	}
	close(next)
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[min(len(took)-1, len(took)*99/100)].Microseconds())/1000, "p99-ms")
}
