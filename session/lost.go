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
func (v *visit) enter(x *exchange) (*hold, *refusal.Refusal) {
	for range 4 {
		if v.uses {
			if l := v.untold(); l != nil {
				return nil, l
			}
		}
		h, f := v.check(x.Context())
		if f != nil {
			return nil, f
		}
		if h != nil {
			switch now := v.s.enter(x); {
			case now == h:
				return h, nil
			case now != nil: // opened again since the check
				v.s.exit(x, v.p.now())
				continue
			}
		}
		if f := v.lost(); f != nil {
			return nil, f
		}
	}
	return nil, refusal.UpstreamDown(v.server, "its session is lost again and again; try again in about 5 s")
}

// untold tells a tools/call of a loss that the client does not know of: its next
// call goes to a session without the state that it believes in. That is said once.
func (v *visit) untold() *refusal.Refusal {
	if !v.stays() {
		return nil
	}
	v.s.mu.Lock()
	l, lostNow := v.s.untold, v.s.phase == lost
	v.s.mu.Unlock()
	if l == nil {
		return nil
	}
	h := v.s.hold.Load()
	if lostNow {
		if v.s.lossSeen(v.r.Context()); !v.reopens(l, h) {
			return nil
		}
	}
	reason := v.reasonOf(l, h)
	v.countLoss(h)
	v.s.mu.Lock()
	told := v.s.untold != l
	v.s.untold = nil
	v.s.mu.Unlock()
	if told {
		return nil // by a call beside this one
	}
	return refusal.ToldOnce(reason, lostNow)
}

// lost says what a request on a lost session is answered, or opens it again; nil
// means that it has been.
func (v *visit) lost() *refusal.Refusal {
	ctx := context.WithoutCancel(v.r.Context())
	l := v.s.lossSeen(ctx)
	if l == nil {
		return nil // opened again beside this request
	}
	if l.cause.consequences().to != lost {
		return refusal.UnknownSession()
	}
	h := v.s.hold.Load()
	if !v.reopens(l, h) {
		v.countLoss(h)
		if h.lease.Noop() {
			return refusal.UnknownSession() // there was no lease to lose
		}
		return refusal.Lost(v.reasonOf(l, h), false)
	}
	if v.uses {
		if f := v.untold(); f != nil {
			return f
		}
	}
	switch {
	case v.r.Method == http.MethodGet:
		if v.s.listened.Load() {
			return &refusal.Refusal{Form: refusal.StandsBy}
		}
		// A client that is told 404 here closes, and one that is told 405 goes on
		// without a stream.
		return refusal.WrongVerb("the session is lost; the next request on POST opens it again", "POST, DELETE")
	case v.r.Method == http.MethodDelete:
		v.s.endLost()
		return refusal.Accepted(http.StatusNoContent)
	case !v.waits:
		return refusal.Accepted(http.StatusAccepted) // there is nobody whom it could concern
	case v.p.draining.Load():
		return refusal.Stopping()
	}
	f := v.reopen()
	if f != nil && v.uses {
		f.Form = refusal.AsResult
	}
	return f
}

// cut answers a request whose session was lost under it and of whose answer
// nothing has gone out. It is not sent again: nobody knows what has been done of it.
func (v *visit) cut(x *exchange) *refusal.Refusal {
	l := lossOf(x.Context())
	if l == nil {
		return refusal.Lost("", v.stays())
	}
	<-l.tried // bounded by upstream.EndTimeout, childTimeout and releaseTimeout
	h := x.s.hold.Load()
	if v.r.Method != http.MethodPost || !v.waits || !v.reopens(l, h) {
		if f := v.lost(); f != nil {
			return f
		}
	}
	v.countLoss(h)
	return v.told(l)
}

// told is what a client is told of a loss in the middle of an answer, where nobody
// can ask the store.
func (v *visit) told(l *loss) *refusal.Refusal {
	if l.cause.consequences().to != lost {
		return refusal.UnknownSession()
	}
	if !v.stays() {
		return refusal.Lost(l.reason, false)
	}
	if !v.uses {
		return refusal.Lost(l.reason, true)
	}
	v.s.mu.Lock()
	if v.s.untold == l {
		v.s.untold = nil
	}
	v.s.mu.Unlock()
	return refusal.ToldOnce(l.reason, true)
}

// reasonOf is why a session was lost. The upstream may have forgotten it since
// another pod's handler ended it: then the mark knows why.
func (v *visit) reasonOf(l *loss, h *hold) lease.Reason {
	if l.reason != "" || h.lease.Noop() {
		return l.reason
	}
	return v.p.opt.Leases.LostReason(context.WithoutCancel(v.r.Context()), h.lease.Ref().Token)
}

// countLoss has the engine count a client that is told of a loss, where no check
// of this request has found it.
func (v *visit) countLoss(h *hold) {
	if !v.counted {
		v.counted = true
		h.lease.Loss(context.WithoutCancel(v.r.Context()))
	}
}

// reopens reports whether a lost session can be opened again: its caller stays on
// its id, the session was not ended by its client, which leaves no reason behind,
// and its initialize is kept, here or in the mark of its lease.
func (v *visit) reopens(l *loss, h *hold) bool {
	if !v.stays() || !h.lease.Noop() && v.reasonOf(l, h) == "" {
		return false
	}
	v.s.mu.Lock()
	has := len(v.s.init) > 0
	v.s.mu.Unlock()
	if has || h.lease.Noop() {
		return has
	}
	ctx := context.WithoutCancel(v.r.Context())
	holder, err := v.p.holder(ctx, lease.Filter{Token: h.lease.Ref().Token, States: []lease.State{lease.Held, lease.Revoked}})
	if err != nil || holder == nil {
		return false
	}
	init := v.p.kept.init(holder.Payload)
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.s.init = init
	return len(init) > 0
}
