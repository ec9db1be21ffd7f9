package session

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// inSession finds the session that a request names and lets do serve it, or
// answers why not. The principal is compared on every verb.
func (t *turn) inSession(do func(*turn, *live)) {
	p := t.p
	ids := t.r.Header[upstream.HeaderSession]
	if len(ids) > 1 {
		t.refuse(badRequest(rpcInvalid, "the header Mcp-Session-Id stands there more than once"))
		return
	}
	if len(ids) == 0 || ids[0] == "" {
		t.refuse(badRequest(rpcInvalid, "the header Mcp-Session-Id is missing: initialize a session first"))
		return
	}
	st, err := openID(p.ids, ID(ids[0]), route(t.c.Tenant, t.c.Project, t.server))
	if err != nil || st.Owner != t.owner {
		t.refuse(unknownSession())
		return
	}
	s := p.table.get(st.Number)
	if s == nil {
		var f *refusal
		if s, f = t.adopt(&st); s == nil {
			if f != nil {
				t.refuse(f)
			}
			return
		}
	}
	if t.env != nil && t.env.Batch {
		if _, _, version := s.held(); version != batchRevision {
			t.refuse(badRequest(rpcInvalid, "batches belong to revision %s; this session speaks %s", batchRevision, version))
			return
		}
	}
	if !s.sameEndpoint(t.doc) {
		// The document leads elsewhere now: the upstream session is out of reach,
		// and its id is nobody else's business.
		sl, _, _ := s.held()
		if s.close(wasLost, "", &lostCause{}) {
			p.giveBack(t.r.Context(), s, sl, true)
		}
	}
	do(t, s)
}

// adopt makes the state of a session that this pod does not know from its id.
// With neither a session nor a refusal the request has been answered.
func (t *turn) adopt(st *sealed) (*live, *refusal) {
	p := t.p
	if st.Pod != "" {
		if st.Pod == p.opt.Pod || t.forwarded {
			return nil, p.childGone(t.r.Context(), st)
		}
		return nil, t.forward(st)
	}
	if p.table.buried(st.Number) {
		return nil, unknownSession()
	}
	s := &live{
		number: st.Number, owner: st.Owner, tenant: t.c.Tenant, project: t.c.Project, server: t.server, label: labelOf(t.doc),
		opened: st.Opened, slot: p.engine.attach(st.Lease), upstream: st.Upstream, version: st.Version, endpoint: st.Endpoint,
	}
	s.lastUse.Store(p.now())
	if st.InPayload {
		h, err := p.holder(t.r.Context(), lease.Filter{Token: st.Lease.Token})
		if err != nil {
			return nil, leaseRefusal(err)
		}
		if h == nil {
			return nil, lost(http.StatusNotFound, p.engine.lostReason(t.r.Context(), st.Lease.Token))
		}
		s.upstream = upstream.SessionID(h.Payload[paySession])
	}
	return p.enlist(s), nil
}

// enlist puts a session into the table.
func (p *Proxy) enlist(s *live) *live {
	standing, added := p.table.put(s)
	if added {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.phase == alive { // it can be revoked already
			s.count(p)
		}
	}
	return standing
}

// delist takes it out.
func (p *Proxy) delist(s *live) {
	if p.table.remove(s) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.count(nil)
	}
}

// holder finds one holder; nil where there is none.
func (p *Proxy) holder(ctx context.Context, f lease.Filter) (*lease.Holder, error) {
	f.Type, f.Limit = HandlerType, 1
	hs, err := p.engine.find(ctx, f)
	if err != nil {
		var un *lease.UnavailableError
		if !errors.As(err, &un) {
			err = &lease.UnavailableError{Why: "the lease store could not be reached", Err: err}
		}
		return nil, err
	}
	if len(hs) == 0 {
		return nil, nil
	}
	return &hs[0], nil
}

// podCache keeps the list of living pods for a moment, so that a chatty stdio
// client behind the wrong pod costs no store call for every message.
type podCache struct {
	mu   sync.Mutex
	at   time.Time
	pods []lease.Pod
}
