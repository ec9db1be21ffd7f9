package session

import (
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
)

// listen serves a client's GET: the upstream's own stream. Its lease is looked at
// every third of the TTL, so that a revocation is felt on every pod.
func (q *request) listen(s *session) *refusal {
	p := q.p
	if !p.traffic.enter(q.share, false) {
		return p.shareTaken()
	}
	defer p.traffic.exit(q.share, false)
	if s.streams() >= maxStreams {
		return tooManyStreams()
	}
	x := q.exchange(s)
	defer x.cancel(nil)
	if f := q.enter(s, x); f != nil {
		return f
	}
	defer func() { s.exit(x, p.now()) }()
	h, f := q.check(x.ctx, s, false)
	if f != nil {
		return f
	}
	if p.draining.Load() {
		return stopping()
	}
	x.watch(h.lease)
	defer x.unwatch()

	resp, err := p.send(x.ctx, q.toUpstream(h))
	if err != nil {
		return q.failed(x, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusMethodNotAllowed {
		httpbody.Drain(resp.Body)
		return wrongVerb("the server has no stream for GET", "POST, DELETE")
	}
	if f := q.lostUpstream(x, h, resp); f != nil {
		return f
	}
	if why := unusable(resp, q.doc.Auth.Type == "forward", false); why != "" {
		httpbody.Drain(resp.Body)
		return upstreamDown(q.server, why)
	}
	stream := kindOf(resp.Header) == eventStream
	if !stream && resp.StatusCode < 300 {
		httpbody.Drain(resp.Body)
		return upstreamDown(q.server, "its answer to GET is not an event stream")
	}
	answerHeader(q.w, resp, stream)
	x.client.begin(resp.StatusCode, stream)
	if err := x.copyAll(resp.Body); err != nil && q.there() {
		x.finish(err, nil)
	}
	return nil
}
