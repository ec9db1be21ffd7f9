package lease

import (
	"context"
	"errors"
	"time"
)

const (
	// reapBatch is how many holders one query of a reap lists.
	reapBatch = 200
	// reapRounds bounds a sweep that finds more and more.
	reapRounds = 50
	// podLife is how long the registration of a dead pod that no holder names
	// stays, for views.
	podLife = time.Hour
)

// mark takes a holder away: one update PENDING|HELD → REVOKED whose filter
// repeats the cause, so a lease that was touched, adopted or released in
// between lives, and of a release and a reap exactly one wins. Who marked gives
// the slots back: state and levels are those of the document that the update
// returned, never of an earlier listing. A mark is not a delete, so a pod that
// dies right after it loses no handler: sweeps find the mark.
func (m *Manager) mark(ctx context.Context, t Token, c Mark, gens map[CounterID]Gen) (Holder, bool, error) {
	before, ok, err := m.store.MarkHolder(ctx, t, c)
	if err != nil || !ok {
		return Holder{}, false, err
	}
	m.giveBack(ctx, before.Levels, gens)
	m.known.lose(t, &LostError{Reason: c.Reason})
	if before.State == Pending {
		return before, true, nil // nothing was held; the mark is handled already
	}
	if kindOf(c.Reason) != EventClosed { // its holder gave it back; nobody took it
		m.obs.Reaped(c.Reason)
	}
	e := eventOf(kindOf(c.Reason), before)
	e.Reason, e.By = string(c.Reason), c.By
	m.happened(e)
	return before, true, nil
}

func kindOf(r Reason) EventKind {
	switch r {
	case ReasonRevoke:
		return EventRevoked
	case ReasonClose, ReasonReplaced, ReasonShutdown, ReasonCrashed, ReasonMoved:
		return EventClosed
	}
	return EventSwept
}

// take marks and, where something was held, has the handler run. A close is
// left to the next sweep: it has just been tried.
func (m *Manager) take(ctx context.Context, listed Holder, c Mark, gens map[CounterID]Gen) (Holder, bool, error) {
	before, ok, err := m.mark(ctx, listed.Token, c, gens)
	if err != nil || !ok {
		return before, ok, err
	}
	if before.State == Held {
		m.dispatch.enqueue(before.Token)
	}
	return before, true, nil
}

// gensOf reads the gens for a batch of marks in one query, before the marks. A
// batch whose gens cannot be read is marked all the same; its lists have gens.
func (m *Manager) gensOf(ctx context.Context, hs []Holder) map[CounterID]Gen {
	gens, err := readGens(ctx, m.store, levelsOf(hs))
	if err != nil {
		m.log.Debug("counters could not be read before a reap", "error", err)
	}
	return gens
}

// reapIdle takes away what nobody has used for longer than its TTL, of one
// resource or, with "", of all (spec §5). A lease that the store's absence kept
// from being touched has one TTL more. It takes at most rounds batches.
func (m *Manager) reapIdle(ctx context.Context, resource string, rounds int) (int, error) {
	n := 0
	for range rounds {
		hs, err := m.store.Expired(ctx, resource, 0, reapBatch)
		if err != nil || len(hs) == 0 {
			return n, err
		}
		due := hs[:0:0]
		now := time.Now()
		for _, h := range hs {
			if !m.contact.idleGrace(now, h.TTL) {
				due = append(due, h)
			}
		}
		if len(due) == 0 {
			return n, nil
		}
		gens, took := m.gensOf(ctx, due), 0
		for _, h := range due {
			_, ok, err := m.take(ctx, h, Mark{Cause: Cause{Reason: ReasonIdle}, Expired: true}, gens)
			if err != nil {
				return n + took, err
			}
			if ok {
				took++
			}
		}
		n += took
		if took == 0 || len(hs) < reapBatch {
			return n, nil
		}
	}
	return n, nil
}

// lazySweep is the idle reap of one resource because somebody wants a slot of
// it, at most once per resource, pod and second. It goes the same way as the
// periodic one, handlers included, and nobody waits for those. It reports
// whether a slot was freed.
func (m *Manager) lazySweep(ctx context.Context, resource string) bool {
	if !m.lazy.open(resource, time.Now()) {
		return false
	}
	n, err := m.reapIdle(ctx, resource, 1)
	if err != nil && ctx.Err() == nil {
		m.log.Debug("a lazy sweep was cut short", "error", err)
	}
	return n > 0
}

// reapPods takes away the leases of dead pods; those whose whole state is in
// the store move to this pod instead (spec §5).
//
// The order decides: holders are listed before the registry is read. A pod
// registers before its first lease, so a pod that has a holder in an earlier
// listing and is dead in a later reading was dead with that holder, and not one
// that has just started or come back.
func (m *Manager) reapPods(ctx context.Context, done *Swept) error {
	if !m.podsCertain() {
		return nil
	}
	named, err := m.store.HolderPods(ctx)
	if err != nil {
		return err
	}
	first, err := m.registry(ctx)
	if err != nil {
		return err
	}
	for _, id := range named {
		if p := first[id]; m.PodAlive(p) {
			continue
		}
		var after Token
		for range reapRounds {
			hs, err := m.store.Holders(ctx, Filter{Pod: id, After: after, Limit: reapBatch})
			if err != nil {
				return err
			}
			if len(hs) == 0 {
				break
			}
			after = hs[len(hs)-1].Token
			now, err := m.registry(ctx)
			if err != nil {
				return err
			}
			if p := now[id]; m.PodAlive(p) {
				break
			}
			if err := m.reapPod(ctx, now[id], hs, done); err != nil {
				return err
			}
		}
	}
	return m.removePods(ctx, named, first)
}

