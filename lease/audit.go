package lease

import (
	"context"
	"sync"
)

// An audit mends the drift of a counter that is never quiet (spec §4): it tells
// what is older than its beginning from what is newer, waits until the old part
// can only shrink, and corrects that part alone. Three things make it safe:
//
// Its beginning changes the gen and notes the count. Whatever lists another gen
// is old, whatever is added from then on is not, and who gives an old booking
// back takes one off the old part as well.
//
// It ends a margin later at the earliest. A holder is older than its increments
// and takes no entry after half a margin, so by then every old increment is
// listed or never will be.
//
// Its end reads the old part, then counts the old bookings, and corrects on the
// condition that the old part is still what was read. A decrement in between
// makes it fail. One that comes later, of a holder that was not there any more to
// be counted, must find nothing, since its slot has been given back: it means
// the gen during the audit or one before, and by then there is a new one. Those
// that list the gen during the audit were never part of the correction, and find
// it as prev.

// auditTries is how often one pass reads a counter anew to begin or end its
// audit: it is in constant use, so it may have changed in between.
const auditTries = 3

// openAudit begins an audit and reports whether one is open. A counter whose
// last audit has ended less than a margin ago gets none: a lease that uses the
// gens of its list, being young, must not meet the changes of two audits.
func (r reconciler) openAudit(ctx context.Context, c Counter) (bool, error) {
	for range auditTries {
		ok, err := r.store.OpenAudit(ctx, c, r.ids.gen(), r.margin)
		if err != nil || ok {
			return ok, err
		}
		now, found, err := r.read(ctx, c.ID)
		switch {
		case err != nil, !found:
			return false, err
		case now.Audit != nil:
			return true, nil // somebody else's
		case now.Count == c.Count && now.Gen == c.Gen:
			return false, nil // it was not refused for having changed
		}
		c = now
	}
	return false, nil
}

// closeAudit ends an audit that is a margin old and returns what it has taken
// off the count. Fewer old ones than bookings would be a count that is too low:
// it is put right as well, and can only let fewer in.
func (r reconciler) closeAudit(ctx context.Context, id CounterID) (closed bool, off int, err error) {
	for range auditTries {
		c, found, err := r.read(ctx, id)
		if err != nil || !found || c.Audit == nil {
			return false, 0, err
		}
		booked, err := r.store.BookedBefore(ctx, id, c.Gen)
		if err != nil {
			return false, 0, err
		}
		ok, err := r.store.CloseAudit(ctx, c, booked, r.ids.gen(), r.margin)
		if err != nil {
			return false, 0, err
		}
		if ok {
			return true, c.Audit.Old - booked, nil
		}
	}
	return false, 0, nil
}

func (r reconciler) read(ctx context.Context, id CounterID) (c Counter, found bool, err error) {
	cs, err := r.store.Counters(ctx, []CounterID{id})
	if err != nil || len(cs) == 0 {
		return Counter{}, false, err
	}
	return cs[0], true, nil
}

// maxSuspects bounds what is remembered between two passes. With more drifting
// counters than that some of them wait for their audit.
const maxSuspects = 10000

// suspects are the counters that the last pass of this pod has seen drifting.
type suspects struct {
	mu  sync.Mutex
	ids map[CounterID]bool
}

// before tells which counters drifted in the last pass.
func (s *suspects) before() func(CounterID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.ids
	return func(id CounterID) bool { return ids[id] }
}

func (s *suspects) replace(drift []Drift) {
	ids := make(map[CounterID]bool, min(len(drift), maxSuspects))
	for _, d := range drift[:min(len(drift), maxSuspects)] {
		ids[d.ID] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = ids
}
