package session

import (
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// hold is what a session holds at one time. It never changes: a reopened session
// has another one.
type hold struct {
	lease    *lease.Lease
	upstream upstream.SessionID // "" where the server keeps no session, or is a child
	version  string             // of the protocol, as agreed with the upstream
	endpoint sessionid.Endpoint
	child    *child // stdio and sse, where it runs here
}

// hasSession reports whether the upstream has something that can be lost.
func (h *hold) hasSession() bool { return h.upstream != "" || h.child != nil }

// transport is the way to the upstream; nil stands for the network.
func (h *hold) transport() http.RoundTripper {
	if h.child == nil {
		return nil
	}
	return h.child.bridge
}
