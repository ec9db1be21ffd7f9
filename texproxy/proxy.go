// Package texproxy puts leases around TeX compiles: a lease lives from the
// submit of a job to its end (spec §7). It knows nothing of MCP.
//
// In job mode a client submits, polls and downloads in requests of their own.
// The whole state of a job is its holder in the lease store, found by service
// and job id, so any pod serves the next poll and a pod's end loses nothing. In
// sync mode one request is one compile, and the lease lasts for the request.
//
// What counts is the compile, not the client: a client that leaves does not end
// its compile, so its slot stays taken until the service says that the job has
// ended. A job that nobody polls is polled by the pod that served it last.
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

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
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
	// Places are what limits.perPod divides, shared with whatever else serves
	// callers in the pod; nil makes a pool of the TeX proxy's own.
	Places *quota.Pool
	Log    *slog.Logger
}

// Proxy serves TeX clients. It is safe for concurrent use.
type Proxy struct {
	opt       Options
	engine    engine
	services  map[string]*service
	transport *http.Transport
	spool     *spool
	open      *quota.Pool // requests under way
	owners    *owners
	jobs      *jobs
	runs      *runs
	leading   leading

	mu       sync.Mutex
	inFlight int
	idle     chan struct{} // closed when inFlight falls to 0 while somebody drains
}

// New checks the options and makes a Proxy.
func New(opt Options) (*Proxy, error) {
	if opt.Leases == nil {
		return nil, errors.New("texproxy: no lease engine")
	}
	return newProxy(opt, leaseEngine{opt.Leases})
}

func newProxy(opt Options, e engine) (*Proxy, error) {
	if opt.Records == nil || opt.Definitions == nil || opt.Settings == nil || opt.Limits == nil {
		return nil, errors.New("texproxy: records, definitions, settings and limits are needed")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{
		opt: opt, engine: e, services: map[string]*service{}, transport: newTransport(),
		owners: newOwners(), jobs: newJobs(), runs: newRuns(), leading: usualLeading,
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
	}
	if len(p.services) == 0 {
		return p, nil // nothing will be spooled
	}
	var err error
	p.spool, err = newSpool(opt.SpoolDir, func() int64 { return opt.Limits().Spool })
	return p, err
}

// Serve answers one request of an authorized caller; rest is the still escaped
// path behind the service's name, with its leading slash.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, service, rest string) {
	p.enter()
	defer p.leave()
	// A request may last as long as its client likes to send.
	who := quota.Of(c.Tenant, c.Project, c.User)
	if !p.open.Take(who, 1) {
		w.Header().Set("Retry-After", "5")
		writeError(w, http.StatusServiceUnavailable, "you have as many requests under way at the gateway as one caller may (a share of limits.perPod); try again in a moment", nil)
		return
	}
	defer p.open.Give(who, 1)
	s := p.services[service]
	if s == nil {
		drainBody(w, r)
		writeError(w, http.StatusNotFound, "there is no such TeX service", nil)
		return
	}
	m, ok := s.find(r.Method, rest)
	what := kindOther
	if m.route != nil {
		what = m.route.kind
	}
	if p.opt.Observer != nil {
		defer func(start time.Time) { p.opt.Observer.Served(service, string(what), time.Since(start)) }(time.Now())
	}
	if !ok {
		drainBody(w, r)
		if len(m.allow) > 0 {
			methodNotAllowed(w, m.allow)
			return
		}
		notFound(w)
		return
	}
	r = withClientBase(r, rest, "/tex/"+c.Tenant+"/"+c.Project+"/"+service)
	q := &request{Proxy: p, w: w, r: r, s: s, m: m, owner: ownerOf(c)}
	switch {
	case what == kindSubmit && s.Mode == "job":
		q.submit()
	case what == kindSubmit:
		q.compile()
	case s.Mode == "job" && m.job() != "":
		q.ofJob()
	default:
		q.plain()
	}
}

// request is one client request on its way.
type request struct {
	*Proxy
	w     http.ResponseWriter
	r     *http.Request
	s     *service
	m     match
	owner owner
}

func (q *request) log() *slog.Logger {
	return q.opt.Log.With("service", q.s.Name, "tenant", q.owner.tenant, "project", q.owner.project)
}

