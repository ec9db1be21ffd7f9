package session

import (
	"context"
	"errors"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// modern decides the era of a request, right after authentication: by the
// header, by what its _meta says, or by a method that only one era has. Clients
// try the newest revision first, whatever they end up with.
func (t *turn) modern() (version string, ok bool) {
	if !t.env.Batch && t.env.One().Method == "initialize" {
		// It belongs to the other era, whatever else the request says. Passed on
		// as it is it would open a session that nobody here knows of.
		return "", false
	}
	header := t.r.Header.Get(upstream.HeaderProtocol)
	if header == modernRevision {
		return header, true
	}
	if t.env.Batch {
		return "", false
	}
	switch m := t.env.One(); {
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

// serveModern answers a request of a client without sessions: a server whose
// lease has caps is fenced, so that the client opens a session; any other gets
// the request as it is.
func (t *turn) serveModern(version string) {
	p := t.p
	if t.env.Batch {
		t.refuse(badRequest(rpcInvalid, "batches belong to revision %s", batchRevision))
		return
	}
	def, err := t.definition(t.r.Context())
	if t.doc.Modern == "fence" || t.doc.Transport == "stdio" || err != nil || !def.Noop() {
		t.refuse(unsupportedRevision(version))
		return
	}
	if !p.traffic.enter(t.who, true) {
		t.refuse(p.shareTaken())
		return
	}
	defer p.traffic.exit(t.who, true)
	x := &exchange{p: p, w: t.w, call: true, silence: t.doc.Timeout}
	// In this revision a client cancels by closing its stream.
	x.ctx, x.cancel = context.WithCancelCause(t.r.Context())
	defer x.cancel(nil)
	if t.doc.MaxCall > 0 {
		x.until = p.now() + int64(t.doc.MaxCall)
	}
	if t.env.One().Method == "subscriptions/listen" {
		x.silence, x.until = 0, 0 // a stream that listens
	}
	x.watch()
	defer x.unwatch()
	header := t.r.Header
	if header.Get(upstream.HeaderLastEventID) != "" {
		header = header.Clone()
		header.Del(upstream.HeaderLastEventID)
	}
	resp, err := p.send(x.ctx, leg{doc: t.doc, method: http.MethodPost, header: header, caller: t.c.Authorization.Reveal(), body: t.body})
	if err != nil {
		t.refuse(p.failed(x.ctx, t, err))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	x.active.Store(p.now())
	if why := unusable(resp, t.doc.Auth.Type == "forward", t.env.One().Request()); why != "" {
		upstream.Drain(resp.Body)
		t.refuse(upstreamDown(t.server, why))
		return
	}
	stream := kindOf(resp.Header) == eventStream
	c := x.copy(resp.Body, resp.ContentLength)
	defer c.free()
	if stream && x.silence > 0 {
		x.await(t.body.B, t.env)
	} else if !stream {
		if _, broke := c.fill(); broke != nil {
			t.refuse(p.failed(x.ctx, t, broke)) // to nobody, where the client has cancelled
			return
		}
	}
	answerHeader(t.w, resp, stream)
	x.begin(resp.StatusCode, stream)
	err = c.run()
	if errors.Is(context.Cause(x.ctx), context.Canceled) {
		return // the client has cancelled
	}
	x.finish(err, func(cause error) *refusal { return p.failed(x.ctx, t, cause) }, t.body.B, t.env)
}
