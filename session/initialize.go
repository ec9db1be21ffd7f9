package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

var (
	errInitTimeout = errors.New("session: initialize took too long")
	errGivenUp     = errors.New("session: the client has gone before it had the answer to its initialize")
)

// initialize opens the upstream session within initTimeoutSeconds.
func (o *opening) initialize() *refusal.Refusal {
	q, x := o.q, o.x
	timer := time.AfterFunc(q.doc.InitTimeout, func() { x.Cancel(errInitTimeout) })
	defer timer.Stop()
	var f *refusal.Refusal
	switch q.doc.Transport {
	case server.Stdio:
		f = o.startChild()
	case server.SSE:
		f = o.startStream()
	}
	if f != nil {
		return f
	}
	u := q.toUpstream(&o.hold)
	u.header, u.body = o.header, o.init
	resp, err := o.send(u)
	if err != nil {
		return o.failed(err)
	}
	o.answer = &upstream.InitAnswer{Resp: resp}
	if f := o.usable(); f != nil {
		_ = resp.Body.Close()
		return f
	}
	return nil
}

// send sends the initialize. One to a server of its own, which does not end with
// this process, goes on where its time is over.
func (o *opening) send(u upstreamRequest) (*http.Response, error) {
	if u.via != nil {
		return o.q.p.send(o.x.Context(), u)
	}
	return o.sendInitialize(o.x.Context(), u)
}

func (o *opening) failed(err error) *refusal.Refusal {
	q, x := o.q, o.x
	if l := lossOf(x.Context()); l != nil {
		return refusal.LostAtOpen(l.reason)
	}
	switch cause := context.Cause(x.Context()); {
	case errors.Is(cause, errInitTimeout):
		return o.slowInit()
	case errors.Is(cause, errGivenUp):
		return &refusal.Refusal{Form: refusal.Silent}
	case o.childEnded():
		return o.endedEarly()
	}
	return q.failed(x, err)
}

func (o *opening) childEnded() bool {
	if o.hold.child == nil {
		return false
	}
	select {
	case <-o.hold.child.bridge.Gone():
		return true
	default:
		return false
	}
}

func (o *opening) endedEarly() *refusal.Refusal {
	if o.q.doc.Transport == server.SSE {
		return refusal.UpstreamDown(o.q.server, "it closed its event stream before it answered initialize")
	}
	return refusal.UpstreamDown(o.q.server, "its program ended before it answered initialize; the gateway's log says why")
}

// slowInit refuses an open whose upstream took longer than its document allows.
func (o *opening) slowInit() *refusal.Refusal {
	q := o.q
	return refusal.UpstreamDown(q.server, fmt.Sprintf("it did not answer initialize within initTimeoutSeconds (%.0f s)", q.doc.InitTimeout.Seconds()))
}

// usable reads the answer to initialize and says what is wrong with it.
func (o *opening) usable() *refusal.Refusal {
	q, a := o.q, o.answer
	// It may have opened a session and say something else than its result, whatever
	// the status: an id that it names is one that it keeps.
	id := upstream.SessionID(a.Resp.Header.Get(upstream.HeaderSession))
	if !id.Valid() {
		return refusal.UpstreamDown(q.server, "its session id is not visible ASCII of at most 16 KiB")
	}
	o.hold.upstream = id
	if q.doc.Transport == server.Stdio && a.Resp.StatusCode == http.StatusNotFound || o.childEnded() {
		return o.endedEarly()
	}
	if why := upstream.Unusable(a.Resp, q.doc.Auth.Type == "forward", true); why != "" {
		return refusal.UpstreamDown(q.server, why)
	}
	if a.Resp.StatusCode >= 400 && upstream.KindOf(a.Resp.Header) != upstream.JSON {
		return refusal.UpstreamDown(q.server, fmt.Sprintf("it answered HTTP %d", a.Resp.StatusCode))
	}
	if o.hold.child != nil && upstream.KindOf(a.Resp.Header) == upstream.EventStream {
		o.begin()
	}
	env, err := wire.Scan(o.init.B)
	if err != nil {
		return refusal.Scan(err)
	}
	err = a.Read(env.One().ID.Of(o.init.B))
	switch {
	case err == nil:
	case errors.Is(err, upstream.ErrNoResult), errors.Is(err, wire.ErrEventTooLarge):
		return refusal.UpstreamDown(q.server, "its answer to initialize is not a JSON-RPC result")
	default:
		return o.failed(err)
	}
	if a.Resp.StatusCode >= 300 && !a.Refused {
		return refusal.UpstreamDown(q.server, fmt.Sprintf("it answered HTTP %d", a.Resp.StatusCode))
	}
	o.hold.version = a.Version
	return nil
}
