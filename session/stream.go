package session

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// listen serves a client's GET: the upstream's own stream, looked at every
// TTL/3, so that a revocation is felt on every pod.
func (t *turn) listen(s *live) {
	p := t.p
	if !p.traffic.enter(t.who, false) {
		t.refuse(p.shareTaken())
		return
	}
	defer p.traffic.exit(t.who, false)
	if !s.listen() {
		t.refuse(tooManyStreams())
		return
	}
	defer s.unlisten()

	x := &exchange{p: p, s: s, w: t.w}
	// A stream that only listens ends with its client.
	x.ctx, x.cancel = context.WithCancelCause(t.r.Context())
	defer x.cancel(nil)
	if !t.enter(s, x, false) {
		return
	}
	defer func() { s.exit(x, p.now()) }()
	if f := t.check(x.ctx, s, false); f != nil {
		t.gone(s, false)
		return
	}
	sl, upID, version := s.held()
	if p.draining.Load() {
		t.refuse(stopping())
		return
	}
	x.look = lookEvery(sl)
	x.watch()
	defer x.unwatch()

	if t.doc.Transport == "stdio" {
		t.listenToChild(s, x)
		return
	}
	resp, err := p.send(x.ctx, leg{doc: t.doc, method: http.MethodGet, header: t.r.Header, caller: t.c.Authorization.Reveal(),
		session: upID, version: version})
	if err != nil {
		if p.isLost(x.ctx) {
			t.gone(s, false)
			return
		}
		t.refuse(p.failed(x.ctx, t, err))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	switch status := resp.StatusCode; {
	case status == http.StatusMethodNotAllowed:
		upstream.Drain(resp.Body)
		t.refuse(&refusal{status: status, code: status, message: "the server has no stream for GET", allow: "POST, DELETE"})
		return
	case status == http.StatusNotFound, status == http.StatusGone, status == http.StatusBadRequest:
		prefix, whole := upstream.Peek(resp.Body)
		resp.Body = whole
		if upID != "" && upstream.Gone(status, prefix) {
			t.upstreamGone(x.ctx, s)
			t.gone(s, false)
			return
		}
	}
	if why := unusable(resp, t.doc.Auth.Type == "forward", false); why != "" {
		upstream.Drain(resp.Body)
		t.refuse(upstreamDown(t.server, why))
		return
	}
	stream := kindOf(resp.Header) == eventStream
	if !stream && resp.StatusCode < 300 {
		upstream.Drain(resp.Body)
		t.refuse(upstreamDown(t.server, "its answer to GET is not an event stream"))
		return
	}
	answerHeader(t.w, resp, stream)
	x.begin(resp.StatusCode, stream)
	err = x.relay(resp.Body)
	if errors.Is(err, io.EOF) || t.r.Context().Err() != nil {
		return
	}
	x.finish(err, nil, nil, nil)
}

// end serves a client's DELETE: DELETE upstream with the session's auth, then
// release (spec §7).
func (t *turn) end(s *live) {
	p := t.p
	ctx := context.WithoutCancel(t.r.Context())
	if f := t.check(ctx, s, false); f != nil {
		t.gone(s, false)
		return
	}
	sl, _, _ := s.held()
	if !s.close(hasEnded, "", errEnded) {
		t.gone(s, false)
		return
	}
	p.closeSession(ctx, s, sl, t.doc, t.c.Authorization.Reveal())
	t.w.WriteHeader(http.StatusNoContent)
}

// lostLease reports the reason of a loss; ok is false for other errors.
func lostLease(err error) (reason lease.Reason, ok bool) {
	var gone *lease.LostError
	if errors.As(err, &gone) {
		return gone.Reason, true
	}
	return "", false
}
