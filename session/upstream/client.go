package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/internal/h1"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/tracing"
)

// Client sends requests to upstream servers. It follows no redirect, reads no
// proxy variables and never repeats a request that may have arrived. It is safe
// for concurrent use.
type Client struct {
	// Hop is sent with every request as the header of this name, "" for none. It
	// is set before the first one.
	Hop string

	policy  func() *egress.Policy
	trusted *h1.Transport
	tokens  tokens

	mu        sync.Mutex
	untrusted *h1.Transport
	under     *egress.Policy // what untrusted's connections were dialled under
}

// NewClient makes a Client; policy returns the egress policy in force now.
func NewClient(policy func() *egress.Policy) *Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &Client{policy: policy, trusted: transport(dialer.DialContext)}
}

func transport(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *h1.Transport {
	return h1.NewTransport(&http.Transport{
		DialContext:         dial,
		DisableCompression:  true, // bytes go through as they came
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: 1024,
		// Shorter than the five seconds after which servers on Node close: a
		// POST on a connection that the server closes at that moment fails, and
		// nobody knows whether it had arrived.
		IdleConnTimeout:        4 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	})
}

// Do sends one request. The address of an untrusted document obeys egress.
func (c *Client) Do(req *http.Request, untrusted bool) (*http.Response, error) {
	if c.Hop != "" {
		req.Header.Set(headers.Hop, c.Hop)
	}
	resp, err := tracing.RoundTrip(c.transport(untrusted), req)
	if err == nil && resp.StatusCode < http.StatusOK {
		// No answer at all, or a switch to another protocol, which nobody has asked
		// for and whose body ends with no context.
		_ = resp.Body.Close()
		return nil, errNotFinal
	}
	return resp, err
}

var errNotFinal = errors.New("upstream: its answer has a status that is not a final one")

// transport returns the one to use. A changed egress policy counts for pooled
// connections too, so they are dropped with the policy that let them be dialled.
func (c *Client) transport(untrusted bool) *h1.Transport {
	if !untrusted {
		return c.trusted
	}
	p := c.policy()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.untrusted == nil || c.under != p {
		if c.untrusted != nil {
			c.untrusted.CloseIdleConnections()
		}
		c.untrusted, c.under = transport(p.DialContext), p
	}
	return c.untrusted
}

// CloseIdle drops pooled connections.
func (c *Client) CloseIdle() {
	c.trusted.CloseIdleConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.untrusted != nil {
		c.untrusted.CloseIdleConnections()
	}
}

// ServerError is an answer that is not one of MCP, in words for a client.
type ServerError struct{ What string }

func (e *ServerError) Error() string { return "upstream: " + e.What }

// Why says in words for a client why a request failed. It names no address.
func Why(err error) string {
	var denied *egress.Error
	var dns *net.DNSError
	var op *net.OpError
	var auth *AuthError
	var server *ServerError
	switch {
	case errors.As(err, &server):
		return server.What
	case errors.As(err, &auth):
		return auth.What
	case errors.As(err, &denied):
		return "its address is not a public one and the gateway's operator has not allowed it (egress.allow)"
	case errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	case errors.As(err, &dns):
		return "its host name cannot be resolved"
	case errors.As(err, &op) && op.Op == "dial":
		return "no connection could be made to it"
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "it did not answer in time"
	}
	return "the connection to it broke"
}
