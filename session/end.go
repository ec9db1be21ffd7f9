package session

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// releaseTimeout bounds giving a lease back. It runs under no client's context:
// a client that hangs up must not leave a holder behind.
const releaseTimeout = 10 * time.Second

// cause is why a session ends.
type cause uint8

const (
	byClient       cause = iota // DELETE
	openFailed                  // or its client was gone before the answer
	leaseGone                   // idle, dead pod or revoked, as a check has found
	revoked                     // the same, as the mark's handler is told, which ends the upstream session itself
	podGone                     // the pod that had the child is gone
	replaced                    // by its owner's next session (onBusy: replaceOwn)
	upstreamGone                // the upstream says that it does not know the session
	childExited                 // the stdio server's program, or an sse server's stream, has ended by itself
	leadsElsewhere              // the server's document has another address now
	unused                      // without a lease and without a request for session.idle
	shutdown                    // the pod stops and closes what it has
	handover                    // the pod stops and leaves the session to the others
)

// consequences are what a cause means for what a session holds. In each case what
// is under way towards the client ends, and so does a child.
type consequences struct {
	to       phase
	upstream bool // end the upstream session; else it is gone, out of reach or handed over
	release  bool // give the lease back; else it is gone already or handed over
	delist   bool // the pod need not remember the session
	// why is what the lease's mark tells whoever comes later, on any pod: with it a
	// client that stays on its id has its session opened again. Without it nothing
	// of the session is left.
	why  lease.Reason
	says string // in the log
}

func (c cause) consequences() consequences {
	switch c {
	case byClient:
		return consequences{to: ended, upstream: true, release: true, delist: true}
	case openFailed:
		return consequences{to: ended, upstream: true, release: true, delist: true}
	case revoked:
		return consequences{to: lost, says: "session revoked"}
	case leaseGone:
		// The mark's handler sends the DELETE as well, until it is confirmed; this
		// one makes sure that no client is told before it has been tried.
		return consequences{to: lost, upstream: true, says: "session lost its lease"}
	case podGone:
		return consequences{to: lost, release: true, why: lease.ReasonPod}
	case replaced:
		return consequences{to: lost, upstream: true, release: true, why: lease.ReasonReplaced, says: "session replaced by a new one of its owner"}
	case upstreamGone:
		// Some answer so for a method or a tool that they do not know, and the
		// session lives on: it must not outlive its slot.
		return consequences{to: lost, upstream: true, release: true, why: lease.ReasonCrashed, says: "the upstream has ended a session"}
	case childExited:
		return consequences{to: lost, release: true, why: lease.ReasonCrashed, says: "a server's program or event stream has ended by itself"}
	case leadsElsewhere:
		return consequences{to: lost, release: true, why: lease.ReasonMoved, says: "a session's server has another address now"}
	case shutdown:
		return consequences{to: lost, upstream: true, release: true, delist: true, why: lease.ReasonShutdown}
	case unused:
		return consequences{to: ended, upstream: true, release: true, delist: true}
	case handover:
		return consequences{to: ended, delist: true}
	}
	panic("session: an end without a cause")
}

// loss is why a session is no more. It is made where the end is noticed first,
// cancels what is under way in the session, and is what the client is told by
// whoever answers next.
type loss struct {
	cause  cause
	reason lease.Reason  // of a lost lease; "" where nobody knows
	tried  chan struct{} // closed when the upstream end and the release have been tried
}

func (l *loss) Error() string {
	if l.cause.consequences().to == lost {
		return (&lease.LostError{Reason: l.reason}).Error()
	}
	return "session: the session has ended"
}

// lossOf is the loss that has cancelled a context, if one has.
func lossOf(ctx context.Context) *loss {
	var l *loss
	errors.As(context.Cause(ctx), &l)
	return l
}

// ending is what an end may need beyond the session itself.
type ending struct {
	cause         cause
	reason        lease.Reason
	doc           *server.Document // nil: resolved again where it is needed
	authorization string           // of a caller, for auth forward; else the kept one
}

