package upstream

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
)

// Outcome is what became of an attempt to end an upstream session.
type Outcome string

// Confirmed: it is gone, or it was, or the server ends no sessions. Refused: the
// server answered and did not do it. Unreachable: nobody knows.
const (
	Confirmed   Outcome = "confirmed"
	Refused     Outcome = "refused"
	Unreachable Outcome = "unreachable"
)

// EndTimeout bounds one DELETE.
const EndTimeout = 5 * time.Second

// Ending names a session to end.
type Ending struct {
	URL       *url.URL
	Untrusted bool
	Auth      config.Auth // secrets resolved
	Caller    string      // the caller's Authorization, for auth forward
	Session   SessionID
	Protocol  string
}

// End sends the session's DELETE with the session's own auth and looks at the
// status (spec §7). The error says why an outcome is not Confirmed.
func (c *Client) End(ctx context.Context, e Ending) (Outcome, error) {
	if e.Session == "" {
		return Confirmed, nil // the server keeps no session
	}
	ctx, cancel := context.WithTimeout(ctx, EndTimeout)
	defer cancel()
	h := http.Header{HeaderSession: {string(e.Session)}, "User-Agent": nil}
	if e.Protocol != "" {
		h[HeaderProtocol] = []string{e.Protocol}
	}
	if err := c.Authorize(ctx, h, e.Auth, e.Caller, e.Untrusted); err != nil {
		return Unreachable, err
	}
	req := (&http.Request{Method: http.MethodDelete, URL: e.URL, Host: e.URL.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	resp, err := c.Do(req, e.Untrusted)
	if err != nil {
		return Unreachable, err
	}
	prefix := httpbody.Drain(resp.Body)
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300, s == http.StatusNotFound, s == http.StatusMethodNotAllowed, s == http.StatusGone, Gone(s, prefix):
		return Confirmed, nil
	case s >= 500:
		return Unreachable, fmt.Errorf("upstream: DELETE of a session answered HTTP %d", s)
	case s == http.StatusUnauthorized:
		c.Rejected(e.Auth, e.Untrusted)
		fallthrough
	default:
		return Refused, fmt.Errorf("upstream: DELETE of a session was refused with HTTP %d", s)
	}
}
