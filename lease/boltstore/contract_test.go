package boltstore

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) lease.Store {
		return openTest(t, filepath.Join(t.TempDir(), "leases.db"))
	})
}

func TestACounterInConstantUseIsMended(t *testing.T) {
	storetest.RunBusy(t, openTest(t, filepath.Join(t.TempDir(), "leases.db")), 2*time.Second)
}

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, openTest(b, filepath.Join(b.TempDir(), "leases.db")))
}

// A check of every tools/call is a touch: it must cost no disk.
func BenchmarkTouch(b *testing.B) {
	s := openTest(b, filepath.Join(b.TempDir(), "leases.db"))
	hold(b, s, "a", time.Hour)
	for b.Loop() {
		if ok, err := s.Touch(b.Context(), "a", "pod-1"); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// The lazy sweep of each acquire looks for expired holders among ten thousand
// that live.
func BenchmarkExpiredAmong10000(b *testing.B) {
	s := openTest(b, filepath.Join(b.TempDir(), "leases.db"))
	var wg sync.WaitGroup
	for w := range 100 {
		wg.Go(func() {
			for i := range 100 {
				hold(b, s, lease.Token(fmt.Sprintf("%d-%d", w, i)), time.Hour)
			}
		})
	}
	wg.Wait()
	b.ResetTimer()
	for b.Loop() {
		if got, err := s.Expired(b.Context(), "tex", 0, 100); err != nil || len(got) != 0 {
			b.Fatal(len(got), err)
		}
	}
}
