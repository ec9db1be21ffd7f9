package lease

import (
	"context"
	"time"
)

// NewStepped is New for a scheduler: ids are given, nothing runs by itself, the
// pod counts as registered and no grace is in force.
func NewStepped(opt Options, token func() Token, gen func() Gen, base context.Context) (*Manager, error) {
	m, err := New(opt)
	if err != nil {
		return nil, err
	}
	m.ids = givenIdentities{token, gen}
	m.endBase()
	m.base, m.endBase = context.WithCancel(base)
	m.phase.Store(phaseRunning)
	m.lines.jitter = func() time.Duration { return (pollMin + pollMax) / 2 }
	m.lastOwn.Store(time.Now().Add(1000 * time.Hour).UnixNano())
	return m, nil
}

type givenIdentities struct {
	newToken func() Token
	newGen   func() Gen
}

func (g givenIdentities) token() Token { return g.newToken() }
func (g givenIdentities) gen() Gen     { return g.newGen() }

// ReapIdle is the idle part of a sweep.
func (m *Manager) ReapIdle(ctx context.Context) (int, error) { return m.reapIdle(ctx, "", reapRounds) }

// ReconcilePeriodically is the pass that follows each sweep.
func (m *Manager) ReconcilePeriodically(ctx context.Context) (Reconciled, error) {
	return m.reconcilePeriodically(ctx)
}

// Halt ends what runs in the background without the store's help.
func (m *Manager) Halt() {
	m.endBase()
	m.dispatch.close()
	m.loops.wait()
	m.undoing.wait()
}

// Settle waits until no handler and no rollback runs.
func (m *Manager) Settle() {
	for {
		m.dispatch.mu.Lock()
		n := m.dispatch.workers + len(m.dispatch.queue)
		m.dispatch.mu.Unlock()
		m.undoing.mu.Lock()
		n += m.undoing.n
		m.undoing.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Waiting is how many requests wait for a slot.
func (m *Manager) Waiting() int {
	m.lines.mu.Lock()
	defer m.lines.mu.Unlock()
	return m.lines.n
}