// call is the client's request as it goes upstream.
func (q *request) call(body content, inspect bool) call {
	return call{
		method: q.r.Method, path: q.m.path, query: q.r.URL.RawQuery, header: requestHeader(q.r.Header),
		body: body, inspect: inspect, begins: q.m.route != nil && q.m.route.kind == kindSubmit,
	}
}

// take takes the whole upload, or answers why not.
func (q *request) take() (*upload, bool) {
	u, err := q.spool.take(q.w, q.r, q.owner, q.s.MaxUpload, nil)
	if err != nil {
		q.notTaken(err)
		return nil, false
	}
	return u, true
}

// notTaken answers a request whose upload was not taken.
func (q *request) notTaken(err error) {
	if uploadFailed(q.w, err, q.s.MaxUpload, q.spool.mostOfOne()) {
		q.log().Error("an upload could not be stored", "err", err)
	}
}

// definition resolves the lease of the caller's scope by the setting tex.lease;
// nil means that its compiles need none.
func (q *request) definition(ctx context.Context) (*definition.Definition, error) {
	name, err := q.opt.Settings.Setting(ctx, q.owner.tenant, q.owner.project, settings.TexLease)
	if err != nil {
		unavailable := &lease.UnavailableError{Why: "the setting " + settings.TexLease + " could not be read", Err: err}
		var wrong strictyaml.Problems
		if errors.As(err, &wrong) {
			unavailable.Why, unavailable.Permanent = "the settings of a layer are not valid, so it is unknown which lease a compile needs", true
		}
		return nil, unavailable
	}
	if name == "" || name == "none" {
		return nil, nil
	}
	d, err := q.opt.Definitions.Resolve(ctx, q.owner.tenant, q.owner.project, name)
	if err != nil {
		unavailable := &lease.UnavailableError{Why: "the definition of the lease could not be read", Err: err}
		var wrong *definition.Error
		if errors.As(err, &wrong) {
			unavailable.Why, unavailable.Permanent = wrong.Client(), !wrong.Transient
		}
		return nil, unavailable
	}
	if d.Noop() {
		return nil, nil
	}
	return d, nil
}

// acquire asks for a slot for the caller, with what else ask says; a nil slot
// without an error means that none is needed.
func (q *request) acquire(ctx context.Context, d *definition.Definition, ask lease.Request) (slot, error) {
	if d == nil {
		return nil, nil
	}
	ask.Type, ask.Definition, ask.HolderRef = HandlerType, d, q.s.Name
	ask.Tenant, ask.Project, ask.User = q.owner.tenant, q.owner.project, q.owner.user
	sl, err := q.engine.acquire(ctx, ask)
	if err != nil {
		return nil, err
	}
	if sl.Noop() {
		return nil, nil
	}
	return sl, nil
}

// refused answers a request that got no slot.
func (q *request) refused(err error) {
	var busy *lease.BusyError
	if !errors.As(err, &busy) && q.r.Context().Err() == nil {
		q.log().Warn("a compile was refused", "err", err)
	}
	q.refuse(q.w, q.s, q.m.job(), err)
}

// plain passes a request that needs no lease: results and logs of sync
// services, and what is passed through unmatched.
func (q *request) plain() {
	if key, ok := q.s.owned(q.m); ok {
		mine, err := q.mayUseName(q.r.Context(), key, q.owner)
		if err != nil {
			drainBody(q.w, q.r)
			q.refused(err)
			return
		}
		if !mine {
			drainBody(q.w, q.r)
			notFound(q.w)
			return
		}
	}
	var body *upload
	if q.r.ContentLength != 0 && q.r.Body != nil {
		var ok bool
		if body, ok = q.take(); !ok {
			return
		}
		defer body.drop()
	}
	q.pass(body)
}

// pass sends a request up and its answer down.
func (q *request) pass(body *upload) {
	resp, _, err := q.exchange(q.r.Context(), q.s, q.call(body, false))
	if err != nil {
		q.upstreamFailed(err)
		return
	}
	relay(q.w, q.r, q.s, resp, false, func(error) {})
}

func (q *request) upstreamFailed(err error) {
	if q.r.Context().Err() == nil {
		q.log().Warn("the TeX service failed", "route", q.m.path, "err", err)
	}
	upstreamFailed(q.w, err)
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
		p.spool.spares.close(nil)
		_ = os.Remove(p.spool.dir) // an empty directory that stays does no harm
	}
}
