package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// RunBusy shows the real engine on a store in real time: a counter from which
// crashes have taken slots for good gets them back while it is never left alone,
// by an audit that pods begin and end by themselves. It takes a little longer
// than margin, which must be long enough for an acquire in half of it.
func RunBusy(t *testing.T, s lease.Store, margin time.Duration) {
	const limit, leaks, workers = 6, 3, 4
	ctx, cancel := context.WithTimeout(t.Context(), patience+3*margin)
	defer cancel()
	d := &definition.Definition{
		Name: "busy", Resource: "busy", Label: "busy", TTL: time.Hour, Wait: time.Second,
		Caps: map[definition.Level]definition.Cap{definition.User: 1, definition.Global: limit},
	}
	id, err := lease.NewCounterID("busy", definition.Global, lease.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	watched := &audits{Store: s, id: id, ended: make(chan int, 100)}
	m, err := lease.New(lease.Options{
		Store: watched, Pod: lease.Pod{ID: lease.PodID(t.Name()), Endpoint: "busy:1"},
		ReconcileSafety: margin, ReapInterval: margin / 4, PendingTTL: margin, OpTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Register("busy", nothing{})
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Stop(context.WithoutCancel(ctx), false) }()
	acquire := func(user string, wait time.Duration) (*lease.Lease, error) {
		return m.Acquire(ctx, lease.Request{Type: "busy", Definition: d, Tenant: "t", User: user, MaxWait: wait})
	}
	count := func() int {
		cs, err := s.Counters(ctx, []lease.CounterID{id})
		if err != nil || len(cs) != 1 {
			t.Fatal(len(cs), err)
		}
		return cs[0].Count
	}

	var standing []*lease.Lease
	for i := range 2 {
		l, err := acquire(fmt.Sprint("standing", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		standing = append(standing, l)
	}
	for range leaks { // acquirers that die before their entry
		if _, _, ok, err := s.Increment(ctx, id, limit); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	held := atomic.Int64{}
	held.Store(int64(len(standing)))
	var taken, failed atomic.Int64
	stop := make(chan struct{})
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := acquire(fmt.Sprint("u", w), 0)
				var busy *lease.BusyError
				switch {
				case errors.As(err, &busy):
					continue
				case err != nil:
					failed.Add(1)
					continue
				}
				if n := held.Add(1); n > limit {
					t.Errorf("%d leases at once, the cap is %d", n, limit)
				}
				taken.Add(1)
				held.Add(-1)
				if err := l.Release(ctx); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	select {
	case off := <-watched.ended:
		if off != leaks {
			t.Errorf("the audit has taken %d off, there were %d too many", off, leaks)
		}
	case <-ctx.Done():
		t.Error("no audit has ended")
	}
	close(stop)
	work.Wait()
	if t.Failed() {
		return
	}
	if watched.quiet.Load() {
		t.Error("the counter was quiet for a while")
	}
	t.Logf("%d leases were taken and given back meanwhile, %d operations failed", taken.Load(), failed.Load())
	// What has failed may have leaked; on a machine that keeps up it is nothing.
	if n := count() - len(standing) - int(failed.Load()); n > 0 {
		t.Errorf("%d slots are missing still", n)
	}
	for i := range limit - len(standing) - int(failed.Load()) {
		if _, err := acquire(fmt.Sprint("then", i), lease.NoWait); err != nil {
			t.Errorf("slot %d: %v", i, err)
		}
	}
	for _, l := range standing {
		before := count()
		if err := l.Release(ctx); err != nil || count() != before-1 {
			t.Errorf("a lease from before the audit was not given back: %d, then %d, %v", before, count(), err)
		}
	}
}

// audits is a store that tells of audits of one counter that end.
type audits struct {
	lease.Store
	id    lease.CounterID
	ended chan int // how much was taken off
	quiet atomic.Bool
}

func (s *audits) CloseAudit(ctx context.Context, was lease.Counter, booked int, gen lease.Gen, margin time.Duration) (bool, error) {
	ok, err := s.Store.CloseAudit(ctx, was, booked, gen, margin)
	if ok && was.ID == s.id {
		s.ended <- was.Audit.Old - booked
	}
	return ok, err
}

func (s *audits) CorrectCounter(ctx context.Context, was lease.Counter, count int, gen lease.Gen, margin time.Duration) (bool, error) {
	ok, err := s.Store.CorrectCounter(ctx, was, count, gen, margin)
	if ok && was.ID == s.id {
		s.quiet.Store(true)
	}
	return ok, err
}
