package session

import (
	"context"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// slot is the methods of *lease.Lease that a session uses.
type slot interface {
	Noop() bool
	Ref() lease.Ref
	Check(ctx context.Context) error
	Peek(ctx context.Context) error
	UpdatePayload(ctx context.Context, p lease.Payload) error
	Release(ctx context.Context) error
	ReleaseUnconfirmed(ctx context.Context) error
}

// engine is Leases with slots for leases, so that a session's own tests can
// lose one at any moment.
type engine interface {
	acquire(ctx context.Context, r lease.Request) (slot, error)
	attach(r lease.Ref) slot
	lostReason(ctx context.Context, t lease.Token) lease.Reason
	find(ctx context.Context, f lease.Filter) ([]lease.Holder, error)
	livingPods(ctx context.Context) ([]lease.Pod, error)
}

type leases struct{ l Leases }

func (e leases) acquire(ctx context.Context, r lease.Request) (slot, error) {
	l, err := e.l.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	if l.Noop() {
		return noop{}, nil
	}
	return l, nil
}

func (e leases) attach(r lease.Ref) slot {
	if r.Token == "" {
		return noop{}
	}
	return e.l.Attach(r)
}

func (e leases) lostReason(ctx context.Context, t lease.Token) lease.Reason {
	return e.l.LostReason(ctx, t)
}

func (e leases) find(ctx context.Context, f lease.Filter) ([]lease.Holder, error) {
	return e.l.Find(ctx, f)
}

func (e leases) livingPods(ctx context.Context) ([]lease.Pod, error) { return e.l.LivingPods(ctx) }

// noop is the slot of a session without a lease.
type noop struct{}

func (noop) Noop() bool                                         { return true }
func (noop) Ref() lease.Ref                                     { return lease.Ref{} }
func (noop) Check(context.Context) error                        { return nil }
func (noop) Peek(context.Context) error                         { return nil }
func (noop) UpdatePayload(context.Context, lease.Payload) error { return nil }
func (noop) Release(context.Context) error                      { return nil }
func (noop) ReleaseUnconfirmed(context.Context) error           { return nil }
