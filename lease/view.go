package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrAmbiguous says that a shortened token fits more than one holder.
var ErrAmbiguous = errors.New("lease: more than one holder begins so")

// View reads a store for operators and, where no pod can be asked, acts on it
// directly (spec §9). It needs no Manager: the command line makes one over the
// store itself. What it takes away is marked, not deleted, so a pod that comes
// back later still runs the handlers.
type View struct{ Store Store }

// View gives a View of the manager's store.
func (m *Manager) View() View { return View{Store: m.store} }

// anyState is a filter's States for "all".
var anyState = []State{Pending, Held, Revoked}

// Resolve finds the token that begins with prefix, in any state; a whole token
// resolves to itself. With a tenant only that tenant's holders are seen, so
// another's is simply not found. Errors are ErrNotFound and ErrAmbiguous.
func (v View) Resolve(ctx context.Context, tenant, prefix string) (Token, error) {
	if prefix == "" {
		return "", ErrNotFound
	}
	whole, err := v.Store.Holders(ctx, Filter{Token: Token(prefix), Tenant: tenant, States: anyState, Limit: 1})
	if err != nil {
		return "", err
	}
	if len(whole) == 1 {
		return whole[0].Token, nil
	}
	next, err := v.Store.Holders(ctx, Filter{Tenant: tenant, States: anyState, After: Token(prefix), Limit: 2})
	if err != nil {
		return "", err
	}
	next = slices.DeleteFunc(next, func(h Holder) bool { return !strings.HasPrefix(string(h.Token), prefix) })
	switch len(next) {
	case 0:
		return "", ErrNotFound
	case 1:
		return next[0].Token, nil
	}
	return "", ErrAmbiguous
}

// Holder reads one holder in any state, or ErrNotFound.
func (v View) Holder(ctx context.Context, t Token) (Holder, error) {
	h, ok, err := v.Store.Holder(ctx, t)
	if err == nil && !ok {
		err = ErrNotFound
	}
	return h, err
}

// Holders lists holders in token order: the living ones, or those in f.States.
func (v View) Holders(ctx context.Context, f Filter) ([]Holder, error) {
	return v.Store.Holders(ctx, f)
}

// Occupancies lists the counters of a resource ("" for all) in id order with
// the number of holders that book each: the number to which a reconcile pass
// corrects (spec §9). A difference is shown, not hidden.
func (v View) Occupancies(ctx context.Context, resource string) ([]Occupancy, error) {
	if resource != "" {
		resource = EncodeResource(resource)
	}
	var all []Occupancy
	var after CounterID
	for {
		page, err := v.Store.ListCounters(ctx, resource, after, reconcilePage)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return all, nil
		}
		booked, err := v.Store.Booked(ctx, counterIDs(page))
		if err != nil {
			return nil, err
		}
		for _, c := range page {
			o := Occupancy{Counter: c.Counter, Booked: booked[c.ID]}
			if res, level, scope, err := c.ID.Parse(); err == nil {
				o.Resource, o.Level, o.Scope = res, level, scope.String()
			} else {
				o.Resource = string(c.ID) // not ours; show it rather than hide it
			}
			all = append(all, o)
		}
		after = page[len(page)-1].ID
	}
}

// Pods lists all registrations; PodAlive tells which are alive.
func (v View) Pods(ctx context.Context) ([]Pod, error) { return v.Store.Pods(ctx) }

// Events lists what happened in the last hour, newest first.
func (v View) Events(ctx context.Context, tenant string, limit int) ([]Event, error) {
	return v.Store.Events(ctx, tenant, limit)
}

// ForceRevoke takes a lease away in the store without a pod (lease revoke
// --force). The slots are free and the holder fails at its next check. No
// handler runs now: a pod that is up, or comes up within the life of the mark,
// runs it at its next sweep; without one the resource is left to its own
// expiry. c.Reason is set here. ErrNotFound where nothing living matches.
func (v View) ForceRevoke(ctx context.Context, t Token, c Cause) (Holder, error) {
	h, ok, err := v.Store.Holder(ctx, t)
	if err != nil {
		return Holder{}, err
	}
	if !ok || h.State == Revoked {
		return Holder{}, ErrNotFound
	}
	// The gens are read before the mark: a correction in between changes them,
	// and the decrement then finds nothing.
	gens, err := readGens(ctx, v.Store, h.Levels)
	if err != nil {
		return Holder{}, err
	}
	c.Reason = ReasonRevoke
	before, ok, err := v.Store.MarkHolder(ctx, t, Mark{Cause: c})
	if err != nil {
		return Holder{}, err
	}
	if !ok {
		return Holder{}, ErrNotFound
	}
	for _, b := range before.Levels {
		gen, known := gens[b.ID]
		if !known {
			gen = b.Gen
		}
		if _, derr := v.Store.Decrement(ctx, b.ID, gen); derr != nil {
			err = errors.Join(err, fmt.Errorf("the lease is revoked; counter %s is left to reconcile: %w", b.ID, derr))
		}
	}
	e := eventOf("forced", before)
	e.At, e.Reason, e.By = time.Now(), string(ReasonRevoke), c.By
	return before, errors.Join(err, v.Store.AddEvent(ctx, e))
}

// ForceRevokePod is ForceRevoke for every lease of a pod. It returns how many
// it took away.
func (v View) ForceRevokePod(ctx context.Context, pod PodID, by string) (int, error) {
	n := 0
	var after Token
	for {
		hs, err := v.Store.Holders(ctx, Filter{Pod: pod, After: after})
		if err != nil || len(hs) == 0 {
			return n, err
		}
		for _, h := range hs {
			switch _, err := v.ForceRevoke(ctx, h.Token, Cause{By: by, Pod: pod}); {
			case err == nil:
				n++
			case !errors.Is(err, ErrNotFound): // one that ended meanwhile is no error
				return n, err
			}
			after = h.Token
		}
	}
}

// Reconcile runs one reconcile pass over the store without a pod. Counters
// younger than margin are left alone, as always (spec §4).
func (v View) Reconcile(ctx context.Context, margin time.Duration) (Reconciled, error) {
	return reconciler{store: v.Store, ids: randomIdentities{}, margin: margin}.pass(ctx)
}
