package lease

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
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

// levelsOf lists what the holders book, each counter once.
func levelsOf(hs []Holder) []Booking {
	var levels []Booking
	seen := map[CounterID]bool{}
	for _, h := range hs {
		for _, b := range h.Levels {
			if !seen[b.ID] {
				seen[b.ID] = true
				levels = append(levels, b)
			}
		}
	}
	return levels
}

// takenAtOnce is how many holders takeEach has under way: enough that the store's
// round trips and flushes are shared, few enough to leave it to others as well.
const takenAtOnce = 32

// takeEach calls take for every holder, several at once, until one fails. It
// returns how many it took, also beside an error.
func takeEach(hs []Holder, take func(Holder) (bool, error)) (int, error) {
	var took atomic.Int64
	var group errgroup.Group
	group.SetLimit(takenAtOnce)
	var failed atomic.Bool
	for _, h := range hs {
		if failed.Load() {
			break
		}
		group.Go(func() error {
			ok, err := take(h)
			if ok {
				took.Add(1)
			}
			if err != nil {
				failed.Store(true)
			}
			return err
		})
	}
	err := group.Wait()
	return int(took.Load()), err
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
			ok, err := takeOff(ctx, m.store, b, gens)
			switch {
			case err != nil:
				m.log.Warn("a counter could not be decremented; reconcile will mend it", "counter", b.ID, "error", err)
			case !ok:
				m.log.Debug("a counter was corrected or made anew meanwhile; nothing to give back", "counter", b.ID)
			}
		})
	}
	wg.Wait()
	m.lines.released(levels)
}

// takeOff decrements the counter of one booking, whose holder's delete or mark
// was won. A second step is needed only where the counter's gen was changed by
// an audit in between: at its beginning, the booking lists the gen from before,
// and at its end, the one during it; either is then the counter's prev. Never
// with the gen that was read: that an audit's end has made it prev says nothing
// of whether the end has counted the booking, or taken it off already.
func takeOff(ctx context.Context, s Store, b Booking, gens map[CounterID]Gen) (bool, error) {
	gen, ok := gens[b.ID]
	if !ok {
		gen = b.Gen
	}
	ok, err := s.Decrement(ctx, b.ID, gen, b.Gen)
	if err != nil || ok {
		return ok, err
	}
	return s.DecrementPrev(ctx, b.ID, b.Gen)
}
