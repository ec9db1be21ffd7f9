package session

import (
	"context"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
)

// enter notes an exchange in its session and returns what the session holds, its
// lease checked just now, or says why not. A lost session of a caller that stays on
// its id is opened again here.
func (q *request) enter(s *session, x *exchange) (*hold, *refusal.Refusal) {
	for range 4 {
		if q.uses {
			if l := q.untold(s); l != nil {
				return nil, l
			}
		}
		h, f := q.check(x.Context(), s)
		if f != nil {
			return nil, f
		}
		if h != nil {
			switch now := s.enter(x); {
			case now == h:
				return h, nil
			case now != nil: // opened again since the check
				s.exit(x, q.p.now())
				continue
			}
		}
		if f := q.lost(s); f != nil {
			return nil, f
		}
	}
	return nil, refusal.UpstreamDown(q.server, "its session is lost again and again; try again in about 5 s")
}

// untold tells a tools/call of a loss that the client does not know of: its next
// call goes to a session without the state that it believes in. That is said once.
func (q *request) untold(s *session) *refusal.Refusal {
	if !q.stays() {
		return nil
	}
	s.mu.Lock()
	l, lostNow := s.untold, s.phase == lost
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	h := s.hold.Load()
	if lostNow {
		if s.lossSeen(q.r.Context()); !q.reopens(s, l, h) {
			return nil
		}
	}
	reason := q.reasonOf(l, h)
	q.countLoss(h)
	s.mu.Lock()
	told := s.untold != l
	s.untold = nil
	s.mu.Unlock()
	if told {
		return nil // by a call beside this one
	}
	return refusal.ToldOnce(reason, lostNow)
}

// lost says what a request on a lost session is answered, or opens it again; nil
// means that it has been.
func (q *request) lost(s *session) *refusal.Refusal {
	ctx := context.WithoutCancel(q.r.Context())
	l := s.lossSeen(ctx)
	if l == nil {
		return nil // opened again beside this request
	}
	if l.cause.consequences().to != lost {
		return refusal.UnknownSession()
	}
	h := s.hold.Load()
	if !q.reopens(s, l, h) {
		q.countLoss(h)
		if h.lease.Noop() {
			return refusal.UnknownSession() // there was no lease to lose
		}
		return refusal.Lost(q.reasonOf(l, h), false)
	}
	if q.uses {
		if f := q.untold(s); f != nil {
			return f
		}
	}
	switch {
	case q.r.Method == http.MethodGet:
		if s.listened.Load() {
			return &refusal.Refusal{Form: refusal.StandsBy}
		}
		// A client that is told 404 here closes, and one that is told 405 goes on
		// without a stream.
		return refusal.WrongVerb("the session is lost; the next request on POST opens it again", "POST, DELETE")
	case q.r.Method == http.MethodDelete:
		s.endLost()
		return refusal.Accepted(http.StatusNoContent)
	case !q.waits:
		return refusal.Accepted(http.StatusAccepted) // there is nobody whom it could concern
	case q.p.draining.Load():
		return refusal.Stopping()
	}
	f := q.reopen(s)
	if f != nil && q.uses {
		f.Form = refusal.AsResult
	}
	return f
}

// cut answers a request whose session was lost under it and of whose answer
// nothing has gone out. It is not sent again: nobody knows what has been done of it.
func (q *request) cut(x *exchange) *refusal.Refusal {
	l := lossOf(x.Context())
	if l == nil {
		return refusal.Lost("", q.stays())
	}
	<-l.tried // bounded by upstream.EndTimeout and childTimeout
	h := x.s.hold.Load()
	if q.r.Method != http.MethodPost || !q.waits || !q.reopens(x.s, l, h) {
		if f := q.lost(x.s); f != nil {
			return f
		}
	}
	q.countLoss(h)
	return q.told(x.s, l)
}

// told is what a client is told of a loss in the middle of an answer, where nobody
// can ask the store.
func (q *request) told(s *session, l *loss) *refusal.Refusal {
	if l.cause.consequences().to != lost {
		return refusal.UnknownSession()
	}
	if !q.stays() {
		return refusal.Lost(l.reason, false)
	}
	if !q.uses {
		return refusal.Lost(l.reason, true)
	}
	s.mu.Lock()
	if s.untold == l {
		s.untold = nil
	}
	s.mu.Unlock()
	return refusal.ToldOnce(l.reason, true)
}

// reasonOf is why a session was lost. The upstream may have forgotten it since
// another pod's handler ended it: then the mark knows why.
func (q *request) reasonOf(l *loss, h *hold) lease.Reason {
	if l.reason != "" || h.lease.Noop() {
		return l.reason
	}
	return q.p.opt.Leases.LostReason(context.WithoutCancel(q.r.Context()), h.lease.Ref().Token)
}

// countLoss has the engine count a client that is told of a loss, where no check
// of this request has found it.
func (q *request) countLoss(h *hold) {
	if !q.counted {
		q.counted = true
		h.lease.Loss(context.WithoutCancel(q.r.Context()))
	}
}

// reopens reports whether a lost session can be opened again: its caller stays on
// its id, the session was not ended by its client, which leaves no reason behind,
// and its initialize is kept, here or in the mark of its lease.
func (q *request) reopens(s *session, l *loss, h *hold) bool {
	if !q.stays() || !h.lease.Noop() && q.reasonOf(l, h) == "" {
		return false
	}
	s.mu.Lock()
	has := len(s.init) > 0
	s.mu.Unlock()
	if has || h.lease.Noop() {
		return has
	}
	ctx := context.WithoutCancel(q.r.Context())
	holder, err := q.p.holder(ctx, lease.Filter{Token: h.lease.Ref().Token, States: []lease.State{lease.Held, lease.Revoked}})
	if err != nil || holder == nil {
		return false
	}
	init := q.p.openInit(holder.Payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init = init
	return len(init) > 0
}