// end ends a session, if h is what it still holds. false means that somebody else
// has done so, or that the session was opened again. Nothing else ends a session that this pod
// knows; of one that only another pod knew, replace.go ends the upstream session.
func (p *Proxy) end(ctx context.Context, s *session, h *hold, e ending) bool {
	means := e.cause.consequences()
	if e.reason == "" {
		e.reason = means.why
	}
	l := &loss{cause: e.cause, reason: e.reason, tried: make(chan struct{})}
	if !s.leave(h, means.to, l) {
		return false
	}
	defer close(l.tried)
	if means.says != "" {
		p.opt.Log.InfoContext(ctx, means.says, "session", s.number, "server", s.scope.server, "reason", e.reason)
	}
	p.letGo(ctx, s.scope, h, e)
	if h.lease.Noop() && means.release {
		p.table.entomb(s.number)
	}
	if means.delist {
		p.delist(s)
	}
	return true
}

// letGo ends the upstream session and gives the lease back, as the cause says.
func (p *Proxy) letGo(ctx context.Context, where scope, h *hold, e ending) {
	means := e.cause.consequences()
	confirmed := true
	switch {
	case h.child != nil:
		h.child.end(ctx, p, e.cause)
	case means.upstream && h.upstream != "":
		confirmed = p.endUpstream(ctx, where, h, e)
	}
	if means.release {
		p.release(ctx, h.lease, means.why, confirmed)
	}
}

// endUpstream ends the upstream session and reports whether it is known to be
// gone, or out of reach since the server's document is gone or leads elsewhere.
func (p *Proxy) endUpstream(ctx context.Context, where scope, h *hold, e ending) (confirmed bool) {
	if e.doc == nil {
		doc, err := p.opt.Servers.Resolve(ctx, where.tenant, where.project, where.server)
		switch {
		case errors.Is(err, server.ErrUnknown), errors.Is(err, server.ErrDisabled):
			return true
		case err != nil:
			p.opt.Log.WarnContext(ctx, "the end of an upstream session is not confirmed: its document could not be read", "server", where.server, "error", err)
			return false
		case h.endpoint != sessionid.EndpointOf(doc.URL):
			return true
		}
		e.doc = doc
	}
	if e.authorization == "" {
		e.authorization = p.keptAuthorization(ctx, e.doc, h.lease)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), upstream.EndTimeout)
	defer cancel()
	outcome, err := p.deleteUpstream(ctx, e.doc, h.upstream, h.version, e.authorization)
	if err != nil {
		p.opt.Log.WarnContext(ctx, "the end of an upstream session is not confirmed", "server", e.doc.Name, "outcome", outcome, "error", err)
	}
	return outcome == upstream.Confirmed
}

// deleteUpstream sends the DELETE of an upstream session and counts what became
// of it.
func (p *Proxy) deleteUpstream(ctx context.Context, doc *server.Document, id upstream.SessionID, version, authorization string) (upstream.Outcome, error) {
	auth, err := p.auth(ctx, doc)
	outcome := upstream.Unreachable
	if err == nil {
		outcome, err = p.up.End(ctx, upstream.Ending{URL: doc.URL, Untrusted: doc.Untrusted, Auth: auth, Caller: authorization, Session: id, Protocol: version})
	}
	p.opt.Observer.Closed(string(outcome))
	return outcome, err
}

// release gives a lease back, with a mark that says why where there is a reason,
// and one where the upstream session may still live, so that the sweeps go on
// ending it.
func (p *Proxy) release(ctx context.Context, l *lease.Lease, why lease.Reason, confirmed bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	var err error
	switch {
	case why != "":
		err = l.ReleaseAs(ctx, why, confirmed)
	case !confirmed:
		err = l.ReleaseUnconfirmed(ctx)
	default:
		err = l.Release(ctx)
	}
	if err != nil {
		// Where the holder still stands, the idle reap takes it after its TTL, and
		// its handler finds the upstream session gone. Where only counters are
		// left, the reconciler sets them right.
		p.opt.Log.WarnContext(ctx, "a lease could not be given back whole; what is left of it, the idle reap or the reconciler will take", "error", err)
	}
}

// delete serves a client's DELETE: DELETE upstream with the session's auth, then
// release (spec §7).
func (v *visit) delete() *refusal.Refusal {
	ctx := context.WithoutCancel(v.r.Context())
	h, f := v.check(ctx)
	if f != nil {
		return f
	}
	if h == nil || !v.p.end(ctx, v.s, h, ending{cause: byClient, doc: v.doc, authorization: v.authorization()}) {
		if f := v.lost(); f != nil {
			return f
		}
	}
	return refusal.Accepted(http.StatusNoContent)
}
