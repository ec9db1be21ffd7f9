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
func (v *visit) call() *refusal.Refusal {
	p := v.p
	if !p.traffic.enter(v.share, true) {
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	defer p.traffic.exit(v.share, false)
	x := v.exchange(v.s)
	defer x.Cancel(nil)
	x.working.Store(true)
	defer x.Settled()
	h, f := v.enter(x)
	if f != nil {
		return f
	}
	defer func() { v.s.exit(x, p.now()) }()
	if v.doc.MaxCall > 0 {
		x.Limit(v.doc.MaxCall)
	}
	x.looks = v.uses // what uses no lease does not look after it
	x.Watch()
	defer x.Unwatch()

	v.follow()
	v.keepAuthorization(x.Context(), h)
	resp, err := p.send(x.Context(), v.toUpstream(h))
	if err != nil {
		return v.failed(x, err)
	}
	defer func() { _ = resp.Body.Close() }()
	x.Alive()
	return v.answer(x, h, resp)
}

// answer relays the upstream's answer to a POST.
func (v *visit) answer(x *exchange, h *hold, resp *http.Response) *refusal.Refusal {
	status := resp.StatusCode
	if f := v.lostUpstream(x, h, resp); f != nil {
		return f
	}
	if why := upstream.Unusable(resp, v.doc.Auth.Type == "forward", v.waits); why != "" {
		httpbody.Drain(resp.Body)
		return refusal.UpstreamDown(v.server, why)
	}
	if status < 300 && !v.waits || status == http.StatusAccepted || status == http.StatusNoContent {
		// 202 is the answer to a notification whatever 2xx the upstream chose.
		httpbody.Drain(resp.Body)
		headers.MCP.Down(v.w.Header(), resp.Header)
		v.w.Header().Del("Content-Type")
		v.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return v.relay(x, resp)
}

// lostUpstream ends the session where the upstream's answer says that it does not
// know it any more.
func (v *visit) lostUpstream(x *exchange, h *hold, resp *http.Response) *refusal.Refusal {
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
	return v.upstreamGone(x, h)
}

// upstreamGone ends a session that the upstream does not know any more. What was
// asked is not sent again: nobody knows what has been done of it.
func (v *visit) upstreamGone(x *exchange, h *hold) *refusal.Refusal {
	why := upstreamGone
	if h.child != nil {
		why = childExited
	}
	v.p.end(x.Context(), x.s, h, ending{cause: why, doc: v.doc, authorization: v.authorization()})
	return v.cut(x)
}

// relay passes an answer with content on.
func (v *visit) relay(x *exchange, resp *http.Response) *refusal.Refusal {
	k := upstream.KindOf(resp.Header)
	c := x.Copy(resp.Body, resp.ContentLength)
	defer c.Free()
	if k == upstream.EventStream {
		x.Await()
	} else if f := v.first(x, c, k == upstream.JSON && resp.StatusCode < 300); f != nil {
		return f
	}
	answerHeader(v.w, resp, k == upstream.EventStream)
	x.Begin(resp.StatusCode, k == upstream.EventStream)
	x.Finish(c.Run(), v.say(x))
	return nil
}

// first reads the beginning of an answer that is no stream: the last chance to
// refuse in words.
func (v *visit) first(x *exchange, c *relay.Copying, isMessage bool) *refusal.Refusal {
	held, broke := c.Fill()
	if broke == nil && isMessage {
		if !begins(held) {
			return refusal.UpstreamDown(v.server, "its answer is not a JSON-RPC message")
		}
		broke = c.Check()
	}
	if broke == nil {
		return nil
	}
	if errors.Is(broke, relay.ErrForeign) {
		v.p.up.CloseIdle() // nobody knows which answers are still on their way
	}
	return v.failed(x, broke)
}

// begins reports whether b can be the beginning of a JSON-RPC message.
func begins(b []byte) bool {
	b = bytes.TrimLeft(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), " \t\r\n")
	return len(b) > 0 && (b[0] == '{' || b[0] == '[')
}

// keepAuthorization keeps the credential that a session with auth forward last
// used in the payload, sealed, so that any pod can send the DELETE with it.
func (v *visit) keepAuthorization(ctx context.Context, h *hold) {
	authorization := v.authorization()
	if v.doc.Auth.Type != "forward" || authorization == "" || h.lease.Noop() {
		return
	}
	print := fingerprint(authorization)
	v.s.mu.Lock()
	same := v.s.forward == print
	v.s.forward = print
	v.s.mu.Unlock()
	if same {
		return
	}
	p := v.p
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	holder, err := p.holder(ctx, lease.Filter{Token: h.lease.Ref().Token})
	if err == nil && holder != nil {
		if p.kept.authorization(holder.Payload) == authorization {
			return
		}
		holder.Payload[payForward] = p.kept.sealAuthorization(v.s.number, authorization)
		err = h.lease.UpdatePayload(ctx, holder.Payload)
	}
	if err != nil {
		// The older credential stays; the next request tries again.
		v.s.mu.Lock()
		v.s.forward = 0
		v.s.mu.Unlock()
		p.opt.Log.WarnContext(ctx, "a session's credential could not be kept", "session", v.s.number, "error", err)
	}
}
