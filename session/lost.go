package session

import (
	"context"
	"encoding/hex"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// onLostReopen is the Caller.OnLost of clients that stay on their id after an
// error.
const onLostReopen = "reopen"

// enter notes an exchange in its session, or answers why it cannot. A lost
// session of a caller that stays on its id is opened again here.
func (t *turn) enter(s *live, x *exchange, waits bool) bool {
	for range 3 {
		if s.enter(x) {
			return true
		}
		if !t.mayReopen(s, waits) {
			break
		}
		if f := t.reopen(s); f != nil {
			t.refuse(f)
			return false
		}
	}
	t.gone(s, waits)
	return false
}

// lose ends what belongs to a lease that is gone: the client's streams and
// calls first, then the upstream session. sl is the lease that was found lost;
// where the session has another one by now, nothing ends.
func (p *Proxy) lose(ctx context.Context, s *live, sl slot, reason lease.Reason) {
	if reason == "" {
		reason = p.engine.lostReason(ctx, sl.Ref().Token)
	}
	s.mu.Lock()
	if s.slot != sl || s.phase != alive {
		s.mu.Unlock()
		return
	}
	s.move(wasLost, reason, &lostCause{reason})
	tried := make(chan struct{})
	s.ending = tried
	id, version, doc := s.upstream, s.version, s.doc
	s.mu.Unlock()
	defer close(tried)
	p.opt.Log.InfoContext(ctx, "session lost its lease", "session", s.number, "server", s.server, "reason", reason)
	if c := s.takeChild(); c != nil {
		p.closeChild(ctx, s.tenant, c)
		return
	}
	// The mark's handler sends the DELETE as well, until it is confirmed; this
	// one makes sure that no client is told before it has been tried.
	if doc != nil {
		p.endUpstream(ctx, doc, id, version, p.callerOf(ctx, doc, sl))
	}
}

// upstreamGone gives back the lease of a session that the upstream does not
// know any more.
func (t *turn) upstreamGone(ctx context.Context, s *live) {
	sl, _, _ := s.held()
	if t.c.OnLost == onLostReopen {
		t.keepInit(ctx, s, sl) // the release deletes the holder that has it
	}
	if !s.close(wasLost, "", &lostCause{}) {
		return
	}
	t.p.opt.Log.InfoContext(ctx, "the upstream has ended a session", "session", s.number, "server", s.server)
	if s.hasChild() {
		t.p.giveBack(ctx, s, sl, false)
		return
	}
	// Some answer so for a method or a tool that they do not know, and the session
	// lives on: it must not outlive its slot.
	t.p.closeOpened(ctx, s, sl, t.doc, t.c.Authorization.Reveal())
	if sl.Noop() {
		t.p.table.bury(s.number)
	}
}

// giveBack releases the lease of a session whose upstream session is gone, or
// out of reach since its document leads elsewhere.
func (p *Proxy) giveBack(ctx context.Context, s *live, sl slot, elsewhere bool) {
	if elsewhere {
		p.opt.Log.InfoContext(ctx, "a session's server has another address now", "session", s.number, "server", s.server)
	}
	p.release(ctx, sl, true)
	if sl.Noop() {
		p.table.bury(s.number)
	}
}

// gone answers a request on a session that is not alive.
func (t *turn) gone(s *live, waits bool) {
	s.mu.Lock()
	ph, reason := s.phase, s.reason
	sl, told, ending := s.slot, s.told, s.ending
	s.mu.Unlock()
	if ending != nil {
		<-ending // bounded by upstream.EndTimeout and childTimeout
	}
	if ph != wasLost {
		t.refuse(unknownSession())
		return
	}
	if reason == "" && !sl.Noop() {
		// The upstream may have forgotten the session since another pod's handler
		// ended it: then the mark knows why.
		reason = t.p.engine.lostReason(t.r.Context(), sl.Ref().Token)
		s.mu.Lock()
		s.reason = reason
		s.mu.Unlock()
	}
	if t.c.OnLost == onLostReopen && waits && !told && t.keepInit(t.r.Context(), s, sl) {
		s.mu.Lock()
		s.told = true
		s.mu.Unlock()
		t.refuse(lost(http.StatusOK, reason))
		return
	}
	if sl.Noop() {
		t.refuse(unknownSession()) // there was no lease to lose
		return
	}
	t.refuse(lost(http.StatusNotFound, reason))
}

// keepInit makes sure that the initialize of the session is at hand.
func (t *turn) keepInit(ctx context.Context, s *live, sl slot) bool {
	s.mu.Lock()
	has := len(s.init) > 0
	s.mu.Unlock()
	if has {
		return true
	}
	if sl.Noop() {
		return false
	}
	h, err := t.p.holder(ctx, lease.Filter{Token: sl.Ref().Token, States: []lease.State{lease.Held, lease.Revoked}})
	if err != nil || h == nil || h.Payload[payInit] == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init = []byte(h.Payload[payInit])
	return true
}

// successor looks whether another pod has opened the session again: then its
// number has a new holder.
func (t *turn) successor(ctx context.Context, s *live, gone slot) bool {
	if t.c.OnLost != onLostReopen {
		return false
	}
	h, err := t.p.holder(ctx, lease.Filter{Key: s.number.key(), States: []lease.State{lease.Held}})
	if err != nil || h == nil || h.Token == gone.Ref().Token || h.Payload[payPrincipal] != hex.EncodeToString(s.owner[:]) || h.Payload[paySession] == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slot != gone {
		return true
	}
	s.slot, s.upstream, s.version = t.p.engine.attach(refOf(h)), sessionOf(h.Payload), h.Payload[payProtocol]
	return true
}

// mayReopen reports whether this request opens its lost session again: the next
// call after the client has been told.
func (t *turn) mayReopen(s *live, waits bool) bool {
	if t.c.OnLost != onLostReopen || !waits || t.p.draining.Load() || !t.env.Batch && t.env.One().Method == "ping" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == wasLost && s.told && len(s.init) > 0
}

// reopen opens the upstream session again with the kept initialize, acquires
// anew and goes on under the client's id.
func (t *turn) reopen(s *live) *refusal {
	s.reopening.Lock()
	defer s.reopening.Unlock()
	s.mu.Lock()
	ph, init := s.phase, s.init
	s.mu.Unlock()
	if ph != wasLost {
		return nil // another request has done it
	}
	p := t.p
	sl, f := t.acquire(t.r.Context(), s.number, init)
	if f != nil {
		return f
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.r.Context()))
	defer cancel(nil)
	if t.doc.Transport == "stdio" {
		return t.reopenChild(ctx, s, sl, init)
	}
	header := t.r.Header.Clone()
	header.Del(upstream.HeaderProtocol) // it is agreed anew
	header.Del(upstream.HeaderLastEventID)
	o, f := t.initialize(ctx, cancel, wire.Keep(init), header)
	if f != nil {
		p.giveBackUnopened(ctx, sl)
		return f
	}
	_ = o.body.Close()
	next := &live{number: s.number, owner: s.owner, server: s.server, slot: sl, upstream: o.session, version: o.version, endpoint: endpointOf(t.doc.URL)}
	if o.refused {
		f = upstreamDown(t.server, "it refused to open the session again")
	} else if f = t.initialized(ctx, next); f == nil {
		f = t.settle(ctx, next, sl, init)
	}
	if f != nil {
		p.closeOpened(ctx, next, sl, t.doc, t.c.Authorization.Reveal())
		return f
	}
	s.revive(next, p)
	return nil
}

// initialized sends the notification that the client sent long ago.
func (t *turn) initialized(ctx context.Context, s *live) *refusal {
	resp, err := t.p.send(ctx, leg{doc: t.doc, method: http.MethodPost, caller: t.c.Authorization.Reveal(), session: s.upstream, version: s.version,
		header: http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}},
		body:   wire.Keep([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))})
	if err != nil {
		return t.p.failed(ctx, t, err)
	}
	upstream.Drain(resp.Body)
	if resp.StatusCode >= 300 {
		return upstreamDown(t.server, "it refused to open the session again")
	}
	return nil
}

// revive puts the new lease and upstream session in the place of the lost ones.
func (s *live) revive(next *live, p *Proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.reason, s.told, s.ending = alive, "", false, nil
	s.slot, s.upstream, s.version, s.endpoint, s.doc = next.slot, next.upstream, next.version, next.endpoint, nil
	s.forward, s.child = next.forward, next.child
	s.lastUse.Store(next.lastUse.Load())
	s.count(p)
}
