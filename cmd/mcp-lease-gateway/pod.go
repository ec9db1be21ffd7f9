package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/gateway"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/gateway/insights"
	"github.com/vancetope/mcp-lease-gateway/gateway/peers"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/internal/telemetry"
	"github.com/vancetope/mcp-lease-gateway/internal/tracing"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session"
	"github.com/vancetope/mcp-lease-gateway/texproxy"
)

// How long a stop may take: calls under way end, then sessions are closed and
// leases given back. Together they stay below the 30 s that Kubernetes gives.
const (
	drainTime = 15 * time.Second
	closeTime = 10 * time.Second
)

// pod is one gateway process with all its parts.
type pod struct {
	conf     *config.Gateway
	load     func() (*config.Gateway, error)
	log      *slog.Logger
	id       lease.PodID
	store    lease.Store
	docs     *documents
	metrics  *telemetry.Metrics
	audit    *telemetry.Audit
	untrace  func(context.Context) error // nil while traces are off
	live     *gateway.Live
	engine   *lease.Manager
	sessions *session.Proxy
	tex      *texproxy.Proxy
	client   *peers.Client
	server   *gateway.Server
	toPeers  chan []document.Change // changed documents that the other pods do not know of yet
}

// newPod puts a pod together. Nothing of it runs yet, but its addresses and its
// store are taken. What its parts do in the background ends with ctx. Load reads
// gateway.yaml again, for reloads.
func newPod(ctx context.Context, conf *config.Gateway, load func() (*config.Gateway, error), log *slog.Logger) (_ *pod, err error) {
	p := &pod{conf: conf, load: load, id: newPodID(), toPeers: make(chan []document.Change, 16)}
	p.log = log.With("pod", string(p.id))
	defer func() {
		if err != nil {
			p.abandon()
		}
	}()
	ring, err := seal.NewRing(conf.Session.Keys...)
	if err != nil {
		return nil, fmt.Errorf("session.keys: %w", err)
	}
	certificate, err := gateway.LoadCertificate(conf.TLS, p.log)
	if err != nil {
		return nil, err
	}
	// The store first: its file is what a second process on the same folder must
	// be told about, rather than an address in use.
	if p.store, err = openStore(ctx, conf); err != nil {
		return nil, err
	}
	if p.docs, err = openDocuments(conf, p.log); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = telemetry.New(registry)
	if err := p.observe(ctx, registry); err != nil {
		return nil, err
	}

	p.server, err = gateway.Listen(ctx, gateway.Options{Config: conf, Certificate: certificate, Gatherer: registry, Ready: p.ready, Log: p.log})
	if err != nil {
		return nil, err
	}
	state, err := p.build(ctx, conf, nil)
	if err != nil {
		return nil, err
	}
	p.live = gateway.NewLive(state)
	p.client = peers.NewClient(peers.ClientOptions{Token: first(conf.Internal.Tokens), SendToken: conf.Internal.SendToken, Seal: ring, TLS: peerTLS(certificate)})
	if err := p.wireEngine(); err != nil {
		return nil, err
	}
	if err := p.wireProxies(ring); err != nil {
		return nil, err
	}
	return p, p.wireServer(ring)
}

// observe opens the audit log and, where it is configured, traces.
func (p *pod) observe(ctx context.Context, registry prometheus.Registerer) (err error) {
	t := p.conf.Telemetry
	if p.audit, err = telemetry.OpenAudit(t.Audit, os.Stdout, p.log); err != nil {
		return err
	}
	telemetry.CountAudit(registry, p.audit)
	p.metrics.OnEvent(func(e lease.Event) {
		// What nobody decided, this pod did; the event's pod is the holder's.
		if e.By == "" && (e.Kind == lease.EventSwept || e.Kind == lease.EventClosed) {
			e.By = "pod " + string(p.id)
		}
		p.audit.Event(e)
	})
	if t.OTLPEndpoint == "" {
		return nil
	}
	p.untrace, err = tracing.Start(ctx, tracing.Options{Endpoint: t.OTLPEndpoint, Ratio: t.SampleRatio, Pod: string(p.id), Version: version, Log: p.log})
	return err
}

