package view

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Engine is what a view needs of the lease engine; *lease.Manager is one.
type Engine interface {
	Find(ctx context.Context, f lease.Filter) ([]lease.Holder, error)
	Revoke(ctx context.Context, t lease.Token, c lease.Cause) (lease.Holder, error)
	RevokePod(ctx context.Context, pod lease.PodID, by string) (int, error)
	Sweep(ctx context.Context) (lease.Swept, error)
	Reconcile(ctx context.Context) (lease.Reconciled, error)
	Occupancies(ctx context.Context, f lease.OccupancyFilter) ([]lease.Occupancy, error)
	Events(ctx context.Context, tenant string, limit int) ([]lease.Event, error)
	Pods(ctx context.Context) ([]lease.Pod, error)
}

// View answers and acts. The zero View is not usable: Engine must be set. It is
// safe for concurrent use.
type View struct {
	Engine Engine
	// Definitions is nil where no documents can be read.
	Definitions definition.Resolver
	// Happened is told of sweeps and reconciles that somebody asked for, for the
	// audit. The engine itself tells of revocations. May be nil.
	Happened func(lease.Event)
	// Now is the clock that ages are counted with; nil means the store's, as the
	// registrations of the pods tell it.
	Now func() time.Time

	mu       sync.Mutex
	ahead    time.Duration // the store's clock before ours
	measured time.Time
}

// ranOut reports whether err comes from the end of the caller's time. A store may
// refuse a little before that, where an operation could not be done any more.
func ranOut(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	end, bounded := ctx.Deadline()
	return bounded && time.Until(end) < time.Second && errors.Is(err, context.DeadlineExceeded)
}

// Scope is whose leases a caller sees and acts on.
type Scope struct {
	// Tenant is empty for an operator, who sees all tenants. For a tenant's
	// admin it is part of every filter, so that a token of another tenant is
	// simply not found (spec §9).
	Tenant string
}

func (d *View) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

// clockLife is how long a measured difference of the clocks counts.
const clockLife = time.Minute

