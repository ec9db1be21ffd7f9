package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/relay"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// upstreamRequest is one request to an upstream server.
type upstreamRequest struct {
	doc           *server.Document
	via           http.RoundTripper // nil: the network
	method        string
	header        http.Header // the client's; only what may pass does
	authorization string      // the client's, where it may go up
	body          *wire.Buffer
	session       upstream.SessionID
	version       string // sent where the client sends none
}

// toUpstream is a request like q's to what the session holds.
func (q *request) toUpstream(h *hold) upstreamRequest {
	return upstreamRequest{doc: q.doc, via: h.transport(), method: q.r.Method, header: q.r.Header, authorization: q.authorization(),
		body: q.body, session: h.upstream, version: h.version}
}

// childURL stands for the address of an upstream that knows its own.
var childURL = &url.URL{Scheme: "stdio", Host: "child", Path: "/"}

// send sends a request with the credential of its document. The answer's body
// ends with ctx.
func (p *Proxy) send(ctx context.Context, u upstreamRequest) (*http.Response, error) {
	h := make(http.Header, 8) // what usually passes, and the smallest map there is
	headers.MCP.Up(h, u.header)
	if u.session != "" {
		h[upstream.HeaderSession] = []string{string(u.session)}
	}
	if u.version >= headerRevision {
		if _, ok := h[upstream.HeaderProtocol]; !ok {
			h[upstream.HeaderProtocol] = []string{u.version}
		}
	}
	to := u.doc.URL
	if u.via != nil {
		to = childURL
	}
	req := &http.Request{Method: u.method, URL: to, Host: to.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	if u.body != nil {
		req.Body = u.body.Reader()
		req.ContentLength = int64(len(u.body.B))
	}
	if u.doc.Transport == server.Stdio {
		return u.via.RoundTrip(req.WithContext(ctx))
	}
	auth, err := p.auth(ctx, u.doc)
	if err == nil {
		err = p.up.Authorize(ctx, h, auth, u.authorization, u.doc.Untrusted)
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	resp, err := p.transmit(req.WithContext(ctx), u)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		p.up.Rejected(auth, u.doc.Untrusted)
	}
	return resp, err
}

func (p *Proxy) transmit(req *http.Request, u upstreamRequest) (*http.Response, error) {
	if u.via != nil {
		return u.via.RoundTrip(req)
	}
	return p.up.Do(req, u.doc.Untrusted)
}

// auth resolves the document's secrets for one use.
func (p *Proxy) auth(ctx context.Context, doc *server.Document) (config.Auth, error) {
	if doc.Auth.Type == "" || doc.Auth.Type == "none" || doc.Auth.Type == "forward" {
		return doc.Auth, nil
	}
	a, err := p.opt.Servers.Auth(ctx, doc)
	if err != nil {
		return a, &upstream.AuthError{What: "the credential that its document names could not be resolved", Err: err}
	}
	return a, nil
}

// failed says why an upstream request got no usable answer.
func (q *request) failed(x *exchange, err error) *refusal.Refusal {
	cause := context.Cause(x.Context())
	switch {
	case x.s != nil && lossOf(x.Context()) != nil:
		return (&visit{request: q, s: x.s}).cut(x)
	case errors.Is(cause, relay.ErrTooLong):
		return refusal.UpstreamDown(q.server, fmt.Sprintf("the call took longer than maxCallSeconds (%.0f s)", q.doc.MaxCall.Seconds()))
	case errors.Is(cause, relay.ErrSilent):
		return refusal.UpstreamDown(q.server, fmt.Sprintf("it sent nothing for timeoutSeconds (%.0f s)", q.doc.Timeout.Seconds()))
	case errors.Is(cause, errStopped):
		return refusal.Stopping()
	case errors.Is(err, relay.ErrUnanswered):
		return refusal.UpstreamDown(q.server, "it ended its answer without a result")
	case errors.Is(err, relay.ErrForeign):
		return refusal.UpstreamDown(q.server, "it answered with the id of another request")
	case errors.Is(err, stdio.ErrTooLong):
		return refusal.UpstreamDown(q.server, "the message is over the 32 MiB that a stdio server takes")
	}
	q.p.opt.Log.WarnContext(x.Context(), "upstream request failed", "tenant", q.caller.Tenant, "project", q.caller.Project, "server", q.server, "error", err)
	return refusal.UpstreamDown(q.server, upstream.Why(err))
}

// answerHeader prepares the header of an answer that is relayed.
func answerHeader(w http.ResponseWriter, resp *http.Response, stream bool) {
	h := w.Header()
	headers.MCP.Down(h, resp.Header)
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // net/http would guess one
	}
	if stream {
		h["X-Accel-Buffering"] = []string{"no"} // an nginx in front would hold events back
		if _, ok := h["Cache-Control"]; !ok {
			h["Cache-Control"] = []string{"no-cache"}
		}
		return
	}
	if resp.ContentLength >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(resp.ContentLength, 10)}
	}
}
