package session

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/relay"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// call takes one POST of a session up and its answer down: the hot path.
func (q *request) call(s *session) *refusal.Refusal {
	p := q.p
	if !p.traffic.enter(q.share, true) {
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	defer p.traffic.exit(q.share, false)
	x := q.exchange(s)
	defer x.Cancel(nil)
	x.working.Store(true)
	defer x.Settled()
	h, f := q.enter(s, x)
	if f != nil {
		return f
	}
	defer func() { s.exit(x, p.now()) }()
	if q.doc.MaxCall > 0 {
		x.Limit(q.doc.MaxCall)
	}
	x.looks = q.uses // what uses no lease does not look after it
	x.Watch()
	defer x.Unwatch()

	q.follow(s)
	q.keepAuthorization(x.Context(), s, h)
	resp, err := p.send(x.Context(), q.toUpstream(h))
	if err != nil {
		return q.failed(x, err)
	}
	defer func() { _ = resp.Body.Close() }()
	x.Alive()
	return q.answer(x, h, resp)
}

// answer relays the upstream's answer to a POST.
func (q *request) answer(x *exchange, h *hold, resp *http.Response) *refusal.Refusal {
	status := resp.StatusCode
	if f := q.lostUpstream(x, h, resp); f != nil {
		return f
	}
	if why := upstream.Unusable(resp, q.doc.Auth.Type == "forward", q.waits); why != "" {
		httpbody.Drain(resp.Body)
		return refusal.UpstreamDown(q.server, why)
	}
	if status < 300 && !q.waits || status == http.StatusAccepted || status == http.StatusNoContent {
		// 202 is the answer to a notification whatever 2xx the upstream chose.
		httpbody.Drain(resp.Body)
		headers.MCP.Down(q.w.Header(), resp.Header)
		q.w.Header().Del("Content-Type")
		q.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return q.relay(x, resp)
}

// lostUpstream ends the session where the upstream's answer says that it does not
// know it any more.
func (q *request) lostUpstream(x *exchange, h *hold, resp *http.Response) *refusal.Refusal {
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusGone, http.StatusBadRequest:
	default:
		return nil
	}
	if !h.hasSession() {
		return nil
	}
	prefix, whole := httpbody.Peek(resp.Body)
	resp.Body = whole
	if !upstream.Gone(resp.StatusCode, prefix) {
		return nil
	}
	return q.upstreamGone(x, h)
}

// upstreamGone ends a session that the upstream does not know any more. What was
// asked is not sent again: nobody knows what has been done of it.
func (q *request) upstreamGone(x *exchange, h *hold) *refusal.Refusal {
	why := upstreamGone
	if h.child != nil {
		why = childExited
	}
	q.p.end(x.Context(), x.s, h, ending{cause: why, doc: q.doc, authorization: q.authorization()})
	return q.cut(x)
}

// relay passes an answer with content on.
func (q *request) relay(x *exchange, resp *http.Response) *refusal.Refusal {
	k := upstream.KindOf(resp.Header)
	c := x.Copy(resp.Body, resp.ContentLength)
	defer c.Free()
	if k == upstream.EventStream {
		x.Await()
	} else if f := q.first(x, c, k == upstream.JSON && resp.StatusCode < 300); f != nil {
		return f
	}
	answerHeader(q.w, resp, k == upstream.EventStream)
	x.Begin(resp.StatusCode, k == upstream.EventStream)
	x.Finish(c.Run(), q.say(x))
	return nil
}

// first reads the beginning of an answer that is no stream: the last chance to
// refuse in words.
func (q *request) first(x *exchange, c *relay.Copying, isMessage bool) *refusal.Refusal {
	held, broke := c.Fill()
	if broke == nil && isMessage {
		if !begins(held) {
			return refusal.UpstreamDown(q.server, "its answer is not a JSON-RPC message")
		}
		broke = c.Check()
	}
	if broke == nil {
		return nil
	}
	if errors.Is(broke, relay.ErrForeign) {
		q.p.up.CloseIdle() // nobody knows which answers are still on their way
	}
	return q.failed(x, broke)
}

// begins reports whether b can be the beginning of a JSON-RPC message.
func begins(b []byte) bool {
	b = bytes.TrimLeft(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), " \t\r\n")
	return len(b) > 0 && (b[0] == '{' || b[0] == '[')
}

// keepAuthorization keeps the credential that a session with auth forward last
// used in the payload, sealed, so that any pod can send the DELETE with it.
func (q *request) keepAuthorization(ctx context.Context, s *session, h *hold) {
	authorization := q.authorization()
	if q.doc.Auth.Type != "forward" || authorization == "" || h.lease.Noop() {
		return
	}
	print := fingerprint(authorization)
	s.mu.Lock()
	same := s.forward == print
	s.forward = print
	s.mu.Unlock()
	if same {
		return
	}
	p := q.p
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	holder, err := p.holder(ctx, lease.Filter{Token: h.lease.Ref().Token})
	if err == nil && holder != nil {
		if p.openAuthorization(holder.Payload) == authorization {
			return
		}
		holder.Payload[payForward] = p.kept.Seal([]byte(authorization), []byte(s.number.Key()))
		err = h.lease.UpdatePayload(ctx, holder.Payload)
	}
	if err != nil {
		// The older credential stays; the next request tries again.
		s.mu.Lock()
		s.forward = 0
		s.mu.Unlock()
		p.opt.Log.WarnContext(ctx, "a session's credential could not be kept", "session", s.number, "error", err)
	}
}
