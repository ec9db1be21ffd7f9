package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ForceRevoke takes a lease away in the store without a pod (lease revoke
// --force). The slots are free and the holder fails at its next check. No
// handler runs now: a pod that is up, or comes up within the life of the mark,
// runs it at its next sweep; without one the resource is left to its own
// expiry. c.Reason is set here. ErrNotFound where nothing living matches.
func (m *Manager) ForceRevoke(ctx context.Context, t Token, c Cause) (Holder, error) {
	h, ok, err := m.store.Holder(ctx, t)
	if err != nil {
		return Holder{}, err
	}
	if !ok || h.State == Revoked {
		return Holder{}, ErrNotFound
	}
	// The gens are read before the mark: a correction in between changes them,
	// and the decrement then finds nothing.
	gens, err := readGens(ctx, m.store, h.Levels)
	if err != nil {
		return Holder{}, err
	}
	before, ok, err := m.force(ctx, t, c, gens)
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
func (m *Manager) force(ctx context.Context, t Token, c Cause, gens map[CounterID]Gen) (before Holder, ok bool, err error) {
	if err := ctx.Err(); err != nil {
		return Holder{}, false, err
	}
	// What has begun is finished, whoever has stopped waiting: a mark whose reply is
	// lost, or one without the rest, would leave its slots to reconcile.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	c.Reason, c.Forced = ReasonRevoke, true
	before, ok, err = m.store.MarkHolder(end, t, Mark{Cause: c})
	if err != nil || !ok {
		return Holder{}, false, err
	}
	// At once, so that a store which flushes for several together does so.
	errs := make([]error, len(before.Levels)+1)
	var all sync.WaitGroup
	for i, b := range before.Levels {
		all.Go(func() {
			if _, err := takeOff(end, m.store, b, gens); err != nil {
				errs[i] = fmt.Errorf("the lease is revoked; counter %s is left to reconcile: %w", b.ID, err)
			}
		})
	}
	all.Go(func() {
		e := eventOf(EventForced, before)
		e.At, e.Reason, e.By = time.Now(), string(ReasonRevoke), c.By
		errs[len(before.Levels)] = m.store.AddEvent(end, e)
	})
	all.Wait()
	return before, true, errors.Join(errs...)
}

// ForceRevokePod is ForceRevoke for every lease of a pod. It returns how many
// it took away, also beside an error.
func (m *Manager) ForceRevokePod(ctx context.Context, pod PodID, by string) (int, error) {
	n := 0
	var after Token
	for {
		hs, err := m.store.Holders(ctx, Filter{Pod: pod, After: after, Limit: reapBatch})
		if err != nil || len(hs) == 0 {
			return n, err
		}
		after = hs[len(hs)-1].Token
		gens, err := readGens(ctx, m.store, levelsOf(hs))
		if err != nil {
			return n, err
		}
		took, err := takeEach(hs, func(h Holder) (bool, error) {
			_, ok, err := m.force(ctx, h.Token, Cause{By: by, Pod: pod}, gens)
			return ok, err // one that ended meanwhile is no error
		})
		if n += took; err != nil {
			return n, err
		}
	}
}
