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
	// lasts says whether the drift of a counter in use is old enough for an
	// audit; nil takes all for old.
	lasts func(CounterID) bool
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
//
// A counter in constant use is never quiet; its drift is mended by an audit.
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
	drifts, audited := c.Count != booked, c.Audit != nil
	var err error
	switch {
	case c.Age > r.margin && (drifts || booked == 0):
		return r.quiet(ctx, c.Counter, booked, done)
	case audited && c.AuditAge > r.margin:
		closed, off, err := r.closeAudit(ctx, c.ID)
		if off != 0 {
			r.corrected(done)
		}
		if closed || err != nil {
			return err
		}
	case drifts && !audited && (r.lasts == nil || r.lasts(c.ID)):
		audited, err = r.openAudit(ctx, c.Counter)
	}
	if drifts {
		done.Drift = append(done.Drift, Drift{ID: c.ID, Count: c.Count, Booked: booked, Age: c.Age, Audited: audited})
	}
	return err
}

// quiet corrects a counter that nothing has touched for a margin, or removes it
// where nobody books it. An audit that is open ends with it.
func (r reconciler) quiet(ctx context.Context, c Counter, booked int, done *Reconciled) error {
	var ok bool
	var err error
	if booked == 0 {
		ok, err = r.store.RemoveCounter(ctx, c, r.margin)
		if ok {
			done.Removed++
		}
	} else {
		ok, err = r.store.CorrectCounter(ctx, c, booked, r.ids.gen(), r.margin)
	}
	if ok && c.Count != booked {
		r.corrected(done)
	}
	return err
}

func (r reconciler) corrected(done *Reconciled) {
	done.Corrected++
	if r.fixed != nil {
		r.fixed()
	}
}

// Reconcile runs one reconcile pass now; it needs no pod and no handler.
// Counters younger than the margin are left alone and their drift is reported
// with its age (spec §4). An audit begins at once for each of them; a pass that
// comes a margin later, of any pod, ends it.
func (m *Manager) Reconcile(ctx context.Context) (Reconciled, error) {
	return m.reconcile(ctx, nil)
}

// reconcilePeriodically is Reconcile for passes that come by themselves. What is
// on its way between counter and list looks like drift; an audit begins only
// where the pass before has seen some as well.
func (m *Manager) reconcilePeriodically(ctx context.Context) (Reconciled, error) {
	return m.reconcile(ctx, m.suspects.before())
}

func (m *Manager) reconcile(ctx context.Context, lasts func(CounterID) bool) (Reconciled, error) {
	drift := map[driftKey]int{}
	done, err := reconciler{
		store: m.store, ids: m.ids, margin: m.opt.ReconcileSafety, lasts: lasts,
		fixed: func() { m.obs.Reconciled(ReconcileCorrected) },
		seen: func(c CounterAge, booked int) {
			if resource, level, _, perr := c.ID.Parse(); perr == nil {
				drift[driftKey{m.labels.of(resource), level}] += c.Count - booked
			}
		},
	}.pass(ctx)
	if err != nil {
		return done, unavailable("the lease store could not be reached", err)
	}
	m.suspects.replace(done.Drift)
	m.labels.drifted(drift, time.Now(), m.obs)
	return done, nil
}
