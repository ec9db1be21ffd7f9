package session

import (
	"context"
	"encoding/hex"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// visit is a request in the session that it names.
type visit struct {
	*request
	s *session // nil for a request without a session
}

// inSession finds the session that a request names and lets do serve it, or says
// why not. The principal is compared on every verb.
func (q *request) inSession(do func(*visit) *refusal.Refusal) *refusal.Refusal {
	p := q.p
	ids := q.r.Header[upstream.HeaderSession]
	if len(ids) > 1 {
		return refusal.Bad(refusal.RPCInvalid, "the header Mcp-Session-Id stands there more than once")
	}
	if len(ids) == 0 || ids[0] == "" {
		return refusal.Bad(refusal.RPCInvalid, "the header Mcp-Session-Id is missing: initialize a session first")
	}
	st, err := sessionid.Open(p.ids, sessionid.ID(ids[0]), sessionid.Route(q.caller.Tenant, q.caller.Project, q.server))
	if err != nil || st.Owner != q.owner {
		return refusal.UnknownSession()
	}
	s := p.table.get(st.Number)
	if s == nil {
		var f *refusal.Refusal
		if s, f = q.adopt(&st); f != nil {
			return f
		}
	}
	h := s.hold.Load()
	if q.env != nil && q.env.Batch && h.version != batchRevision {
		return refusal.Bad(refusal.RPCInvalid, "batches belong to revision %s; this session speaks %s", batchRevision, h.version)
	}
	if !s.leadsTo(q.doc) {
		// The upstream session is out of reach, and its id is nobody else's
		// business.
		p.end(q.r.Context(), s, h, ending{cause: leadsElsewhere})
	}
	return do(&visit{request: q, s: s})
}

// adopt makes the state of a session that this pod does not know from its id, or
// says why not.
func (q *request) adopt(st *sessionid.Sealed) (*session, *refusal.Refusal) {
	p := q.p
	if st.Pod != "" {
		return q.adoptChild(st)
	}
	if p.table.entombed(st.Number) {
		return nil, refusal.UnknownSession()
	}
	h := &hold{lease: p.opt.Leases.Attach(st.Lease), upstream: st.Upstream, version: st.Version, endpoint: st.Endpoint}
	if st.InPayload {
		holder, err := p.holder(q.r.Context(), lease.Filter{Token: st.Lease.Token})
		if err != nil {
			return nil, refusal.Lease(err)
		}
		if holder == nil {
			return nil, refusal.Lost(h.lease.Loss(q.r.Context()).Reason, false)
		}
		h.upstream = sessionOf(holder.Payload)
	}
	s := q.newSession(st.Number, st.Opened, h)
	s.listened.Store(true) // as far as is known here: another process has opened it
	s.lastUse.Store(p.now())
	return p.enlist(s), nil
}

// holder finds one holder; nil where there is none.
func (p *Proxy) holder(ctx context.Context, f lease.Filter) (*lease.Holder, error) {
	f.Type, f.Limit = HandlerType, 1
	hs, err := p.opt.Leases.Find(ctx, f)
	if err != nil || len(hs) == 0 {
		return nil, err
	}
	return &hs[0], nil
}

// check asks the store before a use (spec §3) and returns what the session holds;
// nil where it is lost. A use touches the lease; anything else only looks, and goes
// on where the store cannot be reached: it is no use of the resource.
func (v *visit) check(ctx context.Context) (*hold, *refusal.Refusal) {
	if !v.s.isAlive() {
		return nil, nil
	}
	// A second time where another pod has opened the session again.
	for h := v.s.hold.Load(); ; {
		err := look(ctx, h.lease, v.uses)
		if err == nil {
			return h, nil
		}
		reason, gone := lease.Lost(err)
		if !gone {
			if !v.uses {
				return h, nil
			}
			v.p.opt.Log.WarnContext(ctx, "a lease could not be checked", "session", v.s.number, "error", err)
			return nil, refusal.Lease(err)
		}
		if next := v.successor(ctx, h); next != nil {
			v.s.take(h, next)
			h = next
			continue
		}
		v.counted = true
		v.p.end(ctx, v.s, h, ending{cause: leaseGone, reason: reason, authorization: v.authorization()})
		return nil, nil
	}
}

// look is one store call: a touch for a use, a look otherwise.
func look(ctx context.Context, l *lease.Lease, uses bool) error {
	if uses {
		return l.Check(ctx)
	}
	return l.Peek(ctx)
}

// successor is what a session holds that another pod has opened again: then its
// number has a new holder.
func (v *visit) successor(ctx context.Context, gone *hold) *hold {
	if !v.stays() {
		return nil
	}
	holder, err := v.p.holder(ctx, lease.Filter{Key: v.s.number.Key(), States: []lease.State{lease.Held}})
	if err != nil || holder == nil || holder.Token == gone.lease.Ref().Token || holder.Payload[payPrincipal] != hex.EncodeToString(v.s.owner[:]) || holder.Payload[paySession] == "" {
		return nil
	}
	return &hold{lease: v.p.opt.Leases.Attach(lease.RefOf(*holder)), upstream: sessionOf(holder.Payload), version: holder.Payload[payProtocol], endpoint: gone.endpoint}
}
