package lease

import (
	"context"
	"sync"
)

func counterIDs(page []CounterAge) []CounterID {
	ids := make([]CounterID, len(page))
	for i, c := range page {
		ids[i] = c.ID
	}
	return ids
}

// readGens reads the generation of each counter that levels list. Every
// decrement for a holder is meant for a generation that was read while the
// holder still stood (or for the one in its list): a counter that was removed,
// made anew or corrected since then has another one, the decrement finds
// nothing, and no slot of a later holder is taken.
func readGens(ctx context.Context, s Store, levels []Booking) (map[CounterID]Gen, error) {
	if len(levels) == 0 {
		return nil, nil
	}
	ids := make([]CounterID, len(levels))
	for i, b := range levels {
		ids[i] = b.ID
	}
	cs, err := s.Counters(ctx, ids)
	if err != nil {
		return nil, err
	}
	gens := make(map[CounterID]Gen, len(cs))
	for _, c := range cs {
		gens[c.ID] = c.Gen
	}
	return gens, nil
}

// giveBack decrements what a deleted or marked document listed. Only the one
// whose delete or mark won calls it, once, with the levels of the document that
// it got back. gens are those read before; a level without one uses the gen in
// the list. A decrement that fails or whose reply is lost is not repeated:
// reconcile mends it.
func (m *Manager) giveBack(ctx context.Context, levels []Booking, gens map[CounterID]Gen) {
	var wg sync.WaitGroup
	for _, b := range levels {
		wg.Go(func() {
			gen, ok := gens[b.ID]
			if !ok {
				gen = b.Gen
			}
			m.decrement(ctx, b.ID, gen)
		})
	}
	wg.Wait()
	m.lines.released(levels)
}

func (m *Manager) decrement(ctx context.Context, id CounterID, gen Gen) {
	ok, err := m.store.Decrement(ctx, id, gen)
	switch {
	case err != nil:
		m.log.Warn("a counter could not be decremented; reconcile will mend it", "counter", id, "error", err)
	case !ok:
		m.log.Debug("a counter was corrected or made anew meanwhile; nothing to give back", "counter", id)
	}
}
