package gateway

import (
	"context"
	"fmt"
	"log/slog"
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

// NewState makes a State of c. Loopback says where the client listener is really
// bound. Where previous is given, the new State takes over what it can, and
// previous retires when the new one is in force. What a State
// does in the background ends with ctx.
func NewState(ctx context.Context, c *config.Gateway, loopback bool, previous *State, log *slog.Logger) (*State, error) {
	policy, err := egress.New(c.Egress.Allow)
	if err != nil {
		return nil, fmt.Errorf("egress.allow: %w", err)
	}
	opt := identity.Options{Identity: c.Identity, Loopback: loopback, Log: log}
	if previous != nil {
		opt.Previous = previous.Identity
	}
	auth, err := identity.New(ctx, opt)
	if err != nil {
		return nil, err
	}
	return &State{Config: c, Identity: auth, Egress: policy}, nil
}

// Live holds the State in force. It is safe for concurrent use.
type Live struct{ p atomic.Pointer[inForce] }

// inForce is a State and the end of its time.
type inForce struct {
	state    *State
	replaced context.Context
	end      context.CancelFunc
}

func begin(s *State) *inForce {
	f := &inForce{state: s}
	f.replaced, f.end = context.WithCancel(context.Background())
	return f
}

// NewLive starts with s.
func NewLive(s *State) *Live {
	l := &Live{}
	l.p.Store(begin(s))
	return l
}

// Load returns the State in force.
func (l *Live) Load() *State { return l.p.Load().state }

// Limits returns the limits in force.
func (l *Live) Limits() config.Limits { return l.Load().Config.Limits }

// Egress returns the egress policy in force.
func (l *Live) Egress() *egress.Policy { return l.Load().Egress }

// replaced ends when another State than that of now is in force.
func (l *Live) replaced() context.Context { return l.p.Load().replaced }

// replace puts s in force and retires the one before.
func (l *Live) replace(s *State) {
	was := l.p.Swap(begin(s))
	was.state.Identity.Retire(s.Identity)
	was.end()
}
