package session

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// closers is how many sessions are closed at once.
const closers = 32

// closeGrace is what is left for closing sessions when the context of Drain has
// ended while calls were still in flight.
const closeGrace = 10 * time.Second

// lostKept is how long a pod remembers why a session was lost. Later requests
// learn it from the store.
const lostKept = 10 * time.Minute

// Drain takes no new sessions and waits until calls in flight are done or ctx
// ends. Then it closes every session and gives the leases back, or, handed over,
// leaves HTTP sessions to the other pods.
func (p *Proxy) Drain(ctx context.Context, handedOver bool) error {
	p.draining.Store(true)
	p.janitor.stop()
	var late error
	select {
	case <-p.traffic.wait():
	case <-ctx.Done():
		late = ctx.Err()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	if late != nil {
		p.hurry()
	}
	var g errgroup.Group
	g.SetLimit(closers)
	for _, s := range p.table.list() {
		s.cancelAll(late != nil)
		h := s.hold.Load()
		e := ending{cause: shutdown}
		if handedOver && h.child == nil {
			e.cause = handover
		}
		g.Go(func() error {
			p.end(closing, s, h, e)
			p.delist(s) // also one that was lost before
			return nil
		})
	}
	_ = g.Wait() // its functions return no errors: each logs its own
	p.orphans.stop()
	p.hurry()
	p.up.CloseIdle()
	return late
}

// janitor ends sessions that nobody uses, now and then.
type janitor struct {
	p     *Proxy
	every time.Duration

	mu    sync.Mutex // held while it runs, so that Drain can wait for it
	timer *time.Timer
	done  bool
}

func (j *janitor) begin(p *Proxy) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.p, j.every = p, min(max(p.opt.Session.Idle/4, time.Second), 30*time.Second)
	j.timer = time.AfterFunc(j.every, j.tidy)
}

func (j *janitor) stop() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timer.Stop()
	j.done = true
}

// tidy ends sessions without a lease that nobody uses and forgets what the pod
// need not remember. It touches no lease.
func (j *janitor) tidy() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done {
		return
	}
	defer j.timer.Reset(j.every)
	p := j.p
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now := p.now()
	for _, s := range p.table.list() {
		h := s.hold.Load()
		notUsed := time.Duration(now - s.lastUse.Load())
		switch {
		case !s.idle():
		case !s.isAlive():
			if notUsed > lostKept {
				p.delist(s)
			}
		case h.lease.Noop():
			if notUsed >= p.opt.Session.Idle {
				j.endUnused(ctx, s, h)
			}
		case notUsed > max(2*h.lease.Ref().TTL, lostKept) && h.child == nil:
			// Its lease has been reaped, or it lives on another pod by now.
			p.delist(s)
		}
	}
}

// endUnused ends a session without a lease after session.idle. With other pods
// about, one of them may be serving it at this moment and no store would know:
// then this pod only forgets it and leaves the end to the upstream.
func (j *janitor) endUnused(ctx context.Context, s *session, h *hold) {
	p := j.p
	if p.opt.Forwarder != nil && h.child == nil {
		if pods, err := p.opt.Leases.LivingPods(ctx); err != nil || len(pods) > 0 {
			p.delist(s)
			return
		}
	}
	p.end(ctx, s, h, ending{cause: unused})
}
