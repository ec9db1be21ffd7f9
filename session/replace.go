package session

import (
	"context"
	"encoding/hex"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// replaceOwn ends the caller's oldest session on this server that has no call
// in flight (onBusy: replaceOwn). Clients that crash never send DELETE and
// would wait for the slot of a session that nobody uses.
func (q *request) replaceOwn(ctx context.Context) {
	p := q.p
	hs, err := p.opt.Leases.Find(ctx, lease.Filter{Type: HandlerType, Tenant: q.caller.Tenant, Project: q.caller.Project, User: q.caller.User, States: []lease.State{lease.Held}})
	if err != nil {
		p.opt.Log.WarnContext(ctx, "own sessions could not be listed", "server", q.server, "error", err)
		return
	}
	slices.SortFunc(hs, func(a, b lease.Holder) int { return a.CreatedAt.Compare(b.CreatedAt) })
	me := hex.EncodeToString(q.owner[:])
	for i := range hs {
		h := &hs[i]
		if h.Payload[payPrincipal] == me && h.Payload[payServer] == q.doc.Name && h.Payload[payEndpoint] == endpointText(q.doc) && q.replace(ctx, h) {
			return
		}
	}
}

// replace ends one session, unless it has a call in flight.
func (q *request) replace(ctx context.Context, h *lease.Holder) bool {
	p := q.p
	e := ending{cause: replaced, doc: q.doc, authorization: q.authorization()}
	if s := p.table.of(h); s != nil {
		held := s.hold.Load()
		return s.calls.Load() == 0 && held.lease.Ref().Token == h.Token && p.end(ctx, s, held, e)
	}
	// A call in flight touches its lease every TTL/3, so a holder that
	// nobody has touched for half its TTL has none, wherever it is.
	if h.PodBound || time.Since(h.LastSeenAt) < h.TTL/2 {
		return false
	}
	e.authorization = p.openAuthorization(h.Payload)
	where := scope{tenant: q.caller.Tenant, project: q.caller.Project, server: q.server}
	p.letGo(ctx, where, &hold{lease: p.opt.Leases.Attach(lease.RefOf(*h)), upstream: sessionOf(h.Payload), version: h.Payload[payProtocol], endpoint: endpointOf(q.doc.URL)}, e)
	return true
}
