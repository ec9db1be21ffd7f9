package texproxy

import (
	"context"
	"errors"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// slot is a held lease as a compile uses it; *lease.Lease is one.
type slot interface {
	Noop() bool
	Ref() lease.Ref
	Check(ctx context.Context) error
	UpdatePayload(ctx context.Context, p lease.Payload) error
	Release(ctx context.Context) error
}

// engine is Leases with slots instead of leases.
type engine interface {
	acquire(ctx context.Context, r lease.Request) (slot, error)
	attach(r lease.Ref) slot
	find(ctx context.Context, f lease.Filter) ([]lease.Holder, error)
	lostReason(ctx context.Context, t lease.Token) lease.Reason
}

type leaseEngine struct{ Leases }

func (e leaseEngine) acquire(ctx context.Context, r lease.Request) (slot, error) {
	l, err := e.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (e leaseEngine) attach(r lease.Ref) slot { return e.Attach(r) }

func (e leaseEngine) find(ctx context.Context, f lease.Filter) ([]lease.Holder, error) {
	return e.Find(ctx, f)
}

func (e leaseEngine) lostReason(ctx context.Context, t lease.Token) lease.Reason {
	return e.LostReason(ctx, t)
}

const (
	// storePatience is how long a store that is out of reach is asked again
	// before a client is told.
	storePatience = 2 * time.Second
	storePause    = 100 * time.Millisecond
)

// patiently repeats an idempotent store call while the store is out of reach,
// for at most storePatience.
func patiently(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	for {
		err := call(ctx)
		if err == nil || !retryable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(storePause):
		}
	}
}

// retryable reports whether a call may succeed when it is made again. A lost
// lease stays lost, and a definition that is wrong stays wrong.
func retryable(err error) bool {
	var lost *lease.LostError
	var busy *lease.BusyError
	var unavailable *lease.UnavailableError
	switch {
	case errors.As(err, &lost), errors.As(err, &busy), errors.Is(err, lease.ErrNotFound):
		return false
	case errors.As(err, &unavailable):
		return !unavailable.Permanent && unavailable.Level == ""
	}
	return true
}

// keep checks a slot every third of its TTL while a request uses it, so that
// the TTL may be shorter than a compile (spec §3), and calls lost when it has
// gone. A store out of reach does not lose a slot. stop ends it.
func keep(ctx context.Context, s slot, lost func(error)) (stop func()) {
	every := s.Ref().TTL / 3
	if s.Noop() || every <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var tick func()
	tick = func() {
		if ctx.Err() != nil {
			return
		}
		checkCtx, done := context.WithTimeout(ctx, max(every, storePatience))
		err := s.Check(checkCtx)
		done()
		var gone *lease.LostError
		if ctx.Err() != nil {
			return // stopped: a lease that was released since is not lost
		}
		if errors.As(err, &gone) {
			lost(gone)
			return
		}
		time.AfterFunc(every, tick)
	}
	time.AfterFunc(every, tick)
	return cancel
}
