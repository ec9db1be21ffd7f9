package texproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// HandlerType is the lease type of TeX compiles.
const HandlerType = "tex"

// Settings resolves a setting by its cascade; "" where no layer sets it.
type Settings interface {
	Setting(ctx context.Context, tenant, project, key string) (string, error)
}

// Observer counts; *telemetry.Metrics is one.
type Observer interface {
	// Served times a request of a route's kind.
	Served(service, kind string, took time.Duration)
	// Describes is told the outcomes that jobs of a service can have.
	Describes(service string, outcomes ...string)
	// Ended counts a job's end.
	Ended(service, outcome string)
}

// Options wires a Proxy.
type Options struct {
	Services []tex.Service
	Leases   *lease.Manager
	Records  lease.Records
	Settings Settings
	Observer Observer // may be nil
	// Pod is this pod's id: a job whose holder names another pod is watched there.
	Pod      lease.PodID
	SpoolDir string // this process's own: what is left in it is deleted
	Limits   func() config.Limits
	// Places are what limits.perPod divides, shared with whatever else serves
	// callers in the pod; nil makes a pool of the TeX proxy's own.
	Places *quota.Pool
	Log    *slog.Logger
}

// Proxy serves TeX clients. It is safe for concurrent use.
type Proxy struct {
	opt       Options
	leases    *lease.Manager
	services  map[string]*service
	transport *http.Transport
	spool     *spool
	open      *quota.Pool // requests under way
	owners    *owners
	jobs      *jobs
	uses      *uses
	demand    *demand
	retakes   singleflight.Group // by job

	mu       sync.Mutex
	inFlight int
	idle     chan struct{} // closed when inFlight falls to 0 while somebody drains
}

// New checks the options and makes a Proxy.
func New(opt Options) (*Proxy, error) {
	if opt.Leases == nil || opt.Records == nil || opt.Settings == nil || opt.Limits == nil {
		return nil, errors.New("texproxy: leases, records, settings and limits are needed")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Observer == nil {
		opt.Observer = nobody{}
	}
	p := &Proxy{
		opt: opt, leases: opt.Leases, services: map[string]*service{}, transport: newTransport(),
		owners: newOwners(), jobs: newJobs(), uses: newUses(), demand: newDemand(),
		open: opt.Places,
	}
	if p.open == nil {
		p.open = quota.New(func() int64 { return int64(opt.Limits().PerPod) })
	}
	for _, c := range opt.Services {
		s, err := newService(c)
		if err != nil {
			return nil, fmt.Errorf("texproxy: service %s: %w", c.Name, err)
		}
		if p.services[c.Name] != nil {
			return nil, fmt.Errorf("texproxy: service %s is described twice", c.Name)
		}
		p.services[c.Name] = s
		opt.Observer.Describes(c.Name, s.outcomes()...)
	}
	if len(p.services) == 0 {
		return p, nil // nothing will be spooled
	}
	var err error
	p.spool, err = newSpool(opt.SpoolDir, func() int64 { return opt.Limits().Spool })
	return p, err
}

// nobody observes nothing.
type nobody struct{}

func (nobody) Served(string, string, time.Duration) {}
func (nobody) Describes(string, ...string)          {}
func (nobody) Ended(string, string)                 {}

// Serve answers one request of an authorized caller; rest is the still escaped
// path behind the service's name, with its leading slash.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, service, rest string) {
	p.enter()
	defer p.leave()
	q := &request{p: p, w: w, r: r, owner: ownerOf(c), base: "/tex/" + c.Tenant + "/" + c.Project + "/" + service}
	// A request may last as long as its client likes to send.
	if !p.open.Take(q.owner.sharer(), 1) {
		q.refuse(errTooManyRequests)
		return
	}
	defer p.open.Give(q.owner.sharer(), 1)
	if q.s = p.services[service]; q.s == nil {
		q.refuse(errNoService)
		return
	}
	defer func(start time.Time) { p.opt.Observer.Served(service, string(q.kind()), time.Since(start)) }(time.Now())
	if err := q.route(rest); err != nil {
		q.refuse(err)
		return
	}
	a, err := q.serve()
	if err != nil {
		q.refuse(err)
		return
	}
	q.relay(a)
}

func (p *Proxy) enter() {
	p.mu.Lock()
	p.inFlight++
	p.mu.Unlock()
}

func (p *Proxy) leave() {
	p.mu.Lock()
	p.inFlight--
	if p.inFlight == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
	p.mu.Unlock()
}

// Drain waits until requests in flight are done, submits that have lost their
// client and releases that wait for the store included, or until ctx ends.
func (p *Proxy) Drain(ctx context.Context) error {
	p.mu.Lock()
	if p.inFlight == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle, n := p.idle, p.inFlight
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("texproxy: %d requests are still in flight: %w", n, ctx.Err())
	}
}

// Close removes the spool's directory where nothing else is in it. No request
// may be in flight.
func (p *Proxy) Close() {
	if p.spool != nil {
		_ = os.Remove(p.spool.dir) // an empty directory that stays does no harm
	}
}
