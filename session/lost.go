package session

import (
	"cmp"
	"context"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// enter notes an exchange in its session, or says why it cannot. A lost session
// of a caller that stays on its id is opened again here.
func (q *request) enter(s *session, x *exchange) *refusal {
	for range 3 {
		if s.enter(x) != nil {
			return nil
		}
		if !q.mayReopen(s) {
			break
		}
		if f := q.reopen(s); f != nil {
			return f
		}
	}
	return q.lossRefusal(s, false)
}

// told is what a client is told of a loss where nobody can ask the store.
func (q *request) told(l *loss) *refusal {
	if l.cause.consequences().to != lost {
		return unknownSession()
	}
	return sessionLost(l.reason, q.stays())
}

// lossRefusal answers a request on a session that is not alive. Counted says that a
// check of the lease has just found the loss, and has counted it.
func (q *request) lossRefusal(s *session, counted bool) *refusal {
	ctx := context.WithoutCancel(q.r.Context())
	l := s.lossSeen(ctx)
	if l == nil || l.cause.consequences().to != lost {
		return unknownSession()
	}
	h := s.hold.Load()
	reason := l.reason
	if !counted || reason == "" {
		// The upstream may have forgotten the session since another pod's handler
		// ended it: then the mark knows why.
		reason = cmp.Or(reason, h.lease.Loss(ctx).Reason)
	}
	if q.stays() && q.waits && q.keepInit(ctx, s, h) {
		s.mu.Lock()
		before := s.told
		s.told = true
		s.mu.Unlock()
		if !before {
			return sessionLost(reason, true)
		}
	}
	if h.lease.Noop() {
		return unknownSession() // there was no lease to lose
	}
	return sessionLost(reason, false)
}

// keepInit makes sure that the initialize of the session is at hand.
func (q *request) keepInit(ctx context.Context, s *session, h *hold) bool {
	s.mu.Lock()
	has := len(s.init) > 0
	s.mu.Unlock()
	if has {
		return true
	}
	if h.lease.Noop() {
		return false
	}
	holder, err := q.p.holder(ctx, lease.Filter{Token: h.lease.Ref().Token, States: []lease.State{lease.Held, lease.Revoked}})
	if err != nil || holder == nil || holder.Payload[payInit] == "" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init = []byte(holder.Payload[payInit])
	return true
}

// mayReopen reports whether this request opens its lost session again: the next
// call after the client has been told.
func (q *request) mayReopen(s *session) bool {
	if !q.stays() || !q.waits || q.p.draining.Load() || !q.env.Batch && q.env.One().Method == "ping" {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == lost && s.told && len(s.init) > 0
}
