package session

import (
	"fmt"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// listen serves a client's GET: the upstream's own stream. Its lease is looked at
// every third of the TTL, so that a revocation is felt on every pod.
func (v *visit) listen() *refusal.Refusal {
	p := v.p
	if !p.traffic.enter(v.share, false) {
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	defer p.traffic.exit(v.share, false)
	x := v.exchange(v.s)
	defer x.Cancel(nil)
	h, f := v.enter(x)
	switch {
	case f != nil && f.Form == refusal.StandsBy:
		v.standBy(x)
		return nil
	case f != nil:
		return f
	}
	defer func() { v.s.exit(x, p.now()) }()
	if p.draining.Load() {
		return refusal.Stopping()
	}
	x.looks = true
	x.Watch()
	defer x.Unwatch()

	resp, err := v.openStream(x, h)
	if err != nil {
		return v.failed(x, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if f := v.streams(x, h, resp); f != nil {
		return f
	}
	v.s.listened.Store(true)
	answerHeader(v.w, resp, true)
	x.Begin(resp.StatusCode, true)
	x.Await()
	if err := x.CopyAll(resp.Body); err != nil && v.there() {
		x.Finish(err, nil)
	}
	return nil
}

// takeOverFor is how long a server may still hold the stream of which another one
// takes the place.
const takeOverFor = 2 * time.Second

// openStream asks the upstream for its stream. The newest takes over: a server
// that has one stream refuses it until it has seen the end of the older one.
func (v *visit) openStream(x *exchange, h *hold) (*http.Response, error) {
	until := time.Now()
	if x.s.takeOver(x) {
		until = until.Add(takeOverFor)
	}
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		resp, err := v.p.send(x.Context(), v.toUpstream(h))
		if err != nil || resp.StatusCode != http.StatusConflict || time.Now().Add(wait).After(until) {
			return resp, err
		}
		httpbody.Drain(resp.Body)
		select {
		case <-time.After(wait):
		case <-x.Context().Done():
		}
	}
}

// streams refuses what is no stream. That a session is gone is only said by a body
// that names it: a server without a route for GET answers with any status and text.
func (v *visit) streams(x *exchange, h *hold, resp *http.Response) *refusal.Refusal {
	status := resp.StatusCode
	if status < 300 && upstream.KindOf(resp.Header) == upstream.EventStream && !upstream.Compressed(resp.Header) {
		return nil
	}
	prefix, whole := httpbody.Peek(resp.Body)
	resp.Body = whole
	defer httpbody.Drain(resp.Body)
	switch {
	case status >= 400 && status < 500 && h.hasSession() && upstream.NamesSession(prefix):
		return v.upstreamGone(x, h)
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusTooManyRequests,
		status >= 500 && status != http.StatusNotImplemented, upstream.Compressed(resp.Header):
		why := upstream.Unusable(resp, v.doc.Auth.Type == "forward", false)
		if why == "" {
			why = fmt.Sprintf("it answered HTTP %d", status)
		}
		return refusal.UpstreamDown(v.server, why)
	}
	return refusal.WrongVerb("the server has no stream for GET", "POST, DELETE")
}
