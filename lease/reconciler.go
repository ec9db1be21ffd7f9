package lease

import (
	"context"
	"time"
)

// reconcilePage is how many counters one query of a pass covers.
const reconcilePage = 500

// reconciler puts counters right that a crash left wrong (spec §4). It needs a
// store and nothing else.
type reconciler struct {
	store  Store
	ids    identities
	margin time.Duration
	seen   func(CounterAge, int) // each counter and what books it; may be nil
	fixed  func()                // a correction; may be nil
}

// pass goes over all counters once.
//
// The order is the proof. A counter counts as quiet only if it is older than
// the margin before its holders are read. An increment makes its counter young,
// and the push that books it is refused by the store once the holder is older
// than half the margin: so whatever has been added to a quiet counter is in a
// list by now or will never be. What is added after the listing changes
// updatedAt, and the conditional correction finds nothing. What is taken off
// after the correction was meant for the old gen, and finds nothing either.
func (r reconciler) pass(ctx context.Context) (Reconciled, error) {
	var done Reconciled
	var after CounterID
	for {
		page, err := r.store.ListCounters(ctx, "", after, reconcilePage)
		if err != nil || len(page) == 0 {
			return done, err
		}
		after = page[len(page)-1].ID
		booked, err := r.store.Booked(ctx, counterIDs(page))
		if err != nil {
			return done, err
		}
		for _, c := range page {
			if r.seen != nil {
				r.seen(c, booked[c.ID])
			}
			if err := r.one(ctx, c, booked[c.ID], &done); err != nil {
				return done, err
			}
		}
	}
}

func (r reconciler) one(ctx context.Context, c CounterAge, booked int, done *Reconciled) error {
	if c.Count == booked && booked > 0 {
		return nil
	}
	if c.Age <= r.margin {
		if c.Count != booked {
			done.Drift = append(done.Drift, Drift{ID: c.ID, Count: c.Count, Booked: booked, Age: c.Age})
		}
		return nil
	}
	var ok bool
	var err error
	if booked == 0 {
		ok, err = r.store.RemoveCounter(ctx, c.Counter, r.margin)
		if ok {
			done.Removed++
		}
	} else {
		ok, err = r.store.CorrectCounter(ctx, c.Counter, booked, r.ids.gen(), r.margin)
	}
	if ok && c.Count != booked {
		done.Corrected++
		if r.fixed != nil {
			r.fixed()
		}
	}
	return err
}

// Reconcile runs one reconcile pass now; it needs no pod and no handler.
// Counters younger than the margin are left alone and their drift is reported
// with its age (spec §4).
func (m *Manager) Reconcile(ctx context.Context) (Reconciled, error) {
	drift := map[driftKey]int{}
	done, err := reconciler{
		store: m.store, ids: m.ids, margin: m.opt.ReconcileSafety,
		fixed: func() { m.obs.Reconciled("corrected") },
		seen: func(c CounterAge, booked int) {
			if resource, level, _, perr := c.ID.Parse(); perr == nil {
				drift[driftKey{m.labels.of(resource), level}] += c.Count - booked
			}
		},
	}.pass(ctx)
	if err != nil {
		return done, unavailable("the lease store could not be reached", err)
	}
	m.labels.drifted(drift, time.Now(), m.obs)
	return done, nil
}
