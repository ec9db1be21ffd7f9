package session

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
)

// replaceOwn ends a session of the caller on this server that has no call in
// flight: one without an open stream before others, then the one that was not used
// for longest. Clients that crash never send DELETE, and bridges probe: they would
// wait for the slot of a session that nobody uses. Where only another pod can know
// whether a session is in use, the request goes there, and the refusal says that it
// is answered.
func (o *opening) replaceOwn(ctx context.Context) *refusal.Refusal {
	q, p := o.q, o.q.p
	hs, err := p.opt.Leases.Find(ctx, lease.Filter{Type: HandlerType, Tenant: q.caller.Tenant, Project: q.caller.Project, User: q.caller.User, States: []lease.State{lease.Held}})
	if err != nil {
		p.opt.Log.WarnContext(ctx, "own sessions could not be listed", "server", q.server, "error", err)
		return nil
	}
	me := hex.EncodeToString(q.owner[:])
	hs = slices.DeleteFunc(hs, func(h lease.Holder) bool {
		return h.Payload[payPrincipal] != me || h.Payload[payServer] != q.doc.Name || h.Payload[payEndpoint] != endpointText(q.doc)
	})
	slices.SortFunc(hs, func(a, b lease.Holder) int {
		if c := cmp.Compare(p.table.underWay(&a), p.table.underWay(&b)); c != 0 {
			return c
		}
		return a.LastSeenAt.Compare(b.LastSeenAt)
	})
	var elsewhere []lease.PodID
	for i := range hs {
		switch o.replace(ctx, &hs[i]) {
		case hasReplaced:
			return nil
		case askPod:
			elsewhere = append(elsewhere, hs[i].Pod)
		}
	}
	for _, id := range elsewhere {
		if asked, f := q.forwardTo(id); asked {
			return f
		}
	}
	return nil
}

// replacement is what became of an attempt to replace a session.
type replacement uint8

const (
	stands      replacement = iota // it has a call in flight, or ends by itself just now
	hasReplaced                    // it has ended
	askPod                         // the pod that used its lease last knows
)

// replace ends one session, unless it has a call in flight.
func (o *opening) replace(ctx context.Context, h *lease.Holder) replacement {
	q, p := o.q, o.q.p
	e := ending{cause: replaced, doc: q.doc, authorization: q.authorization()}
	if s := p.table.of(h); s != nil && (h.Pod == p.opt.Pod || s.calls.Load() > 0) {
		held := s.hold.Load()
		if s.calls.Load() == 0 && held.lease.Ref().Token == h.Token && p.end(ctx, s, held, e) {
			return hasReplaced
		}
		return stands
	}
	// A call in flight touches its lease every TTL/3, so a holder that nobody has
	// touched for half its TTL has none, wherever it is; nor has one whose pod is
	// gone, or is this one and does not know it.
	if h.Pod != p.opt.Pod && (h.PodBound || time.Since(h.LastSeenAt) < h.TTL/2) && !q.forwarded {
		if pods, err := p.pods.living(ctx, p.opt.Leases); err != nil || slices.ContainsFunc(pods, func(l lease.Pod) bool { return l.ID == h.Pod }) {
			return askPod
		}
	}
	e.authorization = p.kept.authorization(h.Payload)
	where := scope{tenant: q.caller.Tenant, project: q.caller.Project, server: q.server}
	p.letGo(ctx, where, &hold{lease: p.opt.Leases.Attach(lease.RefOf(*h)), upstream: sessionOf(h.Payload), version: h.Payload[payProtocol], endpoint: sessionid.EndpointOf(q.doc.URL)}, e)
	return hasReplaced
}
