package session

import (
	"context"

	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// modern decides the era of a request, right after authentication: by the
// header, by what its _meta says, or by a method that only one era has. Clients
// try the newest revision first, whatever they end up with.
func (q *request) modern() (version string, ok bool) {
	header := q.r.Header.Get(upstream.HeaderProtocol)
	if !q.env.Batch && q.env.One().Method == "initialize" {
		// It belongs to the other era, whatever else its body says.
		return header, header == modernRevision
	}
	if header == modernRevision {
		return header, true
	}
	if q.env.Batch {
		return "", false
	}
	switch m := q.env.One(); {
	case m.Protocol != "":
		return m.Protocol, true
	case m.Method == "server/discover":
		if header != "" {
			return header, true
		}
		return modernRevision, true
	}
	return "", false
}

// fenced refuses a request of a client without sessions, so that it opens one.
func (q *request) fenced(version string) *refusal.Refusal {
	if q.env.One().Method == "server/discover" {
		// As every server of the revisions with sessions does: at the other code some
		// clients take it for one of the newest revision, and give up (AI SDK).
		return refusal.UnknownMethod("server/discover")
	}
	return refusal.UnsupportedRevision(version)
}

// sessionless answers a request of a client without sessions: a server whose
// lease has caps is fenced, so that the client opens a session; any other gets
// the request as it is.
func (q *request) sessionless(version string) *refusal.Refusal {
	p := q.p
	if q.env.Batch {
		return refusal.Bad(refusal.RPCInvalid, "batches belong to revision %s", batchRevision)
	}
	if q.doc.Modern == "fence" || q.doc.PodBound() {
		return q.fenced(version)
	}
	if def, err := p.opt.Leases.Resolve(q.r.Context(), q.namedLease(), q.leaseRequest()); err != nil || !def.Noop() {
		return q.fenced(version)
	}
	if q.env.One().Method == "initialize" {
		// Passed on as it is it would open a session that nobody here knows of.
		return refusal.UnknownMethod("initialize")
	}
	if !p.traffic.enter(q.share, true) {
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	defer p.traffic.exit(q.share, false)
	x := q.exchange(nil)
	defer x.Cancel(nil)
	x.working.Store(true)
	defer x.Settled()
	// In this revision a client cancels by closing its stream.
	stop := context.AfterFunc(q.r.Context(), func() { x.Cancel(context.Canceled) })
	defer stop()
	if q.env.One().Method == "subscriptions/listen" {
		x.Listen()
	} else if q.doc.MaxCall > 0 {
		x.Limit(q.doc.MaxCall)
	}
	x.Watch()
	defer x.Unwatch()
	u := q.toUpstream(&hold{})
	if u.header.Get(upstream.HeaderLastEventID) != "" {
		u.header = u.header.Clone()
		u.header.Del(upstream.HeaderLastEventID)
	}
	resp, err := p.send(x.Context(), u)
	if err != nil {
		return q.failed(x, err)
	}
	defer func() { _ = resp.Body.Close() }()
	x.Alive()
	if why := upstream.Unusable(resp, q.doc.Auth.Type == "forward", q.waits); why != "" {
		httpbody.Drain(resp.Body)
		return refusal.UpstreamDown(q.server, why)
	}
	return (&visit{request: q}).relay(x, resp)
}
