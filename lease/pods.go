package lease

import (
	"context"
	"errors"
	"time"
)

// registerRetry is the pause between tries to register while the store is out
// of reach.
const registerRetry = time.Second

// PodAlive is the one definition of pod liveness, for sweeps, dispatch and
// views alike (spec §6): registered, not stopped, not stale, with an endpoint.
// A pod that judges adds that it is alive itself; see Manager.PodAlive.
func PodAlive(p Pod, staleAfter time.Duration) bool {
	switch p.State {
	case PodStarting, PodRunning, PodStopping:
		return p.Endpoint != "" && p.BeatAge < staleAfter
	}
	return false
}

// PodAlive is the one definition of pod liveness (spec §6). The own pod is
// always alive: it is obviously judging, and its own beat being late must not
// make it a target. Where the store proves that nobody else uses it, no other
// pod is.
func (m *Manager) PodAlive(p Pod) bool {
	if p.ID == m.opt.Pod.ID {
		return true
	}
	return !m.store.SinglePod() && PodAlive(p, m.opt.StaleAfter)
}

// podsCertain reports whether a pod that does not look alive is dead: not while
// nobody had time to beat after an outage of the store or this pod's start. The
// embedded store's file lock proves it at once.
func (m *Manager) podsCertain() bool {
	return m.store.SinglePod() || !m.contact.podGrace(time.Now())
}

// LivingPods lists the other pods that are alive.
func (m *Manager) LivingPods(ctx context.Context) ([]Pod, error) {
	all, err := m.store.Pods(ctx)
	if err != nil {
		return nil, storeGone(err)
	}
	var living []Pod
	for _, p := range all {
		if p.ID != m.opt.Pod.ID && m.PodAlive(p) {
			living = append(living, p)
		}
	}
	return living, nil
}

// register writes this pod's registration and reads it back: a pod takes no
// lease before it has seen its own, so a holder whose pod is not registered
// belongs to a pod that is gone for good.
func (m *Manager) register(ctx context.Context) error {
	for told := false; ; {
		err := m.putPod(ctx, PodStarting, false)
		if err == nil {
			err = m.seeOwnPod(ctx)
		}
		if err == nil {
			err = m.putPod(ctx, PodRunning, false)
		}
		if err == nil {
			return nil
		}
		if !told {
			told = true
			m.log.Error("the lease store cannot be reached yet; trying on", "error", err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(registerRetry):
		}
	}
}

func (m *Manager) seeOwnPod(ctx context.Context) error {
	all, err := m.store.Pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.ID == m.opt.Pod.ID {
			return nil
		}
	}
	return errors.New("this pod's registration is not in the store")
}

func (m *Manager) putPod(ctx context.Context, s PodState, handedOver bool) error {
	p := m.opt.Pod
	p.State, p.HandedOver = s, handedOver
	if p.StartedAt.IsZero() {
		p.StartedAt = time.Now()
		m.opt.Pod.StartedAt = p.StartedAt
	}
	begun := time.Now()
	err := m.store.PutPod(ctx, p)
	if err == nil {
		m.lastOwn.Store(begun.UnixNano())
	}
	return err
}

// beat tells the others that this pod lives. A registration that is gone (the
// process was frozen for so long that somebody removed it) is written again:
// the id still means this process and no other.
func (m *Manager) beat(ctx context.Context) error {
	begun := time.Now()
	ok, err := m.store.BeatPod(ctx, m.opt.Pod.ID)
	if err != nil {
		return err
	}
	if ok {
		m.lastOwn.Store(begun.UnixNano())
		return nil
	}
	switch m.phase.Load() {
	case phaseRunning:
		return m.putPod(ctx, PodRunning, false)
	case phaseDraining:
		return m.putPod(ctx, PodStopping, false)
	}
	return nil
}

func (m *Manager) beatLoop(ctx context.Context) {
	t := time.NewTicker(m.opt.Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := m.beat(ctx); err != nil && ctx.Err() == nil {
				m.log.Warn("the heartbeat was not taken; other pods will call this one dead if this lasts", "error", err)
			}
		}
	}
}

// ownUntil is the local time until which no other pod can call this one dead.
func (m *Manager) ownUntil() time.Time {
	last := m.lastOwn.Load()
	if last == 0 {
		return time.Time{}
	}
	return time.Unix(0, last).Add(m.opt.StaleAfter - safety(m.opt.StaleAfter))
}

// freshOwnPod beats first where this pod may count as dead: one that was frozen
// must not take a lease that a sweep elsewhere would reap at once.
func (m *Manager) freshOwnPod(ctx context.Context) error {
	if time.Now().Before(m.ownUntil()) || m.store.SinglePod() {
		return nil
	}
	return m.beat(ctx)
}

// safety is what local knowledge of a store period holds back for clocks that
// do not run equally fast.
func safety(period time.Duration) time.Duration { return min(2*time.Second, period/4) }
