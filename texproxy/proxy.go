// Package texproxy puts leases around TeX compiles: a lease lives from the
// submit of a job to its end (spec §7). It knows nothing of MCP.
package texproxy

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// HandlerType is the lease type of TeX compiles.
const HandlerType = "tex"

// Leases is what a compile needs of the lease engine; *lease.Manager is one.
type Leases interface {
	Acquire(ctx context.Context, r lease.Request) (*lease.Lease, error)
	Attach(r lease.Ref) *lease.Lease
	LostReason(ctx context.Context, t lease.Token) lease.Reason
	Find(ctx context.Context, f lease.Filter) ([]lease.Holder, error)
}

// Settings resolves a setting by its cascade; "" where no layer sets it.
type Settings interface {
	Setting(ctx context.Context, tenant, project, key string) (string, error)
}

// Observer counts; *telemetry.Metrics is one.
type Observer interface {
	Served(service, method string, took time.Duration)
}

// Options wires a Proxy.
type Options struct {
	Services    []config.TexService
	Leases      Leases
	Records     lease.Records
	Definitions definition.Resolver
	Settings    Settings
	Observer    Observer
	// Pod is this pod's id: a job whose holder names another pod is watched there.
	Pod      lease.PodID
	SpoolDir string // this process's own: what is left in it is deleted
	Limits   func() config.Limits
	Log      *slog.Logger
}

// Proxy serves TeX clients.
type Proxy struct{ opt Options }

// New makes a Proxy.
func New(opt Options) (*Proxy, error) { return &Proxy{opt: opt}, nil }

// Start watches abandoned jobs until ctx ends.
func (p *Proxy) Start(ctx context.Context) {}

// Serve answers one request of an authorized caller; rest is the still escaped
// path behind the service's name, with its leading slash.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, service, rest string) {
	http.Error(w, "not built", http.StatusNotImplemented)
}

// OnRevoked is the handler "tex"; see lease.Handler.
func (p *Proxy) OnRevoked(ctx context.Context, h lease.Holder) error { return nil }

// Adopt goes on watching a dead pod's job; see lease.Adopter.
func (p *Proxy) Adopt(ctx context.Context, h lease.Holder) error { return nil }

// Drain waits until requests in flight are done or ctx ends.
func (p *Proxy) Drain(ctx context.Context) error { return nil }
