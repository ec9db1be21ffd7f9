package session

import (
	"context"
	"encoding/hex"
	"hash/maphash"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// releaseTimeout bounds giving a lease back. It runs under no client's context:
// a client that hangs up must not leave a holder behind.
const releaseTimeout = 10 * time.Second

var prints = maphash.MakeSeed()

// fingerprint tells whether a credential has changed, within this process.
func fingerprint(secret string) uint64 {
	if secret == "" {
		return 0
	}
	return maphash.String(prints, secret)
}

// endUpstream sends the DELETE of an upstream session, counts its outcome and
// reports whether the session is known to be gone.
func (p *Proxy) endUpstream(ctx context.Context, doc *server.Document, id upstream.SessionID, version, caller string) bool {
	if id == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), upstream.EndTimeout)
	defer cancel()
	auth, err := p.auth(ctx, doc)
	outcome := upstream.Unreachable
	if err == nil {
		outcome, err = p.up.End(ctx, upstream.Ending{URL: doc.URL, Untrusted: doc.Untrusted, Auth: auth, Caller: caller, Session: id, Protocol: version})
	}
	p.opt.Observer.Closed(string(outcome))
	if err != nil {
		p.opt.Log.WarnContext(ctx, "the end of an upstream session is not confirmed", "server", doc.Name, "outcome", outcome, "error", err)
	}
	return outcome == upstream.Confirmed
}

// closeSession ends a session that has been moved to hasEnded: upstream first,
// then the lease, then what the pod remembers.
func (p *Proxy) closeSession(ctx context.Context, s *live, sl slot, doc *server.Document, caller string) {
	p.closeOpened(ctx, s, sl, doc, caller)
	if sl.Noop() {
		p.table.bury(s.number)
	}
	p.delist(s)
}

// closeOpened ends the upstream session and gives the lease back. An end that
// is not confirmed leaves a mark, so that the sweeps go on trying.
func (p *Proxy) closeOpened(ctx context.Context, s *live, sl slot, doc *server.Document, caller string) {
	_, id, version := s.held()
	confirmed := true
	if c := s.takeChild(); c != nil {
		p.closeChild(ctx, s.tenant, c)
	} else {
		confirmed = p.endUpstream(ctx, doc, id, version, caller)
	}
	p.release(ctx, sl, confirmed)
}

// release gives the lease back, with a mark where the upstream session may
// still live.
func (p *Proxy) release(ctx context.Context, sl slot, confirmed bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	give := sl.Release
	if !confirmed {
		give = sl.ReleaseUnconfirmed
	}
	if err := give(ctx); err != nil {
		// Where the holder still stands, the idle reap takes it after its TTL, and
		// its handler finds the upstream session gone. Where only counters are
		// left, the reconciler sets them right.
		p.opt.Log.WarnContext(ctx, "a lease could not be given back whole; what is left of it, the idle reap or the reconciler will take", "error", err)
	}
}

// giveBackUnopened releases a lease for which no upstream session was opened.
func (p *Proxy) giveBackUnopened(ctx context.Context, sl slot) { p.release(ctx, sl, true) }

// replaceOwn ends the caller's oldest session on this server that has no call
// in flight (onBusy: replaceOwn). Clients that crash never send DELETE and
// would wait for their own ghost.
func (t *turn) replaceOwn(ctx context.Context) {
	p := t.p
	hs, err := p.engine.find(ctx, lease.Filter{Type: HandlerType, Tenant: t.c.Tenant, Project: t.c.Project, User: t.c.User, States: []lease.State{lease.Held}})
	if err != nil {
		p.opt.Log.WarnContext(ctx, "own sessions could not be listed", "server", t.server, "error", err)
		return
	}
	slices.SortFunc(hs, func(a, b lease.Holder) int { return a.CreatedAt.Compare(b.CreatedAt) })
	me := hex.EncodeToString(t.owner[:])
	for i := range hs {
		h := &hs[i]
		if h.Payload[payPrincipal] != me || h.Payload[payServer] != t.doc.Name || h.Payload[payEndpoint] != endpointText(t.doc) {
			continue
		}
		if s := p.byToken(h); s != nil {
			sl, _, _ := s.held()
			if s.calls.Load() > 0 || sl.Ref().Token != h.Token || !s.close(hasEnded, "", errEnded) {
				continue
			}
			p.closeSession(ctx, s, sl, t.doc, t.c.Authorization.Reveal())
			return
		}
		// A call in flight touches its lease every TTL/3, so a holder that
		// nobody has touched for half its TTL has none, wherever it is.
		if h.PodBound || time.Since(h.LastSeenAt) < h.TTL/2 {
			continue
		}
		caller := p.keptCaller(h.Payload)
		confirmed := p.endUpstream(ctx, t.doc, sessionOf(h.Payload), h.Payload[payProtocol], caller)
		p.release(ctx, p.engine.attach(refOf(h)), confirmed)
		return
	}
}

// byToken is the session of a holder, where this pod knows it.
func (p *Proxy) byToken(h *lease.Holder) *live {
	raw, err := hex.DecodeString(h.Payload[payKey])
	if err != nil || len(raw) != len(Number{}) {
		return nil
	}
	return p.table.get(Number(raw))
}

// refOf names a holder's lease.
func refOf(h *lease.Holder) lease.Ref {
	return lease.Ref{Token: h.Token, Type: h.Type, Label: h.Label, TTL: h.TTL, PodBound: h.PodBound}
}
