package session

import (
	"context"
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
// ends. Then it closes every session and gives the leases back, or, with
// handover, leaves HTTP sessions to the other pods.
func (p *Proxy) Drain(ctx context.Context, handover bool) error {
	p.draining.Store(true)
	p.stopJanitor()
	var late error
	select {
	case <-p.traffic.wait():
	case <-ctx.Done():
		late = ctx.Err()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(closers)
	for _, s := range p.table.list() {
		s.stop(late != nil)
		sl, _, _ := s.held()
		if handover && !s.hasChild() {
			p.delist(s)
			continue
		}
		g.Go(func() error {
			if !s.close(hasEnded, "", errStopped) {
				p.delist(s)
				return nil
			}
			p.closeHere(closing, s, sl)
			return nil
		})
	}
	_ = g.Wait() // its functions return no errors: each logs its own
	p.late.stop()
	p.up.CloseIdle()
	return late
}

// stop ends the streams that only listen, and the calls as well where they
// have outlasted the drain.
func (s *live) stop(calls bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := s.first; x != nil; x = x.next {
		if calls || !x.call {
			x.cancel(errStopped)
		}
	}
}

// closeHere closes a session that no request is about.
func (p *Proxy) closeHere(ctx context.Context, s *live, sl slot) {
	doc, err := p.opt.Servers.Resolve(ctx, s.tenant, s.project, s.server)
	if s.hasChild() || err == nil && s.sameEndpoint(doc) {
		p.closeSession(ctx, s, sl, doc, p.callerOf(ctx, doc, sl))
		return
	}
	// Its document is gone or leads elsewhere: there is nobody to tell.
	p.giveBack(ctx, s, sl, true)
	p.delist(s)
}

func (p *Proxy) janitorEvery() time.Duration {
	return min(max(p.opt.Session.Idle/4, time.Second), 30*time.Second)
}

func (p *Proxy) stopJanitor() {
	p.janitor.Stop()
	p.janitorMu.Lock()
	defer p.janitorMu.Unlock()
	p.janitorDone = true
}

// tidy ends sessions without a lease that nobody uses and forgets what the pod
// need not remember. It touches no lease.
func (p *Proxy) tidy() {
	p.janitorMu.Lock()
	defer p.janitorMu.Unlock()
	if p.janitorDone {
		return
	}
	defer func() { p.janitor.Reset(p.janitorEvery()) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now := p.now()
	for _, s := range p.table.list() {
		sl, _, _ := s.held()
		unused := time.Duration(now - s.lastUse.Load())
		switch {
		case !s.idle():
		case !s.isAlive():
			if unused > lostKept {
				p.delist(s)
			}
		case sl.Noop():
			if unused >= p.opt.Session.Idle {
				p.endIdle(ctx, s, sl)
			}
		case unused > max(2*sl.Ref().TTL, lostKept) && !s.hasChild():
			// Its lease has been reaped, or it lives on another pod by now.
			p.delist(s)
		}
	}
}

// endIdle ends a session without a lease after session.idle. With other pods
// about, one of them may be serving it at this moment and no store would know:
// then this pod only forgets it and leaves the end to the upstream.
func (p *Proxy) endIdle(ctx context.Context, s *live, sl slot) {
	if p.opt.Forwarder != nil && !s.hasChild() {
		if pods, err := p.engine.livingPods(ctx); err != nil || len(pods) > 0 {
			p.delist(s)
			return
		}
	}
	if s.close(hasEnded, "", errEnded) {
		p.closeHere(ctx, s, sl)
	}
}

func (s *live) isAlive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == alive
}
