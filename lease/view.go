package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// View reads a store for operators and, where no pod can be asked, acts on it
// directly (spec §9). It needs no Manager: the command line makes one over the
// store itself. What it takes away is marked, not deleted, so a pod that comes
// back later still runs the handlers.
type View struct{ Store Store }

// View gives a View of the manager's store.
func (m *Manager) View() View { return View{Store: m.store} }

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

// Occupancies lists counters in id order with the number of holders that book
// each: the number to which a reconcile pass corrects (spec §9). A difference is
// shown, not hidden.
func (v View) Occupancies(ctx context.Context, f OccupancyFilter) ([]Occupancy, error) {
	resource := f.Resource
	if resource != "" {
		resource = EncodeResource(resource)
	}
	var all []Occupancy
	after := f.After
	for {
		page, err := v.Store.ListCounters(ctx, resource, after, reconcilePage)
		if err != nil || len(page) == 0 {
			return all, err
		}
		after = page[len(page)-1].ID
		last := len(page) < reconcilePage
		if f.Tenant != "" {
			page = slices.DeleteFunc(page, func(c CounterAge) bool {
				_, _, s, err := c.ID.Parse()
				return err != nil || s.Tenant != f.Tenant
			})
			after = passOver(after, f.Tenant)
		}
		if f.Limit > 0 {
			page = page[:min(len(page), f.Limit-len(all))]
		}
		booked := map[CounterID]int{}
		if len(page) > 0 {
			if booked, err = v.Store.Booked(ctx, counterIDs(page)); err != nil {
				return nil, err
			}
		}
		for _, c := range page {
			o := Occupancy{Counter: c.Counter, Booked: booked[c.ID], Age: c.Age}
			if res, level, scope, err := c.ID.Parse(); err == nil {
				o.Resource, o.Level, o.Scope = res, level, scope.String()
			} else {
				o.Resource = string(c.ID) // not ours; show it rather than hide it
			}
			all = append(all, o)
		}
		if last || f.Limit > 0 && len(all) == f.Limit {
			return all, nil
		}
	}
}

// passOver returns an id, at or behind last, with no counter of the tenant
// between the two: a tenant's view does not read what all others have.
func passOver(last CounterID, tenant string) CounterID {
	resource, rest, _ := strings.Cut(string(last), "|")
	level, _, found := strings.Cut(rest, "|")
	if !found {
		return last // not ours
	}
	name := encodePart(tenant)
	if inlineResource(resource) {
		switch own := definition.InlinePrefix + name + "/"; {
		case resource < own && !strings.HasPrefix(resource, own):
			return below(own)
		case !strings.HasPrefix(resource, own):
			return CounterID(definition.InlinePrefix + "~") // behind all of them
		}
	}
	// In the order of their ids; global belongs to no tenant.
	for _, l := range []definition.Level{definition.Project, definition.Tenant, definition.User} {
		want := resource + "|" + string(l) + "|" + name
		if l != definition.Tenant {
			want += "/"
		}
		switch {
		case string(last) < want:
			return below(want)
		case level == string(l) && l != definition.Tenant && strings.HasPrefix(string(last), want):
			return last // in the middle of the tenant's
		}
	}
	return CounterID(resource + "}") // } is the character behind |
}

// below is an id before prefix with no counter between the two: ~ is behind
// every character of an id.
func below(prefix string) CounterID {
	end := len(prefix) - 1
	return CounterID(prefix[:end] + string(prefix[end]-1) + "~")
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
	before, ok, err := v.force(ctx, t, c, gens)
	if err == nil && !ok {
		err = ErrNotFound
	}
	return before, err
}

// endTime is how long a forced mark that has begun may take, with its slots, when
// the caller's time is up.
const endTime = 5 * time.Second

// force marks a holder and gives its slots back. ok says that the mark stands,
// whatever came after it.
func (v View) force(ctx context.Context, t Token, c Cause, gens map[CounterID]Gen) (before Holder, ok bool, err error) {
	if err := ctx.Err(); err != nil {
		return Holder{}, false, err
	}
	// What has begun is finished, whoever has stopped waiting: a mark whose reply is
	// lost, or one without the rest, would leave its slots to reconcile.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	c.Reason = ReasonRevoke
	before, ok, err = v.Store.MarkHolder(end, t, Mark{Cause: c})
	if err != nil || !ok {
		return Holder{}, false, err
	}
	// At once, so that a store which flushes for several together does so.
	errs := make([]error, len(before.Levels)+1)
	var all sync.WaitGroup
	for i, b := range before.Levels {
		all.Go(func() {
			if _, err := takeOff(end, v.Store, b, gens); err != nil {
				errs[i] = fmt.Errorf("the lease is revoked; counter %s is left to reconcile: %w", b.ID, err)
			}
		})
	}
	all.Go(func() {
		e := eventOf("forced", before)
		e.At, e.Reason, e.By = time.Now(), string(ReasonRevoke), c.By
		errs[len(before.Levels)] = v.Store.AddEvent(end, e)
	})
	all.Wait()
	return before, true, errors.Join(errs...)
}

// ForceRevokePod is ForceRevoke for every lease of a pod. It returns how many
// it took away, also beside an error.
func (v View) ForceRevokePod(ctx context.Context, pod PodID, by string) (int, error) {
	n := 0
	var after Token
	for {
		hs, err := v.Store.Holders(ctx, Filter{Pod: pod, After: after, Limit: reapBatch})
		if err != nil || len(hs) == 0 {
			return n, err
		}
		after = hs[len(hs)-1].Token
		gens, err := readGens(ctx, v.Store, levelsOf(hs))
		if err != nil {
			return n, err
		}
		took, err := takeEach(hs, func(h Holder) (bool, error) {
			_, ok, err := v.force(ctx, h.Token, Cause{By: by, Pod: pod}, gens)
			return ok, err // one that ended meanwhile is no error
		})
		if n += took; err != nil {
			return n, err
		}
	}
}

// Reconcile runs one reconcile pass over the store without a pod. Counters
// younger than margin are left alone, as always (spec §4); an audit of those that
// drift begins.
func (v View) Reconcile(ctx context.Context, margin time.Duration) (Reconciled, error) {
	return reconciler{store: v.Store, ids: randomIdentities{}, margin: margin}.pass(ctx)
}