// unobserve writes what is left of the audit log and the traces. A collector
// that is away must not make an orderly end look like a failure.
func (p *pod) unobserve(ctx context.Context) error {
	if p.untrace != nil {
		if err := p.untrace(ctx); err != nil {
			p.log.Warn("the last traces could not be sent", "error", err)
		}
	}
	if p.audit == nil {
		return nil
	}
	return p.audit.Close()
}

func (p *pod) wireEngine() (err error) {
	p.engine, err = lease.New(lease.Options{
		Store:           p.store,
		Pod:             lease.Pod{ID: p.id, Endpoint: endpoint(p.conf, p.server.InternalAddr())},
		Peers:           p.client,
		Observer:        p.metrics,
		Log:             p.log,
		Definitions:     p.docs.definitions,
		Heartbeat:       p.conf.Pod.Heartbeat,
		StaleAfter:      p.conf.Pod.StaleAfter,
		ReapInterval:    p.conf.Lease.ReapInterval,
		ReconcileSafety: p.conf.Lease.ReconcileSafety,
		PendingTTL:      p.conf.Lease.PendingTTL,
		MarkLife:        p.conf.Session.ReopenFor,
		MaxWaiters:      p.conf.Limits.Waiters,
	})
	return err
}

func (p *pod) wireProxies(ring *seal.Ring) (err error) {
	// What callers can cause is written at a pace.
	log := slog.New(ratelog.NewHandler(p.log.Handler()))
	places := quota.New(func() int64 { return int64(p.live.Limits().PerPod) })
	opt := session.Options{
		Leases:   p.engine,
		Servers:  p.docs.servers,
		Egress:   p.live.Egress,
		Seal:     ring,
		Observer: p.metrics,
		Pod:      p.id,
		Session:  p.conf.Session,
		Limits:   p.live.Limits,
		Places:   places,
		Hop:      hops(ring).Seal(nil, nil),
		Log:      log,
	}
	if !p.store.SinglePod() {
		opt.Forwarder = p.client
	}
	if p.sessions, err = session.New(opt); err != nil {
		return err
	}
	p.tex, err = texproxy.New(texproxy.Options{
		Services: p.conf.Tex,
		Leases:   p.engine,
		Records:  p.engine.Records(),
		Settings: p.docs.settings,
		Observer: p.metrics,
		Pod:      p.id,
		SpoolDir: p.spoolDir(),
		Limits:   p.live.Limits,
		Places:   places,
		Log:      log,
	})
	if err != nil {
		return err
	}
	p.engine.Register(session.HandlerType, p.sessions)
	p.engine.Register(texproxy.HandlerType, p.tex)
	return nil
}

// hops seals and knows the mark of requests that a gateway with these keys has
// sent to an upstream server.
func hops(ring *seal.Ring) *seal.Box { return ring.Box("hop") }

// spoolDir is a folder of this process alone, since what is left in it is
// deleted: beside the embedded store, whose file proves that nobody else is
// here, and one with the pod's name elsewhere.
func (p *pod) spoolDir() string {
	if p.store.SinglePod() {
		return filepath.Join(filepath.Dir(p.conf.Store.Path), "spool")
	}
	return filepath.Join(os.TempDir(), "mcp-lease-gateway-spool-"+string(p.id))
}

