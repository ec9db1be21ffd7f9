package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Metrics are the series of one pod. The zero value is not usable; call New.
type Metrics struct {
	acquire        *prometheus.CounterVec
	check          *prometheus.CounterVec
	release        *prometheus.CounterVec
	reap           *prometheus.CounterVec
	reconcile      *prometheus.CounterVec
	acquireSeconds *prometheus.HistogramVec
	storeSeconds   *prometheus.HistogramVec
	storeErrors    *prometheus.CounterVec
	eventsLost     prometheus.Counter
	drift          *prometheus.GaugeVec
	driftSeconds   *prometheus.GaugeVec
	sessions       *prometheus.GaugeVec
	requestSeconds *prometheus.HistogramVec
	closes         *prometheus.CounterVec
	reloads        *prometheus.CounterVec
	jobs           *prometheus.CounterVec
	events         func(lease.Event)
	resources      sync.Map // by label: those whose series have begun
}

// New registers the series with r.
func New(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	seconds := func(name, help string, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}}, labels)
		r.MustRegister(v)
		return v
	}
	m := &Metrics{
		acquire:        counter("vance_lease_acquire_total", "Acquires by outcome: success, busy, noop, unavailable.", "resource", "outcome"),
		check:          counter("vance_lease_check_total", "Checks by outcome: ok, lost, unavailable.", "resource", "outcome"),
		release:        counter("vance_lease_release_total", "Releases by outcome: ok, already-released, error.", "resource", "outcome"),
		reap:           counter("vance_lease_reap_total", "Leases taken away by reason: idle, pod, revoke.", "reason"),
		reconcile:      counter("vance_lease_reconcile_total", "Counters put right by the reconciler.", "outcome"),
		acquireSeconds: seconds("vance_lease_acquire_seconds", "Time of an acquire, waiting included.", "resource"),
		storeSeconds:   seconds("vance_lease_store_seconds", "Time of one store operation.", "op"),
		storeErrors:    counter("vance_lease_store_errors_total", "Store operations that failed.", "op"),
		eventsLost:     prometheus.NewCounter(prometheus.CounterOpts{Name: "vance_lease_events_lost_total", Help: "Events that found no room on their way to the store."}),
		drift:          gauge("vance_lease_drift", "Count minus booked holders, summed over the counters of a resource and level.", "resource", "level"),
		driftSeconds:   gauge("vance_lease_drift_seconds", "For how long the reconciler has seen drift of a resource and level without a pause.", "resource", "level"),
		sessions:       gauge("vance_gateway_sessions", "Client sessions that this pod has opened or served and that have not ended.", "server"),
		requestSeconds: seconds("vance_gateway_request_seconds", "Time of a client request until the end of its answer.", "server", "method"),
		closes:         counter("vance_gateway_session_close_total", "Upstream session ends by outcome: confirmed, refused, unreachable.", "outcome"),
		reloads:        counter("vance_gateway_reload_total", "Configuration reloads by outcome: ok, invalid.", "outcome"),
		jobs:           counter("vance_gateway_tex_jobs_total", "TeX jobs that have ended, by outcome: what the service's description calls it, cancelled, overdue (hold.max).", "service", "outcome"),
		events:         func(lease.Event) {},
	}
	r.MustRegister(m.eventsLost)
	// A series that first appears at 1 has never risen, for an alert on its
	// increase: those whose labels are known begin at 0.
	for v, labels := range map[*prometheus.CounterVec][]string{
		m.reap:      {string(lease.ReasonIdle), string(lease.ReasonPod), string(lease.ReasonRevoke)},
		m.reconcile: {"corrected"},
		m.closes:    {"confirmed", "refused", "unreachable"},
		m.reloads:   {"ok", "invalid"},
	} {
		for _, l := range labels {
			v.WithLabelValues(l)
		}
	}
	m.Resource("other")
	return m
}

