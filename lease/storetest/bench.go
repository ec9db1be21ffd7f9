package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Benchmark measures what an acquire and a release over four levels cost the
// store, and the bare conditional increment below which no acquire can get.
// ns/op is throughput: time divided by what all goroutines did together.
func Benchmark(b *testing.B, s lease.Store) {
	levels := []lease.CounterID{"bench|user|acme/%d", "bench|project|acme/%d", "bench|tenant|t%d", "bench|global|*"}
	for _, workers := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("increment/%d", workers), func(b *testing.B) {
			const id = lease.CounterID("bench|global|floor")
			check(b, s.EnsureCounter(b.Context(), id, "g"))
			spread(b, workers, func(int) error {
				_, _, ok, err := s.Increment(b.Context(), id, 1<<30)
				return matched(ok, err)
			})
		})
		b.Run(fmt.Sprintf("acquire and release/%d", workers), func(b *testing.B) {
			ids := make([][]lease.CounterID, workers)
			for w := range ids {
				for _, l := range levels[:3] {
					ids[w] = append(ids[w], lease.CounterID(fmt.Sprintf(string(l), w)))
				}
				ids[w] = append(ids[w], levels[3])
				for _, id := range ids[w] {
					check(b, s.EnsureCounter(b.Context(), id, "g"))
				}
			}
			spread(b, workers, func(w int) error { return cycle(b, s, ids[w]) })
		})
	}
}

// cycle is one acquire and one release, verb after verb.
func cycle(b *testing.B, s lease.Store, ids []lease.CounterID) error {
	ctx := b.Context()
	h := sample()
	if err := s.CreateHolder(ctx, h); err != nil {
		return err
	}
	last := len(ids) - 1
	for i, id := range ids {
		gen, _, ok, err := s.Increment(ctx, id, definition.Cap(1<<30))
		if err := matched(ok, err); err != nil {
			return err
		}
		booked := lease.Booking{ID: id, Gen: gen}
		if i < last {
			ok, err = s.PushLevel(ctx, h.Token, booked, long)
		} else {
			ok, err = s.PushLast(ctx, h.Token, booked, ids[:last], long, long)
		}
		if err := matched(ok, err); err != nil {
			return err
		}
	}
	given, ok, err := s.DeleteHolder(ctx, h.Token)
	if err := matched(ok, err); err != nil {
		return err
	}
	for _, l := range given.Levels {
		if err := matched(s.Decrement(ctx, l.ID, l.Gen, l.Gen)); err != nil {
			return err
		}
	}
	return nil
}

func matched(ok bool, err error) error {
	if err == nil && !ok {
		return fmt.Errorf("a verb that must match did not")
	}
	return err
}

// spread shares b.N calls among workers.
func spread(b *testing.B, workers int, f func(worker int) error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var failed atomic.Value
	var wg sync.WaitGroup
	b.ResetTimer()
	for w := range workers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(w); err != nil {
					failed.Store(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if err, _ := failed.Load().(error); err != nil {
		b.Fatal(err)
	}
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