func (p *pod) wireServer(ring *seal.Ring) error {
	d := &view.View{Engine: p.engine, Definitions: p.docs.definitions, Happened: func(e lease.Event) {
		e.Pod = p.id
		p.metrics.Happened(e)
	}}
	current := func() *identity.Authenticator { return p.live.Load().Identity }
	api, err := admin.New(admin.Options{View: d, Authority: &gateway.Authority{Tokens: p.conf.Internal.Tokens, Live: p.live}, Log: p.log})
	if err != nil {
		return err
	}
	page, err := insights.New(insights.Options{View: d, Identity: insights.Keys(current), Ring: ring, Origins: p.conf.Origins, Log: p.log})
	if err != nil {
		return err
	}
	marks := hops(ring)
	p.server.Wire(func(o *gateway.Options) {
		o.OwnHop = func(mark string) bool { _, err := marks.Open(mark, nil); return err == nil }
		o.Live = p.live
		o.MCP, o.Tex = p.sessions, p.tex
		o.Admin, o.Tenant, o.Page, o.PageAdmin = api.Internal(), api.Tenant(), page, page.Admin
		o.Signed = peers.NewVerifier(p.conf.Internal.Tokens).Verify
		o.Peers = peers.NewServer(peers.ServerOptions{
			Self:    p.id,
			Seal:    ring,
			Revoked: p.engine.HandleRevoked,
			Serve:   p.sessions.ServeForwarded,
			Changed: p.changed,
			MaxBody: func() int64 { return p.live.Limits().RequestBody },
			Log:     p.log,
		})
	})
	return nil
}

func (p *pod) build(ctx context.Context, c *config.Gateway, previous *gateway.State) (*gateway.State, error) {
	return gateway.NewState(ctx, c, p.server.Loopback(), previous, p.log)
}

func (p *pod) ready() error {
	if p.engine == nil || !p.engine.Ready() {
		return errors.New("the pod has not been in contact with the lease store yet")
	}
	return nil
}

// changed takes in documents that somebody says have changed, and has the other
// pods told where they do not know. The audit has a change once it counts.
func (p *pod) changed(ctx context.Context, changes []document.Change, others bool) {
	p.docs.cascade.Changed(changes...)
	by := "another pod"
	if others {
		by = view.ByOperator("internal token")
	}
	p.audit.Changed(by, p.id, changes...)
	if !others || p.store.SinglePod() {
		return
	}
	select {
	case p.toPeers <- changes:
	default:
		p.log.WarnContext(ctx, "so many documents change that the other pods are not told of some; they see them when their caches expire", "changes", len(changes))
	}
}

// seen puts on record what this pod has seen change by itself.
func (p *pod) seen(where string, c document.Change) { p.audit.Changed(where, p.id, c) }

// beginSeries lets the series of the operator's own leases begin at 0: an alert on
// a rise misses the first of one that begins at 1.
func (p *pod) beginSeries(ctx context.Context) {
	for _, path := range p.docs.cascade.OperatorPaths(ctx) {
		name, ok := definition.NameOf(path)
		if !ok {
			continue
		}
		if m, err := p.docs.definitions.Fresh(ctx, document.SystemTenant, document.TenantProject, name); err == nil {
			p.metrics.Resource(m.Label)
		}
	}
}

// tellPeers passes changes on to the living pods until ctx ends.
func (p *pod) tellPeers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case changes := <-p.toPeers:
			pods, err := p.engine.LivingPods(ctx)
			if err == nil {
				err = p.client.Changed(ctx, pods, changes)
			}
			if err != nil && ctx.Err() == nil {
				p.log.Warn("not every pod was told of changed documents; they see them when their caches expire", "err", err)
			}
		}
	}
}

