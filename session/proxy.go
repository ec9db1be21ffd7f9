// Package session is MCP sessions that hold leases: one client session, one
// upstream session, one Lease (spec §7). It relays bytes, not structs.
package session

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// HandlerType is the lease type of MCP sessions.
const HandlerType = "mcp"

// Leases is what a session needs of the lease engine; *lease.Manager is one.
type Leases interface {
	Acquire(ctx context.Context, r lease.Request) (*lease.Lease, error)
	Attach(r lease.Ref) *lease.Lease
	LostReason(ctx context.Context, t lease.Token) lease.Reason
	Find(ctx context.Context, f lease.Filter) ([]lease.Holder, error)
	LivingPods(ctx context.Context) ([]lease.Pod, error)
}

// Observer counts; *telemetry.Metrics is one.
type Observer interface {
	SessionOpened(server string)
	SessionEnded(server string)
	Served(server, method string, took time.Duration)
	Closed(outcome string)
}

// Forwarder sends a client's request to the pod that holds its stdio session
// (/internal/session/forward) and copies the answer; *peers.Client is one. It
// returns an error before anything was written to w, or nil.
type Forwarder interface {
	Forward(w http.ResponseWriter, r *http.Request, pod lease.Pod, c principal.Caller, server string, body []byte) error
}

// Options wires a Proxy.
type Options struct {
	Leases      Leases
	Servers     server.Resolver
	Definitions definition.Resolver
	Egress      func() *egress.Policy // the one in force now
	Seal        *seal.Ring
	Observer    Observer
	Forwarder   Forwarder // nil on a single pod
	Pod         lease.PodID
	Session     config.Session
	Limits      func() config.Limits // those in force now
	Log         *slog.Logger
}

// Proxy serves MCP clients.
type Proxy struct{ opt Options }

// New makes a Proxy.
func New(opt Options) (*Proxy, error) { return &Proxy{opt: opt}, nil }

// Serve answers one MCP request of an authenticated and authorized caller for a
// server of its tenant and project.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, server string) {
	http.Error(w, "not built", http.StatusNotImplemented)
}

// OnRevoked ends the upstream session of a revoked lease; see lease.Handler.
func (p *Proxy) OnRevoked(ctx context.Context, h lease.Holder) error { return nil }

// Drain takes no new sessions and waits until calls in flight are done or ctx
// ends. Then it closes every session and gives the leases back, or, with
// handover, leaves HTTP sessions to the other pods.
func (p *Proxy) Drain(ctx context.Context, handover bool) error { return nil }
