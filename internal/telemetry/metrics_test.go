package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/internal/telemetry"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// hostile is part of every name that a tenant chooses in this test.
const hostile = "hostile"

// faulty is a store whose verbs can be made to fail.
type faulty struct {
	lease.Store
	down atomic.Bool
}

var errDown = errors.New("the store is down")

func (f *faulty) DeleteHolder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	if f.down.Load() {
		return lease.Holder{}, false, errDown
	}
	return f.Store.DeleteHolder(ctx, t)
}

func (f *faulty) CreateHolder(ctx context.Context, h lease.Holder) error {
	if f.down.Load() {
		return errDown
	}
	return f.Store.CreateHolder(ctx, h)
}

type done struct{}

func (done) OnRevoked(context.Context, lease.Holder) error { return nil }

// series reads every series as name{label="value",…} → value; a histogram's
// value is its count.
func series(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value(m)
		}
	}
	return out
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	}
	return float64(m.GetHistogram().GetSampleCount())
}

// bench is a real engine whose observer is the metrics.
type bench struct {
	*testing.T
	reg    *prometheus.Registry
	store  *faulty
	engine *lease.Manager
	m      *telemetry.Metrics
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, reg: prometheus.NewRegistry(), store: &faulty{Store: storetest.NewMemory(nil)}}
	b.m = telemetry.New(b.reg)
	var err error
	b.engine, err = lease.New(lease.Options{Store: b.store, Pod: lease.Pod{ID: "pod-a", Endpoint: "127.0.0.1:1"}, Observer: b.m, ReapInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	b.engine.Register("mcp", done{})
	if err := b.engine.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) stop() { _ = b.engine.Stop(context.Background(), false) }

func (b *bench) acquire(label string, caps map[definition.Level]definition.Cap) (*lease.Lease, error) {
	return b.engine.Acquire(b.Context(), lease.Request{Type: "mcp", Tenant: hostile + "-tenant", Project: hostile + "-project", User: hostile + "-user",
		HolderRef: hostile, MaxWait: lease.NoWait, Definition: &definition.Definition{Name: label, Resource: label, Label: label, TTL: time.Minute, Caps: caps}})
}

func (b *bench) held() *lease.Lease {
	b.Helper()
	l, err := b.acquire("browser", one)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

var one = map[definition.Level]definition.Cap{definition.User: 1, definition.Tenant: 1}

// moves runs act and demands that the series is higher afterwards than before.
func (b *bench) moves(name string, act func()) {
	b.Helper()
	before := series(b.T, b.reg)[name]
	act()
	synctest.Wait()
	if after := series(b.T, b.reg)[name]; after <= before {
		b.Errorf("%s is %v, was %v", name, after, before)
	}
}

func TestEverySeriesMovesWhenItsEventHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		time.Sleep(10 * time.Minute) // beyond the grace after a start

		var l *lease.Lease
		b.moves(`vance_lease_acquire_total{outcome="success",resource="browser"}`, func() { l = b.held() })
		b.moves(`vance_lease_acquire_total{outcome="busy",resource="browser"}`, func() { _, _ = b.acquire("browser", one) })
		b.moves(`vance_lease_acquire_seconds{resource="browser"}`, func() { _, _ = b.acquire("browser", one) })
		b.moves(`vance_lease_acquire_total{outcome="noop",resource="browser"}`, func() { _, _ = b.acquire("browser", nil) })
		b.moves(`vance_lease_check_total{outcome="ok",resource="browser"}`, func() { _ = l.Check(t.Context()) })
		b.moves(`vance_lease_store_seconds{op="touch"}`, func() { _ = l.Check(t.Context()) })
		b.moves(`vance_lease_release_total{outcome="ok",resource="browser"}`, func() { _ = l.Release(t.Context()) })

		l = b.held()
		b.moves(`vance_lease_reap_total{reason="revoke"}`, func() {
			if _, err := b.engine.Revoke(t.Context(), l.Ref().Token, lease.Cause{Reason: lease.ReasonRevoke, By: hostile}); err != nil {
				t.Fatal(err)
			}
		})
		b.moves(`vance_lease_check_total{outcome="lost",resource="browser"}`, func() { _ = l.Check(t.Context()) })

		l = b.held()
		b.moves(`vance_lease_reap_total{reason="idle"}`, func() {
			time.Sleep(2 * time.Minute)
			if _, err := b.engine.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
		// Nobody has told this lease yet that it is gone.
		b.moves(`vance_lease_release_total{outcome="already-released",resource="browser"}`, func() { _ = l.Release(t.Context()) })

		b.otherPodHolds()
		b.moves(`vance_lease_reap_total{reason="pod"}`, func() {
			time.Sleep(10 * time.Minute)
			if _, err := b.engine.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		})

		b.drift()
		if _, err := b.engine.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := series(t, b.reg)[`vance_lease_drift{level="tenant",resource="browser"}`]; got != 1 {
			t.Errorf("drift is %v, want 1", got)
		}
		b.moves(`vance_lease_drift_seconds{level="tenant",resource="browser"}`, func() {
			time.Sleep(20 * time.Second) // less than the margin: it cannot be corrected yet
			if _, err := b.engine.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
		if got := series(t, b.reg)[`vance_lease_drift_seconds{level="tenant",resource="browser"}`]; got != 20 {
			t.Errorf("the drift is %v s old, want 20", got)
		}
		b.moves(`vance_lease_reconcile_total{outcome="corrected"}`, func() {
			time.Sleep(10 * time.Minute)
			if _, err := b.engine.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
		})

		l = b.held()
		b.store.down.Store(true)
		b.moves(`vance_lease_release_total{outcome="error",resource="browser"}`, func() { _ = l.Release(t.Context()) })
		b.moves(`vance_lease_acquire_total{outcome="unavailable",resource="browser"}`, func() { _, _ = b.acquire("browser", one) })
		b.moves(`vance_lease_store_errors_total{op="createHolder"}`, func() { _, _ = b.acquire("browser", one) })
		b.store.down.Store(false)
	})
}

// otherPodHolds leaves a lease of a pod that dies now.
func (b *bench) otherPodHolds() {
	b.Helper()
	ctx := b.Context()
	if err := b.store.PutPod(ctx, lease.Pod{ID: "pod-b", Endpoint: "127.0.0.1:2", State: lease.PodRunning}); err != nil {
		b.Fatal(err)
	}
	h := lease.Holder{Token: "otherpodsleaseaaaaaaaaaaaa", Type: "mcp", Resource: "browser", Lease: "browser", Label: "browser", Tenant: hostile, Pod: "pod-b", PodBound: true, TTL: time.Hour}
	if err := b.store.CreateHolder(ctx, h); err != nil {
		b.Fatal(err)
	}
	const id = "browser|tenant|" + hostile
	if err := b.store.EnsureCounter(ctx, id, "gen1"); err != nil {
		b.Fatal(err)
	}
	if _, _, ok, err := b.store.Increment(ctx, id, 1); !ok || err != nil {
		b.Fatal(ok, err)
	}
	if ok, err := b.store.PushLast(ctx, h.Token, lease.Booking{ID: id, Level: definition.Tenant, Gen: "gen1"}, nil, time.Hour, time.Hour); !ok || err != nil {
		b.Fatal(ok, err)
	}
}

// drift lets a counter count one that nobody books.
func (b *bench) drift() {
	b.Helper()
	const id = "browser|tenant|" + hostile + "-drifted"
	if err := b.store.EnsureCounter(b.Context(), id, "gen1"); err != nil {
		b.Fatal(err)
	}
	if _, _, ok, err := b.store.Increment(b.Context(), id, 1); !ok || err != nil {
		b.Fatal(ok, err)
	}
}

func TestTheGatewaysOwnSeriesMove(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.New(reg)
	m.SessionOpened("browser")
	m.SessionOpened("browser")
	m.SessionEnded("browser")
	m.Served("browser", "tools/call", time.Millisecond)
	for _, o := range []string{"confirmed", "refused", "unreachable"} {
		m.Closed(o)
	}
	m.Reloaded("ok")
	m.Reloaded("invalid")
	m.Describes("pdf", "ok", "gone")
	m.Ended("pdf", "ok")
	a, err := telemetry.OpenAudit("", full{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	telemetry.CountAudit(reg, a)
	a.Event(lease.Event{Kind: "refused"})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got := series(t, reg)
	for name, want := range map[string]float64{
		`vance_gateway_sessions{server="browser"}`:                            1,
		`vance_gateway_request_seconds{method="tools/call",server="browser"}`: 1,
		`vance_gateway_session_close_total{outcome="confirmed"}`:              1,
		`vance_gateway_session_close_total{outcome="refused"}`:                1,
		`vance_gateway_session_close_total{outcome="unreachable"}`:            1,
		`vance_gateway_reload_total{outcome="ok"}`:                            1,
		`vance_gateway_reload_total{outcome="invalid"}`:                       1,
		`vance_gateway_audit_lost_total{}`:                                    1,
		`vance_gateway_tex_jobs_total{outcome="ok",service="pdf"}`:            1,
		`vance_gateway_tex_jobs_total{outcome="gone",service="pdf"}`:          0,
	} {
		if v, there := got[name]; v != want || !there {
			t.Errorf("%s = %v, want %v", name, v, want)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errDown }

// TestNoTenantCanBeALabel runs an engine whose every name a tenant has chosen,
// the lease's and the resource's included, through all that can happen.
func TestNoTenantCanBeALabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		time.Sleep(10 * time.Minute)
		for _, label := range []string{"other", "mcp-inline", ""} {
			def := &definition.Definition{Name: hostile + "-lease", Resource: hostile + "-resource", Label: label, TTL: time.Minute, Caps: one}
			if label == "mcp-inline" {
				def.Inline, def.Resource = true, definition.InlineResource(hostile, hostile, hostile)
			}
			r := lease.Request{Type: "mcp", Tenant: hostile, Project: hostile, User: hostile, HolderRef: hostile, Definition: def, MaxWait: lease.NoWait}
			l, err := b.engine.Acquire(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = b.engine.Acquire(t.Context(), r)
			_ = l.Check(t.Context())
			if _, err := b.engine.Revoke(t.Context(), l.Ref().Token, lease.Cause{Reason: lease.ReasonRevoke, By: hostile}); err != nil {
				t.Fatal(err)
			}
			_ = l.Check(t.Context())
			_ = l.Release(t.Context())
			_, _ = b.engine.Acquire(t.Context(), lease.Request{Type: hostile, Tenant: hostile, Definition: def})
		}
		_, _ = b.engine.Resolve(t.Context(), lease.Named{Name: hostile}, lease.Request{Type: hostile, Tenant: hostile})
		b.drift()
		time.Sleep(10 * time.Minute)
		_, _ = b.engine.Sweep(t.Context())
		_, _ = b.engine.Reconcile(t.Context())
		for _, name := range slices.Sorted(maps.Keys(series(t, b.reg))) {
			if strings.Contains(name, hostile) {
				t.Errorf("a tenant's name is in %s", name)
			}
		}
	})
}

// TestLabelsAreThoseOfTheSpec keeps anybody from adding a label that could carry
// a name that a tenant chose.
func TestLabelsAreThoseOfTheSpec(t *testing.T) {
	allowed := map[string][]string{
		"vance_lease_acquire_total": {"resource", "outcome"}, "vance_lease_check_total": {"resource", "outcome"}, "vance_lease_release_total": {"resource", "outcome"},
		"vance_lease_reap_total": {"reason"}, "vance_lease_reconcile_total": {"outcome"}, "vance_lease_acquire_seconds": {"resource"}, "vance_lease_store_seconds": {"op"},
		"vance_lease_store_errors_total": {"op"}, "vance_lease_events_lost_total": nil, "vance_lease_drift": {"resource", "level"}, "vance_lease_drift_seconds": {"resource", "level"}, "vance_gateway_sessions": {"server"}, "vance_gateway_request_seconds": {"server", "method"},
		"vance_gateway_session_close_total": {"outcome"}, "vance_gateway_reload_total": {"outcome"},
		"vance_gateway_tex_jobs_total": {"service", "outcome"},
	}
	seen := map[string]bool{}
	r := &recorder{seen: func(desc string) {
		name := between(desc, `fqName: "`, `"`)
		want, ok := allowed[name]
		if !ok {
			t.Errorf("%s is not in the list of series", name)
		}
		if got := between(desc, "variableLabels: {", "}"); got != strings.Join(want, ",") {
			t.Errorf("%s has the labels %s, want %v", name, got, want)
		}
		seen[name] = true
	}}
	telemetry.New(r)
	for name := range allowed {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

type recorder struct {
	prometheus.Registerer
	seen func(desc string)
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		ch := make(chan *prometheus.Desc, 16)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			r.seen(d.String())
		}
	}
}

func between(s, from, to string) string {
	_, rest, _ := strings.Cut(s, from)
	part, _, _ := strings.Cut(rest, to)
	return part
}
