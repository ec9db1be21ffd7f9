package session

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// HandlerType is the lease type of MCP sessions.
const HandlerType = "mcp"

// Leases is what a session needs of the lease engine; *lease.Manager is one.
type Leases interface {
	AcquireNamed(ctx context.Context, n lease.Named, r lease.Request) (*lease.Lease, error)
	Resolve(ctx context.Context, n lease.Named, r lease.Request) (*definition.Definition, error)
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

// Forwarder sends a client's request to the pod that has its session's program or
// event stream, or can end one in favour of it (/internal/session/forward), and
// copies the answer; *peers.Client is one. It returns an error before anything was
// written to w, or nil.
type Forwarder interface {
	Forward(w http.ResponseWriter, r *http.Request, pod lease.Pod, c principal.Caller, server string, body []byte) error
}

// Options wires a Proxy.
type Options struct {
	Leases    Leases
	Servers   server.Resolver
	Egress    func() *egress.Policy // the one in force now
	Seal      *seal.Ring
	Observer  Observer
	Forwarder Forwarder // nil on a single pod
	Pod       lease.PodID
	Session   config.Session
	Limits    func() config.Limits // those in force now
	// Places are what limits.perPod divides, shared with whatever else serves
	// callers in the pod; nil makes a pool of the session proxy's own.
	Places *quota.Pool
	// Hop marks requests to upstream servers as the gateway's own; "" for no mark.
	Hop string
	Log *slog.Logger
}

// Proxy serves MCP clients.
type Proxy struct {
	opt      Options
	start    func(ctx context.Context, c stdio.Command) (bridge, error)
	up       *upstream.Client
	ids      *seal.Box
	kept     keptBox
	table    table
	traffic  traffic
	epoch    time.Time
	draining atomic.Bool
	pods     podCache
	orphans  orphans

	closing context.Context // ends when calls under way have outlasted a drain
	hurry   context.CancelFunc

	janitor janitor
}

// New makes a Proxy. Its caller ends it with Drain.
func New(opt Options) (*Proxy, error) {
	switch {
	case opt.Leases == nil:
		return nil, errors.New("session: no lease engine")
	case opt.Servers == nil:
		return nil, errors.New("session: no documents")
	case opt.Seal == nil:
		return nil, errors.New("session: no keys for session ids")
	case opt.Limits == nil || opt.Egress == nil:
		return nil, errors.New("session: no limits or no egress policy")
	case opt.Observer == nil:
		return nil, errors.New("session: no observer")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Session.Idle <= 0 {
		opt.Session.Idle = 30 * time.Minute
	}
	p := &Proxy{
		opt: opt, start: startBridge, up: upstream.NewClient(opt.Egress), epoch: time.Now(),
		ids: opt.Seal.Box("session"), kept: keptBox{opt.Seal.Box("forward")},
	}
	p.closing, p.hurry = context.WithCancel(context.Background())
	p.up.Hop = opt.Hop
	p.table.init()
	if p.traffic.places = opt.Places; p.traffic.places == nil {
		p.traffic.places = quota.New(func() int64 { return int64(opt.Limits().PerPod) })
	}
	p.janitor.begin(p)
	return p, nil
}

// now is monotonic time since the Proxy was made.
func (p *Proxy) now() int64 { return int64(time.Since(p.epoch)) }

// Serve answers one MCP request of an authenticated and authorized caller for a
// server of its tenant and project. Where an answer that has begun has to be
// cut, it panics with http.ErrAbortHandler, as net/http wants it.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, server string) {
	p.serve(w, r, c, server, false)
}

// ServeForwarded is Serve for a request that another pod has forwarded, since
// its session can be served or ended only here. It is not forwarded again.
func (p *Proxy) ServeForwarded(w http.ResponseWriter, r *http.Request, c principal.Caller, server string) {
	p.serve(w, r, c, server, true)
}