// storeNow is the store's time, by which holders and marks are dated: the
// clocks of an operator's machine and of the store may differ. Where no pod has
// ever registered it is our own.
func (d *View) storeNow(ctx context.Context) time.Time {
	if d.Now != nil {
		return d.Now()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.measured.IsZero() || time.Since(d.measured) > clockLife {
		if pods, err := d.Engine.Pods(ctx); err == nil {
			d.measured, d.ahead = time.Now(), 0
			for _, p := range pods {
				if !p.BeatAt.IsZero() {
					d.ahead = p.BeatAt.Add(p.BeatAge).Sub(d.measured)
					break
				}
			}
		}
	}
	return time.Now().Add(d.ahead)
}

func (d *View) tell(e lease.Event) {
	if d.Happened != nil {
		e.At = d.now()
		d.Happened(e)
	}
}

// Revoke takes a lease away by decision: mark, slots back, handler by the
// matrix (spec §9). short is the beginning of a token; by is who asks.
func (d *View) Revoke(ctx context.Context, s Scope, short, by string) (Holder, error) {
	h, err := d.resolve(ctx, s, short, lease.Pending, lease.Held)
	if err != nil {
		if CodeOf(err) == NotFound {
			return Holder{}, d.goneAlready(ctx, s, short, err)
		}
		return Holder{}, err
	}
	_, err = d.Engine.Revoke(ctx, h.Token, lease.Cause{Reason: lease.ReasonRevoke, By: by, Tenant: s.Tenant})
	if errors.Is(err, lease.ErrNotFound) {
		// It ended between the look-up and the mark.
		return Holder{}, d.goneAlready(ctx, s, short, &Error{Code: NotFound, Message: "the lease ended before it could be revoked"})
	}
	if CodeOf(err) == Unrecorded {
		return Holder{}, &Error{Code: Unrecorded, Message: fmt.Sprintf("the lease %s is revoked, but %v", h.Token.Short(), err)}
	}
	if err != nil {
		return Holder{}, Unreachable(err)
	}
	after, err := d.resolve(ctx, s, string(h.Token), lease.Revoked)
	if err != nil {
		// The mark stands; only the look at it failed. Say what is known.
		h.State = lease.Revoked
		h.Revocation = &lease.Revocation{Reason: lease.ReasonRevoke, By: by, At: d.storeNow(ctx)}
		after = h
	}
	return view(d.storeNow(ctx), s, after, h.Token.Short()), nil
}

// goneAlready explains a token that does not live any more, where its mark can
// still be read, and else returns err.
func (d *View) goneAlready(ctx context.Context, s Scope, short string, err error) error {
	h, lookErr := d.resolve(ctx, s, short, lease.Revoked)
	if lookErr != nil || h.Revocation == nil {
		return err
	}
	return &Error{Code: NotFound, Message: fmt.Sprintf("the lease %s has ended already (%s, %s ago)",
		h.Token.Short(), h.Revocation.Reason, age(d.storeNow(ctx), h.Revocation.At).Round(time.Second))}
}

// RevokePod takes away every lease of a pod. A pod that is neither registered
// nor holds or held anything is not found.
func (d *View) RevokePod(ctx context.Context, pod, by string) (PodRevoked, error) {
	if err := checkText("pod", pod); err != nil {
		return PodRevoked{}, err
	}
	if pod == "" {
		return PodRevoked{}, &Error{Code: Invalid, Message: "name a pod"}
	}
	n, err := d.Engine.RevokePod(ctx, lease.PodID(pod), by)
	if err != nil {
		if CodeOf(err) == Unrecorded {
			return PodRevoked{}, &Error{Code: Unrecorded, Message: fmt.Sprintf("%d lease(s) of pod %s were revoked, but %v; what is left stands", n, pod, err)}
		}
		out := ranOut(ctx, err)
		if n == 0 && !out {
			return PodRevoked{}, Unreachable(err)
		}
		why := "the lease store could not be reached any more"
		if out {
			why = "the time given ran out"
		}
		return PodRevoked{}, &Error{Code: CutShort, RanOut: out, Err: err,
			Message: fmt.Sprintf("%d lease(s) of pod %s were revoked, then %s; what is left stands, and the same order again goes on with it", n, pod, why)}
	}
	if n == 0 {
		known, err := d.knowsPod(ctx, lease.PodID(pod))
		if err != nil {
			return PodRevoked{}, err
		}
		if !known {
			return PodRevoked{}, &Error{Code: NotFound, Message: fmt.Sprintf("no pod %q is registered and no lease names it", pod)}
		}
	}
	return PodRevoked{Pod: pod, Revoked: n}, nil
}

func (d *View) knowsPod(ctx context.Context, pod lease.PodID) (bool, error) {
	pods, err := d.Engine.Pods(ctx)
	if err != nil {
		return false, Unreachable(err)
	}
	for _, p := range pods {
		if p.ID == pod {
			return true, nil
		}
	}
	held, err := d.Engine.Find(ctx, lease.Filter{Pod: pod, Limit: 1, States: allStates})
	if err != nil {
		return false, Unreachable(err)
	}
	return len(held) > 0, nil
}

// Sweep runs one reaper round now, with handlers.
func (d *View) Sweep(ctx context.Context, by string) (lease.Swept, error) {
	// A round has many parts, and each would wait for a store that is not there.
	if _, err := d.Engine.Pods(ctx); err != nil {
		return lease.Swept{}, Unreachable(err)
	}
	done, err := d.Engine.Sweep(ctx)
	if err != nil {
		return done, Unreachable(err)
	}
	d.tell(lease.Event{Kind: lease.EventSwept, Reason: fmt.Sprintf("asked for: idle %d, pod %d, adopted %d, handled %d, unhandled %d, purged %d",
		done.Idle, done.Pod, done.Adopted, done.Handled, done.Unhandled, done.Purged), By: by})
	return done, nil
}

// Reconcile puts drifted counters right now; the safety margin stands.
func (d *View) Reconcile(ctx context.Context, by string) (Reconciled, error) {
	done, err := d.Engine.Reconcile(ctx)
	if err != nil {
		return Reconciled{}, Unreachable(err)
	}
	d.tell(lease.Event{Kind: lease.EventReconciled, Reason: fmt.Sprintf("asked for: corrected %d, removed %d, left %d",
		done.Corrected, done.Removed, len(done.Drift)), By: by})
	return reconciledView(done), nil
}

// Definition is the merged definition as an acquire in this scope would see it,
// read past the cache.
func (d *View) Definition(ctx context.Context, tenant, project, name string) (Definition, error) {
	for _, f := range [][2]string{{"name", name}, {"tenant", tenant}, {"project", project}} {
		if f[1] == "" {
			return Definition{}, &Error{Code: Invalid, Message: "name the " + f[0] + " of the definition"}
		}
		if err := checkText(f[0], f[1]); err != nil {
			return Definition{}, err
		}
	}
	if !definition.ValidName(name) {
		return Definition{}, &Error{Code: Invalid, Message: fmt.Sprintf("%q names no lease: %s", name, definition.NameRule)}
	}
	for _, f := range [][2]string{{"tenant", tenant}, {"project", project}} {
		if !principal.ValidName(f[1]) {
			return Definition{}, &Error{Code: Invalid, Message: fmt.Sprintf("%q names no %s: a name is up to 64 letters, digits and . _ -, begins with none of . and -, and holds no ..", f[1], f[0])}
		}
	}
	if d.Definitions == nil {
		return Definition{}, unavailable("a definition", errors.New("no documents are configured here"))
	}
	m, err := d.Definitions.Fresh(ctx, tenant, project, name)
	if err != nil {
		var wrong *definition.Error
		switch {
		case errors.As(err, &wrong) && wrong.Unknown:
			return Definition{}, &Error{Code: NotFound, Message: wrong.Client() + " that " + tenant + "/" + project + " sees"}
		case errors.As(err, &wrong) && !wrong.Transient:
			return Definition{}, &Error{Code: InvalidDefinition, Message: err.Error()}
		}
		return Definition{}, unavailable("the definition", err)
	}
	v := definitionView(m)
	v.Uncounted, err = d.uncounted(ctx, tenant, m)
	return v, err
}

// Events lists what happened in the last hour, newest first. Limit 0 means 100.
func (d *View) Events(ctx context.Context, s Scope, limit int) ([]Event, error) {
	limit, err := checkLimit(limit)
	if err != nil {
		return nil, err
	}
	events, err := d.Engine.Events(ctx, s.Tenant, limit)
	if err != nil {
		return nil, Unreachable(err)
	}
	out := make([]Event, 0, len(events))
	for _, e := range events {
		if s.Tenant != "" && e.Tenant != s.Tenant {
			continue // whatever the store's filter did: another tenant's is never shown
		}
		if s.Tenant != "" && e.Level == definition.Global {
			e.Level = "" // the global level belongs to no tenant
		}
		out = append(out, eventView(s, e))
	}
	return out, nil
}
