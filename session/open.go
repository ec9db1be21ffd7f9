package session

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// opening is a session on its way: a lease, an upstream session, and the payload
// with which any pod can end that. A reopen is the same with a kept initialize.
type opening struct {
	q       *request
	x       *exchange
	number  sessionid.Number
	init    *wire.Buffer // the client's initialize
	header  http.Header  // what goes up with it
	reopens bool

	hold   hold // what it has so far
	answer *upstream.InitAnswer
}

// open serves initialize. Whatever fails after the acquire gives the lease back
// at once and ends an upstream session that was opened; so does a client that is
// gone before the answer.
func (q *request) open() *refusal.Refusal {
	p := q.p
	if p.draining.Load() {
		return refusal.Stopping()
	}
	if !p.traffic.enter(q.share, true) {
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	defer p.traffic.exit(q.share, true)
	if most := p.opt.Limits().PerPrincipal; !p.table.book(q.owner, most) {
		return refusal.Limit("limits.perPrincipal", most)
	}
	// The place is kept until the session counts by itself, or is not opened.
	unbook := sync.OnceFunc(func() { p.table.unbook(q.owner) })
	defer unbook()

	o := &opening{q: q, x: q.exchange(nil), number: sessionid.NewNumber(), init: q.body, header: q.r.Header}
	defer o.x.Cancel(nil)
	o.x.Pause() // initTimeoutSeconds counts until the result
	o.x.Watch()
	defer o.x.Unwatch()
	h, f := o.run()
	if o.answer != nil {
		defer func() { _ = o.answer.Resp.Body.Close() }()
	}
	if f != nil {
		return o.refuse(f)
	}
	if h == nil {
		// The upstream's own refusal passes unchanged, without a session.
		o.relay()
		return nil
	}
	s := q.newSession(o.number, time.Now(), h)
	o.remember(s)
	p.enlist(s)
	unbook()
	o.x.s = s
	if s.enter(o.x) == nil { // revoked already
		return o.refuse((&visit{request: q, s: s}).told(s.lossSeen(o.x.Context())))
	}
	defer func() { s.exit(o.x, p.now()) }()
	p.follow(s, h)
	if q.there() {
		q.w.Header()[upstream.HeaderSession] = []string{string(s.seal(p))}
		if o.relay() {
			return nil
		}
	}
	// The client is gone and has not read its id: nobody can use the session.
	p.end(o.x.Context(), s, h, ending{cause: openFailed, doc: q.doc, authorization: q.authorization()})
	return nil
}

// reopen opens a lost session again with the kept initialize, and goes on under
// the client's id.
func (v *visit) reopen() *refusal.Refusal {
	v.s.reopening.Lock()
	defer v.s.reopening.Unlock()
	v.s.mu.Lock()
	ph, init := v.s.phase, v.s.init
	v.s.mu.Unlock()
	if ph != lost {
		return nil // another request has done it
	}
	header := v.r.Header.Clone()
	header.Del(upstream.HeaderProtocol) // it is agreed anew
	header.Del(upstream.HeaderLastEventID)
	o := &opening{q: v.request, x: v.exchange(nil), number: v.s.number, init: wire.Keep(init), header: header, reopens: true}
	o.x.Pause()
	defer o.x.Cancel(nil)
	h, f := o.run()
	if o.answer != nil {
		_ = o.answer.Resp.Body.Close()
	}
	if f != nil {
		return f
	}
	if h == nil {
		return o.notReopened()
	}
	v.s.revive(h, fingerprint(v.authorization()), v.p)
	v.p.follow(v.s, h)
	return nil
}

func (o *opening) notReopened() *refusal.Refusal {
	q := o.q
	return refusal.UpstreamDown(q.server, "it refused to open the session again")
}

// newSession is the session of a principal on the request's server.
func (q *request) newSession(n sessionid.Number, opened time.Time, h *hold) *session {
	s := &session{number: n, owner: q.owner, opened: opened,
		scope: scope{tenant: q.caller.Tenant, project: q.caller.Project, server: q.server, label: labelOf(q.doc)}}
	s.hold.Store(h)
	return s
}

// remember keeps what a later request of the session needs here.
func (o *opening) remember(s *session) {
	if o.q.stays() && len(o.init.B) <= maxKeptInit {
		s.init = bytes.Clone(o.init.B)
	}
	s.forward = fingerprint(o.q.authorization())
	s.lastUse.Store(o.q.p.now())
}

// follow ends a session with its child.
func (p *Proxy) follow(s *session, h *hold) {
	if h.child != nil {
		go p.endWithChild(s, h)
	}
}

// run takes a lease, opens the upstream session and writes the payload. It
// returns what the session holds, or nil where the upstream has refused; then, and
// with a refusal, nothing is left.
func (o *opening) run() (*hold, *refusal.Refusal) {
	q := o.q
	l, f := o.acquire()
	if f != nil {
		return nil, f
	}
	o.hold = hold{lease: l, endpoint: sessionid.EndpointOf(q.doc.URL)}
	// The first start of a program can take longer than the lease's TTL.
	stopKeeping := l.Keep(o.x.Context(), o.untouched)
	defer stopKeeping()
	stop := context.AfterFunc(q.p.closing, func() { o.x.Cancel(errStopped) })
	defer stop()
	if !o.reopens {
		given := context.AfterFunc(q.r.Context(), func() { o.x.Cancel(errGivenUp) })
		defer given()
	}
	f = o.initialize()
	if f == nil && !o.answer.Refused {
		if f = o.initialized(); f == nil {
			f = o.settle()
		}
	}
	if f == nil && !o.answer.Refused {
		h := o.hold
		return &h, nil
	}
	stopKeeping()
	where := scope{tenant: q.caller.Tenant, project: q.caller.Project, server: q.server}
	q.p.letGo(o.x.Context(), where, &o.hold, ending{cause: openFailed, doc: q.doc, authorization: q.authorization()})
	return nil, f
}

// untouched is told of a lease that could not be kept.
func (o *opening) untouched(err error) {
	if reason, gone := lease.Lost(err); gone {
		o.x.Cancel(&loss{cause: leaseGone, reason: reason})
		return
	}
	o.q.p.opt.Log.WarnContext(o.x.Context(), "the lease of a session that is being opened could not be touched", "error", err)
}

// acquire takes the session's lease, with what onBusy allows.
func (o *opening) acquire() (*lease.Lease, *refusal.Refusal) {
	q, p := o.q, o.q.p
	ctx := q.r.Context()
	req := q.leaseRequest()
	req.HolderRef = q.server + " session " + o.number.String()
	req.Payload = p.kept.payload(o.number, q.owner, q.doc, o.init.B, q.authorization())
	req.MaxWait = p.opt.Session.OpenWait
	if req.MaxWait == 0 {
		req.MaxWait = lease.NoWait
	}
	def, err := p.opt.Leases.Resolve(ctx, q.namedLease(), req)
	if err != nil {
		return nil, o.notAcquired(err)
	}
	if o.replaces(def) {
		first := req
		first.MaxWait, first.Retried = lease.NoWait, true
		l, err := p.opt.Leases.AcquireNamed(ctx, lease.Named{Inline: def}, first)
		var busy *lease.BusyError
		switch {
		case err == nil:
			return l, nil
		case !errors.As(err, &busy):
			return nil, o.notAcquired(err)
		}
		if f := o.replaceOwn(ctx); f != nil {
			return nil, f
		}
	}
	l, err := p.opt.Leases.AcquireNamed(ctx, lease.Named{Inline: def}, req)
	if err != nil {
		return nil, o.notAcquired(err)
	}
	return l, nil
}

// replaces reports whether this initialize may end a session of its own caller
// where no slot is free: by default where a user has one. A reopen never does: two
// living clients of one user would take the slot from each other for ever.
func (o *opening) replaces(def *definition.Definition) bool {
	if o.reopens || def.Noop() {
		return false
	}
	limit, limited := def.Caps[definition.User]
	return o.q.doc.OnBusy == server.ReplaceOwn || o.q.doc.OnBusy == "" && limited && limit == 1
}

func (o *opening) notAcquired(err error) *refusal.Refusal {
	q := o.q
	var un *lease.UnavailableError
	if errors.As(err, &un) && q.there() {
		// The client is told that the store is out of reach, the operator why.
		q.p.opt.Log.WarnContext(q.r.Context(), "a lease could not be taken", "tenant", q.caller.Tenant, "project", q.caller.Project, "server", q.server, "error", err)
	}
	return refusal.Lease(err)
}

// initialized sends the notification that the client sent long ago.
func (o *opening) initialized() *refusal.Refusal {
	if !o.reopens {
		return nil
	}
	q := o.q
	u := q.toUpstream(&o.hold)
	u.header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	u.body = wire.Keep([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	resp, err := q.p.send(o.x.Context(), u)
	if err != nil {
		return q.failed(o.x, err)
	}
	httpbody.Drain(resp.Body)
	if resp.StatusCode >= 300 {
		return o.notReopened()
	}
	return nil
}

// settle writes what a revocation needs into the holder.
func (o *opening) settle() *refusal.Refusal {
	q, p, h := o.q, o.q.p, &o.hold
	if h.lease.Noop() {
		return nil
	}
	pl := p.kept.payload(o.number, q.owner, q.doc, o.init.B, q.authorization())
	pl[paySession], pl[payProtocol] = string(h.upstream), h.version
	err := h.lease.UpdatePayload(o.x.Context(), pl)
	if err == nil {
		return nil
	}
	if reason, gone := lease.Lost(err); gone {
		return refusal.LostAtOpen(reason)
	}
	if l := lossOf(o.x.Context()); l != nil {
		return refusal.LostAtOpen(l.reason)
	}
	p.opt.Log.WarnContext(o.x.Context(), "a session's payload could not be written", "session", o.number, "error", err)
	return refusal.Lease(err)
}

// begin sends the header of an answer whose result is not known yet, for a client
// that might give up otherwise: the first start of a program can take a minute. If
// it fails after all, the id names nothing.
func (o *opening) begin() {
	q := o.q
	if o.reopens || !q.there() {
		return
	}
	h := o.hold
	id := q.newSession(o.number, time.Now(), &h).seal(q.p)
	q.p.opt.Log.InfoContext(o.x.Context(), "a stdio server is slow to answer initialize; its client waits on an event stream, and standard error in this log says what for", "server", q.server, "session", o.number)
	q.w.Header()[upstream.HeaderSession] = []string{string(id)}
	answerHeader(q.w, o.answer.Resp, true)
	o.x.Begin(http.StatusOK, true)
}

// refuse answers with a refusal, where the answer has begun with an event.
func (o *opening) refuse(f *refusal.Refusal) *refusal.Refusal {
	if !o.x.Begun() || f.Form == refusal.Silent {
		return f
	}
	o.x.Write(wire.AppendEvent(nil, f.Body(o.init.B, o.q.env)))
	return nil
}

// relay passes the answer to initialize on, and reports whether the client
// was still there when the result had gone out. One that leaves the rest of a
// stream after that has its session.
func (o *opening) relay() (delivered bool) {
	q, a, x := o.q, o.answer, o.x
	if !x.Begun() {
		stream := upstream.KindOf(a.Resp.Header) == upstream.EventStream
		a.Resp.ContentLength = int64(len(a.Raw)) // which counts where it is no stream
		answerHeader(q.w, a.Resp, stream)
		x.Begin(a.Resp.StatusCode, stream)
	}
	// Asked before the result goes out: a client that has read it may leave the
	// stream before this goroutine gets to ask.
	there := q.there()
	delivered = x.Write(a.Raw) && there
	x.Resume()
	// The result has gone out, so an end from here on needs no words.
	x.Finish(x.CopyAll(a.Rest), nil)
	return delivered
}