// run serves until stop is closed and then ends in order; closing hurry as well
// ends without waiting for calls under way. The error is nil where the pod ended
// as it was asked to.
func (p *pod) run(ctx context.Context, stop, hurry <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- p.server.Serve() }()

	background, backgroundCtx := errgroup.WithContext(ctx)
	background.Go(func() error {
		// Until the store has been reached this goes on trying, and /readyz says so.
		return p.engine.Start(backgroundCtx)
	})
	background.Go(func() error { p.docs.watch(backgroundCtx, p.seen); return nil })
	background.Go(func() error { p.tellPeers(backgroundCtx); return nil })
	background.Go(func() error { p.beginSeries(backgroundCtx); return nil })
	background.Go(func() error {
		(&gateway.Reloader{Path: p.conf.Path, Load: p.load, Build: p.build, Live: p.live, Outcome: p.metrics.Reloaded, Log: p.log}).Run(backgroundCtx)
		return nil
	})
	p.tex.Start(backgroundCtx)
	p.log.Info("serving", "clients", p.server.ClientAddr(), "internal", p.server.InternalAddr(), "store", p.conf.Store.Kind)

	var failed error
	select {
	case <-stop:
	case failed = <-served:
		failed = fmt.Errorf("a listener has failed: %w", failed)
	case <-backgroundCtx.Done():
		if failed = background.Wait(); ctx.Err() != nil {
			failed = nil // the caller has ended it
		}
	}
	ended := p.shutdown(hurry)
	cancel()
	if err := background.Wait(); err != nil && !errors.Is(err, context.Canceled) && failed == nil {
		failed = err
	}
	return errors.Join(failed, ended)
}

// shutdown gives back what the pod holds, in the order in which nobody is left
// with half of something: no new clients, calls end, sessions close or are left
// to the other pods, leases go back, and only then the registration says that
// the pod is gone. Each part has a bound.
func (p *pod) shutdown(hurry <-chan struct{}) error {
	p.log.Info("stopping; a second signal hurries")
	p.server.StopReady()
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	go func() {
		select {
		case <-hurry:
			p.log.Info("hurrying: calls under way are cut off")
			cancel()
		case <-drain.Done():
		}
	}()
	handover := p.conf.Session.OnShutdown == config.Handover && !p.store.SinglePod()
	var errs []error
	note := func(what string, err error) {
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	note("lease engine", p.engine.Drain(drain))
	var both errgroup.Group
	both.Go(func() error { return p.sessions.Drain(drain, handover) })
	both.Go(func() error { return p.tex.Drain(drain) })
	note("sessions and compiles", both.Wait())

	last, cancelLast := context.WithTimeout(context.Background(), closeTime)
	defer cancelLast()
	clients, cancelClients := context.WithTimeout(last, closeTime/4)
	note("client listener", p.server.CloseClients(clients))
	cancelClients()
	p.tex.Close()
	note("lease engine", p.engine.Stop(last, handover))
	note("internal listener", p.server.CloseInternal(last))
	p.client.Close()
	p.docs.close(last)
	note("store", p.store.Close(last))
	note("audit log", p.unobserve(last))
	p.log.Info("stopped")
	return errors.Join(errs...)
}

// abandon frees what a pod that will not run has taken.
func (p *pod) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if p.server != nil {
		p.server.Abandon()
	}
	if p.tex != nil {
		p.tex.Close()
	}
	if p.docs != nil {
		p.docs.close(ctx)
	}
	if p.store != nil {
		_ = p.store.Close(ctx) // the error that led here says more
	}
	_ = p.unobserve(ctx)
}

// endpoint is where other pods reach this one: a port of 0 means the one that
// the listener was given.
func endpoint(c *config.Gateway, bound string) string {
	if c.Pod.Endpoint == "" || strings.HasSuffix(c.Pod.Endpoint, ":0") {
		return bound
	}
	return c.Pod.Endpoint
}

func peerTLS(c *gateway.Certificate) *tls.Config {
	if c == nil {
		return nil
	}
	return peers.ClientTLS(c.Current)
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

var notInPodID = regexp.MustCompile(`[^A-Za-z0-9-]+`)

// newPodID names this start of the process: never used again, so that what an
// earlier one left behind is seen to be nobody's.
func newPodID() lease.PodID {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "pod"
	}
	host = notInPodID.ReplaceAllString(host, "-")
	return lease.PodID(fmt.Sprintf("%.63s-%x", host, randomBytes(6)))
}