// Resource lets the series of a resource begin at 0, all their outcomes at once.
// label is a Definition.Label.
func (m *Metrics) Resource(label string) {
	if _, begun := m.resources.LoadOrStore(label, true); begun {
		return
	}
	for v, outcomes := range map[*prometheus.CounterVec][]string{
		m.acquire: {"success", "busy", "noop", "unavailable"},
		m.check:   {"ok", "lost", "unavailable"},
		m.release: {"ok", "already-released", "error"},
	} {
		for _, o := range outcomes {
			v.WithLabelValues(label, o)
		}
	}
	m.acquireSeconds.WithLabelValues(label)
}

// CountAudit exposes how many records the audit log has lost.
func CountAudit(r prometheus.Registerer, a *Audit) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "vance_gateway_audit_lost_total",
		Help: "Audit records that could not be written."}, func() float64 { return float64(a.Dropped()) }))
}

// OnEvent sets where lease events go besides the metrics. Call it before use.
func (m *Metrics) OnEvent(f func(lease.Event)) { m.events = f }

// Acquired counts an acquire; see lease.Observer.
func (m *Metrics) Acquired(label string, outcome lease.Outcome, took time.Duration) {
	m.Resource(label)
	m.acquire.WithLabelValues(label, string(outcome)).Inc()
	if outcome != lease.AcquireNoop {
		m.acquireSeconds.WithLabelValues(label).Observe(took.Seconds())
	}
}

// Checked counts a check.
func (m *Metrics) Checked(label string, outcome lease.Outcome) {
	m.Resource(label)
	m.check.WithLabelValues(label, string(outcome)).Inc()
}

// Released counts a release.
func (m *Metrics) Released(label string, outcome lease.Outcome) {
	m.Resource(label)
	m.release.WithLabelValues(label, string(outcome)).Inc()
}

// Reaped counts a reap.
func (m *Metrics) Reaped(reason lease.Reason) { m.reap.WithLabelValues(string(reason)).Inc() }

// EventLost counts an event that found no room on its way to the store.
func (m *Metrics) EventLost() { m.eventsLost.Inc() }

// Reconciled counts a correction.
func (m *Metrics) Reconciled(outcome lease.Outcome) {
	m.reconcile.WithLabelValues(string(outcome)).Inc()
}

// StoreCalled times a store operation and counts it where it failed.
func (m *Metrics) StoreCalled(op string, took time.Duration, err error) {
	m.storeSeconds.WithLabelValues(op).Observe(took.Seconds())
	failed := m.storeErrors.WithLabelValues(op) // begins with the first call, not with the first failure
	if err != nil {
		failed.Inc()
	}
}

// Drifted sets the drift of a resource and level, and its age.
func (m *Metrics) Drifted(label string, level definition.Level, drift int, age time.Duration) {
	m.drift.WithLabelValues(label, string(level)).Set(float64(drift))
	m.driftSeconds.WithLabelValues(label, string(level)).Set(age.Seconds())
}

// Happened passes an event on.
func (m *Metrics) Happened(e lease.Event) { m.events(e) }

// SessionOpened counts a session in; SessionEnded counts it out.
func (m *Metrics) SessionOpened(server string) { m.sessions.WithLabelValues(server).Inc() }

// SessionEnded counts a session out.
func (m *Metrics) SessionEnded(server string) { m.sessions.WithLabelValues(server).Dec() }

// Served times a client's request. Method is a known MCP method or "other".
func (m *Metrics) Served(server, method string, took time.Duration) {
	m.requestSeconds.WithLabelValues(server, method).Observe(took.Seconds())
}

// Closed counts the end of an upstream session: confirmed, refused, unreachable.
func (m *Metrics) Closed(outcome string) { m.closes.WithLabelValues(outcome).Inc() }

// Describes makes the series of a TeX service's jobs, at 0.
func (m *Metrics) Describes(service string, outcomes ...string) {
	for _, o := range outcomes {
		m.jobs.WithLabelValues(service, o)
	}
}

// Ended counts the end of a TeX job.
func (m *Metrics) Ended(service, outcome string) { m.jobs.WithLabelValues(service, outcome).Inc() }

// Reloaded counts a reload: ok, invalid.
func (m *Metrics) Reloaded(outcome string) { m.reloads.WithLabelValues(outcome).Inc() }

var _ lease.Observer = (*Metrics)(nil)
