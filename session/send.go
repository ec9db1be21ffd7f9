package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
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
func (q *request) failed(x *exchange, err error) *refusal {
	cause := context.Cause(x.Context())
	switch {
	case x.s != nil && lossOf(x.Context()) != nil:
		return q.cut(x)
	case errors.Is(cause, relay.ErrTooLong):
		return upstreamDown(q.server, fmt.Sprintf("the call took longer than maxCallSeconds (%.0f s)", q.doc.MaxCall.Seconds()))
	case errors.Is(cause, relay.ErrSilent):
		return upstreamDown(q.server, fmt.Sprintf("it sent nothing for timeoutSeconds (%.0f s)", q.doc.Timeout.Seconds()))
	case errors.Is(cause, errStopped):
		return stopping()
	case errors.Is(err, relay.ErrUnanswered):
		return upstreamDown(q.server, "it ended its answer without a result")
	case errors.Is(err, relay.ErrForeign):
		return upstreamDown(q.server, "it answered with the id of another request")
	case errors.Is(err, stdio.ErrTooLong):
		return upstreamDown(q.server, "the message is over the 32 MiB that a stdio server takes")
	}
	q.p.opt.Log.WarnContext(x.Context(), "upstream request failed", "tenant", q.caller.Tenant, "project", q.caller.Project, "server", q.server, "error", err)
	return upstreamDown(q.server, upstream.Why(err))
}

// kind is what an answer's Content-Type makes of it.
type kind uint8

const (
	other kind = iota
	jsonBody
	eventStream
)

func kindOf(h http.Header) kind {
	ct := h["Content-Type"]
	if len(ct) == 0 {
		return other
	}
	media, _, _ := strings.Cut(ct[0], ";")
	switch media = strings.TrimSpace(media); {
	case strings.EqualFold(media, "application/json"):
		return jsonBody
	case strings.EqualFold(media, "text/event-stream"):
		return eventStream
	}
	return other
}

// unusable says why an answer is not one of an MCP server; "" where it is.
// waits says that a request waits for a result.
func unusable(resp *http.Response, forward, waits bool) string {
	s := resp.StatusCode
	switch {
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		return refusedBy(resp, forward)
	case s >= 300 && s < 400:
		return fmt.Sprintf("it answered with a redirect (HTTP %d), and redirects are not followed: put the final address into its document", s)
	case s >= 400 && kindOf(resp.Header) != jsonBody && !said(resp):
		return fmt.Sprintf("it answered HTTP %d", s)
	case (waits || kindOf(resp.Header) == eventStream) && compressed(resp.Header):
		return "it compressed its answer, which nobody had asked for"
	case s < 300 && waits && kindOf(resp.Header) == other:
		return "its answer is neither JSON nor an event stream, so it does not speak MCP at this address"
	}
	return ""
}

// refusedBy quotes an upstream that refuses a request as such. What for is its own
// word: a 403 can be about a credential, or about the name under which it is called.
func refusedBy(resp *http.Response, forward bool) string {
	why := "it refused the gateway's credential"
	switch {
	case resp.StatusCode == http.StatusForbidden:
		why = "it refused the request"
	case forward:
		why = "it refused your own credential"
	}
	why += fmt.Sprintf(" (HTTP %d)", resp.StatusCode)
	prefix, whole := httpbody.Peek(resp.Body)
	resp.Body = whole
	if said := upstream.Quote(resp, prefix); said != "" {
		why += " and says: " + said
	}
	return why
}

// compressed reports whether an answer is not what it says in Content-Type. The
// gateway asks for none, whatever the client takes, since it follows what answers
// and puts comments between events.
func compressed(h http.Header) bool {
	for _, v := range h["Content-Encoding"] {
		if v = strings.TrimSpace(v); v != "" && !strings.EqualFold(v, "identity") {
			return true
		}
	}
	return false
}

// said reports whether an answer in plain text is the server's own word on this
// request, which passes like one in JSON: go-sdk refuses an unknown method so. A
// 404 or 410 would tell a client that its session is gone.
func said(resp *http.Response) bool {
	switch s := resp.StatusCode; {
	case s < 400 || s >= 500, s == http.StatusNotFound, s == http.StatusGone:
		return false
	}
	ct := resp.Header["Content-Type"]
	if len(ct) == 0 {
		return true
	}
	media, _, _ := strings.Cut(ct[0], ";")
	media = strings.TrimSpace(media)
	return media == "" || strings.EqualFold(media, "text/plain")
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
