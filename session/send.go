package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// leg is one request to an upstream server.
type leg struct {
	doc     *server.Document
	method  string
	header  http.Header // the client's; only what may pass does
	caller  string      // the client's Authorization where it may go up
	body    *wire.Buffer
	session upstream.SessionID
	version string // sent where the client sends none
}

// send sends a leg with the credential of its document. The answer's body ends
// with ctx.
func (p *Proxy) send(ctx context.Context, l leg) (*http.Response, error) {
	h := upstream.RequestHeader(l.header)
	if l.session != "" {
		h[upstream.HeaderSession] = []string{string(l.session)}
	}
	if l.version >= headerRevision {
		if _, ok := h[upstream.HeaderProtocol]; !ok {
			h[upstream.HeaderProtocol] = []string{l.version}
		}
	}
	auth, err := p.auth(ctx, l.doc)
	if err != nil {
		return nil, err
	}
	if err := p.up.Authorize(ctx, h, auth, l.caller, l.doc.Untrusted); err != nil {
		return nil, err
	}
	req := &http.Request{Method: l.method, URL: l.doc.URL, Host: l.doc.URL.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	if l.body != nil {
		req.Body = l.body.Reader()
		req.ContentLength = int64(len(l.body.B))
	}
	resp, err := p.up.Do(req.WithContext(ctx), l.doc.Untrusted)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		p.up.Rejected(auth, l.doc.Untrusted)
	}
	return resp, err
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

// failed says why a leg got no usable answer.
func (p *Proxy) failed(ctx context.Context, t *turn, err error) *refusal {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errSilent), errors.Is(cause, errTooLong):
		return upstreamDown(t.server, tookTooLong(cause, t.doc.Timeout, t.doc.MaxCall))
	case errors.Is(cause, errStopped):
		return stopping()
	case errors.Is(cause, errEnded):
		return unknownSession()
	case errors.Is(err, errUnanswered):
		return upstreamDown(t.server, "it ended its answer without a result")
	}
	p.opt.Log.WarnContext(ctx, "upstream request failed", "tenant", t.c.Tenant, "project", t.c.Project, "server", t.server, "error", err)
	return upstreamDown(t.server, upstream.Why(err))
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
		if forward {
			return fmt.Sprintf("it refused your own credential (HTTP %d)", s)
		}
		return fmt.Sprintf("it refused the gateway's credential (HTTP %d)", s)
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

// header prepares the header of an answer that is relayed.
func answerHeader(w http.ResponseWriter, resp *http.Response, stream bool) {
	h := w.Header()
	upstream.CopyResponseHeader(h, resp.Header)
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
