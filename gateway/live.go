package gateway

import (
	"sync/atomic"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/internal/egress"
)

// State is what a reload replaces, as one immutable whole: no request sees the
// limits of one file with the keys of another.
type State struct {
	// Config is the file that the rest was made from. Of a reloaded one only
	// identity, egress, limits and documents count; see Reloader.
	Config   *config.Gateway
	Identity *identity.Authenticator
	Egress   *egress.Policy
}

// Live holds the State in force. It is safe for concurrent use.
type Live struct{ p atomic.Pointer[State] }

// NewLive starts with s.
func NewLive(s *State) *Live {
	l := &Live{}
	l.p.Store(s)
	return l
}

// Load returns the State in force.
func (l *Live) Load() *State { return l.p.Load() }

// Limits returns the limits in force.
func (l *Live) Limits() config.Limits { return l.p.Load().Config.Limits }

// Egress returns the egress policy in force.
func (l *Live) Egress() *egress.Policy { return l.p.Load().Egress }

// store puts s in force.
func (l *Live) store(s *State) { l.p.Store(s) }
