package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Named says which lease a consumer needs, as its document puts it.
type Named struct {
	// Name of a definition. Empty or "none" is a NOOP lease.
	Name string
	// Inline is a definition that the document holds itself; it goes before Name.
	Inline *definition.Definition
	// Err is set where the consumer could not find out which lease it needs, such
	// as a document whose inline definition is not valid. An *UnavailableError is
	// the refusal as it is, a *definition.Error is put into its words for clients.
	Err error
}

// AcquireNamed is Resolve and Acquire in one: r.Definition is set here.
func (m *Manager) AcquireNamed(ctx context.Context, n Named, r Request) (*Lease, error) {
	d, err := m.Resolve(ctx, n, r)
	if err != nil {
		return nil, err
	}
	r.Definition = d
	return m.Acquire(ctx, r)
}

// Resolve returns the definition that n names in the scope of r; nil for a NOOP
// lease. The error is an *UnavailableError. It is counted and recorded as a
// refusal of r, unless the caller has gone.
func (m *Manager) Resolve(ctx context.Context, n Named, r Request) (*definition.Definition, error) {
	begun := time.Now()
	d, err := m.resolve(ctx, n, r)
	if err == nil {
		return d, nil
	}
	if ctx.Err() == nil {
		r.Definition = &definition.Definition{Name: n.Name}
		if n.Inline != nil {
			r.Definition = n.Inline
		}
		m.unresolvedRefused(r, time.Since(begun))
	}
	return nil, err
}

func (m *Manager) resolve(ctx context.Context, n Named, r Request) (*definition.Definition, error) {
	switch {
	case n.Err != nil:
		return nil, unresolved(n.Name, n.Err)
	case n.Inline != nil:
		return n.Inline, nil
	case n.Name == "" || n.Name == "none":
		return nil, nil
	case m.opt.Definitions == nil:
		return nil, unresolved(n.Name, errors.New("lease: this Manager has no definitions"))
	}
	d, err := m.opt.Definitions.Resolve(ctx, r.Tenant, r.Project, n.Name)
	if err != nil {
		return nil, unresolved(n.Name, err)
	}
	return d, nil
}

// unresolved turns what kept a definition from being had into a refusal.
func unresolved(name string, err error) *UnavailableError {
	if u, ok := errors.AsType[*UnavailableError](err); ok {
		return u
	}
	u := &UnavailableError{Why: "the definition of the lease could not be read", Err: err}
	if name != "" {
		u.Why = "the definition of the lease " + name + " could not be read"
	}
	if wrong, ok := errors.AsType[*definition.Error](err); ok {
		u.Why, u.Permanent = wrong.Client(), !wrong.Transient
	}
	return u
}

// RefOf names the lease of a holder.
func RefOf(h Holder) Ref {
	return Ref{Token: h.Token, Type: h.Type, Label: h.Label, TTL: h.TTL, PodBound: h.PodBound}
}

// Lost reports whether err says that a lease is lost, and why; "" where nobody
// knows.
func Lost(err error) (Reason, bool) {
	lost, ok := errors.AsType[*LostError](err)
	if !ok {
		return "", false
	}
	return lost.Reason, true
}

const (
	// keepTimeout bounds one touch or look of a Keeper.
	keepTimeout = 5 * time.Second
	// keepMin bounds how often a lease with a very short TTL is touched.
	keepMin = 10 * time.Millisecond
)

// Keeper decides when the lease of a request under way is touched, or looked at,
// for a caller with a timer of its own: each third of its TTL, so that two tries
// may fail before an idle reap can come. It is not safe for concurrent use.
// Keep is the same with a timer.
type Keeper struct {
	// Lease may be exchanged between two ticks.
	Lease *Lease
	// Uses says that the request uses the resource: the lease is touched, and its
	// TTL counts anew. Otherwise it is only looked at, as for a stream that
	// listens, and its TTL runs.
	Uses bool

	next time.Time
}

// NewKeeper makes a Keeper for a lease that was checked at now.
func NewKeeper(l *Lease, uses bool, now time.Time) Keeper {
	return Keeper{Lease: l, Uses: uses, next: now.Add(l.keepEvery())}
}

// Next is when Tick has something to do; zero for a NOOP lease, which needs
// nothing.
func (k *Keeper) Next() time.Time {
	if k.Lease.Noop() {
		return time.Time{}
	}
	return k.next
}

// Tick touches or looks where that is due, under a deadline of its own, and does
// nothing otherwise. Errors are those of Check: Lost tells whether the lease is
// gone. A store that cannot be reached loses no lease; Tick comes again.
func (k *Keeper) Tick(ctx context.Context, now time.Time) error {
	if k.Lease.Noop() || now.Before(k.next) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	k.next = now.Add(k.Lease.keepEvery())
	if k.Uses {
		return k.Lease.Check(ctx)
	}
	return k.Lease.Peek(ctx)
}

// keepEvery is a third of the TTL.
func (l *Lease) keepEvery() time.Duration { return max(l.Ref().TTL/3, keepMin) }

// Keep touches the lease each third of its TTL until stop is called or ctx ends.
// Between two touches there is a timer and no goroutine. Each touch that fails is
// reported to failed, which may be nil: once where the lease is lost (see Lost),
// which ends it, and each time where the store cannot be reached. After stop has
// returned failed is not called any more; stop must not be called from it.
func (l *Lease) Keep(ctx context.Context, failed func(error)) (stop func()) {
	if l.Noop() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &keeping{ctx: ctx, keeper: NewKeeper(l, true, time.Now()), failed: failed}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(l.keepEvery(), k.tick)
	return func() {
		cancel() // also a touch under way
		k.mu.Lock()
		defer k.mu.Unlock()
		k.timer.Stop()
	}
}

// keeping is a Keep under way. A tick holds mu, so that stop waits for it.
type keeping struct {
	ctx    context.Context
	failed func(error)

	mu     sync.Mutex
	keeper Keeper
	timer  *time.Timer
}

func (k *keeping) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return
	}
	err := k.keeper.Tick(k.ctx, time.Now())
	if k.ctx.Err() != nil {
		return // a lease that was released since is not lost
	}
	if err != nil && k.failed != nil {
		k.failed(err)
	}
	if _, lost := Lost(err); !lost {
		k.timer.Reset(max(time.Until(k.keeper.next), keepMin))
	}
}
