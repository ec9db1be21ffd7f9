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
func (q *request) listen(s *session) *refusal.Refusal {
	p := q.p
	if !p.traffic.enter(q.share, false) {
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	defer p.traffic.exit(q.share, false)
	x := q.exchange(s)
	defer x.Cancel(nil)
	h, f := q.enter(s, x)
	switch {
	case f != nil && f.Form == refusal.StandsBy:
		q.standBy(x, s)
		return nil
	case f != nil:
		return f
	}
	defer func() { s.exit(x, p.now()) }()
	if p.draining.Load() {
		return refusal.Stopping()
	}
	x.looks = true
	x.Watch()
	defer x.Unwatch()

	resp, err := q.openStream(x, h)
	if err != nil {
		return q.failed(x, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if f := q.streams(x, h, resp); f != nil {
		return f
	}
	s.listened.Store(true)
	answerHeader(q.w, resp, true)
	x.Begin(resp.StatusCode, true)
	x.Await()
	if err := x.CopyAll(resp.Body); err != nil && q.there() {
		x.Finish(err, nil)
	}
	return nil
}

// takeOverFor is how long a server may still hold the stream of which another one
// takes the place.
const takeOverFor = 2 * time.Second

// openStream asks the upstream for its stream. The newest takes over: a server
// that has one stream refuses it until it has seen the end of the older one.
func (q *request) openStream(x *exchange, h *hold) (*http.Response, error) {
	until := time.Now()
	if x.s.takeOver(x) {
		until = until.Add(takeOverFor)
	}
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		resp, err := q.p.send(x.Context(), q.toUpstream(h))
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
func (q *request) streams(x *exchange, h *hold, resp *http.Response) *refusal.Refusal {
	status := resp.StatusCode
	if status < 300 && upstream.KindOf(resp.Header) == upstream.EventStream && !upstream.Compressed(resp.Header) {
		return nil
	}
	prefix, whole := httpbody.Peek(resp.Body)
	resp.Body = whole
	defer httpbody.Drain(resp.Body)
	switch {
	case status >= 400 && status < 500 && h.hasSession() && upstream.NamesSession(prefix):
		return q.upstreamGone(x, h)
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusTooManyRequests,
		status >= 500 && status != http.StatusNotImplemented, upstream.Compressed(resp.Header):
		why := upstream.Unusable(resp, q.doc.Auth.Type == "forward", false)
		if why == "" {
			why = fmt.Sprintf("it answered HTTP %d", status)
		}
		return refusal.UpstreamDown(q.server, why)
	}
	return refusal.WrongVerb("the server has no stream for GET", "POST, DELETE")
}
