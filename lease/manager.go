package lease

import (
	"context"
	"log/slog"
	"time"
)

// Options wires a Manager. Durations of zero take the defaults named beside
// them.
type Options struct {
	Store    Store
	Pod      Pod // ID and Endpoint
	Peers    Peers
	Observer Observer
	Log      *slog.Logger

	Heartbeat       time.Duration // 15 s
	StaleAfter      time.Duration // 45 s
	ReapInterval    time.Duration // 30 s
	ReconcileSafety time.Duration // 60 s
	PendingTTL      time.Duration // 30 s
	OpTimeout       time.Duration // 5 s: longest wait for one store operation
	MaxWaiters      int           // 1000
	Handlers        int           // 16 handlers at once
}

// Manager is one pod's lease engine. It is safe for concurrent use.
type Manager struct{ opt Options }

// New checks the options and makes a Manager that has not started.
func New(opt Options) (*Manager, error) { return &Manager{opt: opt}, nil }

// Register sets the handler of a type. It must come before Start.
func (m *Manager) Register(typ string, h Handler) {}

// Start waits until this pod's registration is in the store, then beats and
// sweeps until Stop. It goes on trying while the store is out of reach, until
// ctx ends; Ready tells.
func (m *Manager) Start(ctx context.Context) error { return nil }

// Ready reports whether the pod has been in contact with the store once.
func (m *Manager) Ready() bool { return false }

// Drain registers the pod STOPPING: it takes no new lease, and lives.
func (m *Manager) Drain(ctx context.Context) error { return nil }

// Stop ends the sweeps, waits for running handlers until ctx ends and registers
// the pod STOPPED. With handedOver its not podBound leases live on for the
// other pods.
func (m *Manager) Stop(ctx context.Context, handedOver bool) error { return nil }

// Acquire takes a slot at every level or none. Errors are *BusyError and
// *UnavailableError; it answers within the wait plus one store operation.
func (m *Manager) Acquire(ctx context.Context, r Request) (*Lease, error) {
	return nil, &UnavailableError{Why: "not built"}
}

// Attach gives the lease that r names without a store call; the first Check
// tells whether it still lives.
func (m *Manager) Attach(r Ref) *Lease { return nil }

// Find lists living holders, or those in f.States.
func (m *Manager) Find(ctx context.Context, f Filter) ([]Holder, error) { return nil, nil }

// LostReason looks up why a token is gone; "" where nobody knows.
func (m *Manager) LostReason(ctx context.Context, t Token) Reason { return "" }

// Revoke takes a lease away by decision and dispatches its handler (spec §9).
// ErrNotFound where no holder matches token and cause.
func (m *Manager) Revoke(ctx context.Context, t Token, c Cause) (Holder, error) {
	return Holder{}, ErrNotFound
}

// RevokePod takes away every lease of a pod and returns how many.
func (m *Manager) RevokePod(ctx context.Context, pod PodID, by string) (int, error) { return 0, nil }

// HandleRevoked runs the handler of a mark here, for a peer that has asked
// (POST /internal/lease/revoked). ErrNotFound where there is no such mark.
func (m *Manager) HandleRevoked(ctx context.Context, t Token) error { return nil }

// Sweep runs one reaper round now.
func (m *Manager) Sweep(ctx context.Context) (Swept, error) { return Swept{}, nil }

// Reconcile runs one reconcile pass now; it needs no pod and no handler.
func (m *Manager) Reconcile(ctx context.Context) (Reconciled, error) { return Reconciled{}, nil }

// Occupancies lists the counters of a resource ("" for all) with what books them.
func (m *Manager) Occupancies(ctx context.Context, resource string) ([]Occupancy, error) {
	return nil, nil
}

// PodAlive is the one definition of pod liveness (spec §6).
func (m *Manager) PodAlive(p Pod) bool { return false }

// LivingPods lists the other pods that are alive.
func (m *Manager) LivingPods(ctx context.Context) ([]Pod, error) { return nil, nil }

// Lease is a held slot on every level of its funnel, or a NOOP lease. It is
// safe for concurrent use.
type Lease struct{}

// Noop reports whether there is nothing to hold.
func (l *Lease) Noop() bool { return l == nil }

// Ref names the lease for any pod.
func (l *Lease) Ref() Ref { return Ref{} }

// Check tells whether the lease still lives and touches it: its TTL counts from
// now (spec §3). Errors are *LostError and *UnavailableError, which are never
// confused: an unreachable store does not lose a lease.
func (l *Lease) Check(ctx context.Context) error { return nil }

// Peek is Check without the touch, for a stream that only listens.
func (l *Lease) Peek(ctx context.Context) error { return nil }

// UpdatePayload replaces the payload.
func (l *Lease) UpdatePayload(ctx context.Context, p Payload) error { return nil }

// Release gives the slots back. It is idempotent and runs under a deadline of
// its own; the handler does not run.
func (l *Lease) Release(ctx context.Context) error { return nil }

// ReleaseUnconfirmed gives the slots back and leaves a mark with ReasonClose,
// so that sweeps go on ending the resource (an upstream session whose DELETE
// was not confirmed).
func (l *Lease) ReleaseUnconfirmed(ctx context.Context) error { return nil }