func (m *Manager) reapPod(ctx context.Context, p Pod, hs []Holder, done *Swept) error {
	gens := m.gensOf(ctx, hs)
	for _, h := range hs {
		if h.State == Held && !h.PodBound {
			if adopter, ok := m.handlers[h.Type].(Adopter); ok {
				moved, err := m.store.AdoptHolder(ctx, h.Token, h.Pod, m.opt.Pod.ID)
				if err != nil {
					return err
				}
				if moved {
					h.Pod = m.opt.Pod.ID
					done.Adopted++
					m.dispatch.adopt(adopter, h)
				}
				continue
			}
			// It was handed over: the client goes on with any pod, whose check
			// makes it that pod's. Its TTL says when nobody came.
			if p.HandedOver && p.State == PodStopped {
				continue
			}
		}
		_, ok, err := m.take(ctx, h, Mark{Cause: Cause{Reason: ReasonPod, Pod: h.Pod}}, gens)
		if err != nil {
			return err
		}
		if ok {
			done.Pod++
		}
	}
	return nil
}

// registry reads all registrations. A pod that is missing from it maps to its
// zero value with the id left out, which is as dead as any.
func (m *Manager) registry(ctx context.Context) (map[PodID]Pod, error) {
	ps, err := m.store.Pods(ctx)
	if err != nil {
		return nil, err
	}
	byID := make(map[PodID]Pod, len(ps)+1)
	for _, p := range ps {
		byID[p.ID] = p
	}
	if _, ok := byID[m.opt.Pod.ID]; !ok {
		byID[m.opt.Pod.ID] = Pod{ID: m.opt.Pod.ID}
	}
	return byID, nil
}

// removePods deletes registrations that nobody needs any more.
func (m *Manager) removePods(ctx context.Context, named []PodID, all map[PodID]Pod) error {
	inUse := map[PodID]bool{m.opt.Pod.ID: true}
	for _, id := range named {
		inUse[id] = true
	}
	for id, p := range all {
		if inUse[id] || m.PodAlive(p) || p.BeatAge < podLife {
			continue
		}
		if err := m.store.RemovePod(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// Sweep runs one reaper round now: dead pods, idle leases, marks whose handler
// has not run, and what has had its time. A part that fails does not keep the
// others from running.
func (m *Manager) Sweep(ctx context.Context) (Swept, error) {
	var done Swept
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(m.reapPods(ctx, &done))
	idle, err := m.reapIdle(ctx, "", reapRounds)
	done.Idle = idle
	note(err)
	note(m.dispatch.sweep(ctx, &done))
	done.Purged, err = m.store.PurgeHandled(ctx, m.opt.MarkLife)
	note(err)
	_, err = m.store.PurgeRecords(ctx)
	note(err)
	now := time.Now()
	m.known.forget(now)
	m.lazy.forget(now)
	m.contact.forget(now, 2*24*time.Hour)
	if err := errors.Join(errs...); err != nil {
		return done, storeGone(err)
	}
	return done, nil
}

// sweepLoop sweeps and reconciles once at the start, since there may be marks
// that a dead pod left and, on the embedded store, leases of the process before,
// and then each interval.
func (m *Manager) sweepLoop(ctx context.Context) {
	t := time.NewTicker(m.opt.ReapInterval)
	defer t.Stop()
	for {
		if done, err := m.Sweep(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("a sweep was cut short", "error", err)
		} else if done.Idle+done.Pod+done.Adopted+done.Handled > 0 {
			m.log.Info("swept", "idle", done.Idle, "deadPod", done.Pod, "adopted", done.Adopted, "handled", done.Handled, "unhandled", done.Unhandled)
		}
		if done, err := m.reconcilePeriodically(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("a reconcile pass was cut short", "error", err)
		} else if done.Corrected > 0 {
			m.log.Info("counters corrected", "corrected", done.Corrected, "removed", done.Removed)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Revoke takes a lease away by decision and dispatches its handler (spec §9).
// ErrNotFound where no living holder matches token and cause.
func (m *Manager) Revoke(ctx context.Context, t Token, c Cause) (Holder, error) {
	h, ok, err := m.store.Holder(ctx, t)
	if err != nil {
		return Holder{}, storeGone(err)
	}
	if !ok || h.State == Revoked {
		return Holder{}, ErrNotFound
	}
	if c.Reason == "" {
		c.Reason = ReasonRevoke
	}
	before, ok, err := m.take(ctx, h, Mark{Cause: c}, m.gensOf(ctx, []Holder{h}))
	switch {
	case err != nil:
		return Holder{}, storeGone(err)
	case !ok:
		return Holder{}, ErrNotFound
	}
	return before, nil
}

// RevokePod takes away every lease of a pod and returns how many, also beside an
// error.
func (m *Manager) RevokePod(ctx context.Context, pod PodID, by string) (int, error) {
	n := 0
	var after Token
	for {
		hs, err := m.store.Holders(ctx, Filter{Pod: pod, After: after, Limit: reapBatch})
		if err != nil {
			return n, storeGone(err)
		}
		if len(hs) == 0 {
			return n, nil
		}
		after = hs[len(hs)-1].Token
		gens := m.gensOf(ctx, hs)
		took, err := takeEach(hs, func(h Holder) (bool, error) {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			// What has begun is finished, so that who asked is told the right number.
			own, cancel := m.own(ctx)
			defer cancel()
			_, ok, err := m.take(own, h, Mark{Cause: Cause{Reason: ReasonRevoke, By: by, Pod: pod}}, gens)
			return ok, err
		})
		if n += took; err != nil {
			return n, storeGone(err)
		}
	}
}
