package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Options wires a Manager. Durations of zero take the defaults named beside
// them.
type Options struct {
	Store    Store
	Pod      Pod // ID and Endpoint; without them the Manager cannot be started
	Peers    Peers
	Observer Observer
	Log      *slog.Logger
	// Definitions resolves the names of AcquireNamed; nil where all definitions are
	// inline.
	Definitions definition.Resolver

	Heartbeat       time.Duration // 15 s
	StaleAfter      time.Duration // 45 s; at least two heartbeats
	ReapInterval    time.Duration // 30 s
	ReconcileSafety time.Duration // 60 s
	PendingTTL      time.Duration // 30 s
	OpTimeout       time.Duration // 4 s: longest wait for one store operation; MCP clients give up after 5
	MarkLife        time.Duration // 1 h: how long a handled mark stays, to tell LEASE_LOST its reason
	MaxWaiters      int           // 1000
	Handlers        int           // 16 handlers at once
}

func (o *Options) setDefaults() error {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.Heartbeat, 15*time.Second)
	set(&o.StaleAfter, 45*time.Second)
	set(&o.ReapInterval, 30*time.Second)
	set(&o.ReconcileSafety, 60*time.Second)
	set(&o.PendingTTL, 30*time.Second)
	set(&o.OpTimeout, 4*time.Second)
	set(&o.MarkLife, time.Hour)
	if o.MaxWaiters == 0 {
		o.MaxWaiters = 1000
	}
	if o.Handlers == 0 {
		o.Handlers = 16
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Peers == nil {
		o.Peers = unreachable{}
	}
	switch {
	case o.Store == nil:
		return errors.New("lease: no store")
	case o.StaleAfter < 2*o.Heartbeat:
		return fmt.Errorf("lease: staleAfter %s is less than two heartbeats of %s: one lost beat would reap the pod", o.StaleAfter, o.Heartbeat)
	}
	for name, d := range map[string]time.Duration{
		"heartbeat": o.Heartbeat, "reapInterval": o.ReapInterval, "reconcileSafety": o.ReconcileSafety,
		"pendingTTL": o.PendingTTL, "mark life": o.MarkLife, "operation timeout": o.OpTimeout,
	} {
		if d < 0 {
			return fmt.Errorf("lease: %s is negative", name)
		}
	}
	if o.MaxWaiters < 0 || o.Handlers < 0 {
		return errors.New("lease: a bound is negative")
	}
	return nil
}

// Manager is one pod's lease engine. It is safe for concurrent use.
type Manager struct {
	opt   Options
	store *metered
	obs   Observer
	log   *slog.Logger
	ids   identities

	handlers map[string]Handler
	lines    *waitLines
	dispatch *dispatcher
	contact  *contact
	lazy     lazyGate
	labels   labels
	known    knownLeases
	suspects suspects
	events   *eventQueue // nil before Start: nobody would take them

	phase   atomic.Int32
	started atomic.Bool
	lastOwn atomic.Int64 // unix nanoseconds when the last beat that counted began

	base    context.Context // what runs for nobody in particular
	endBase context.CancelFunc
	endLoop context.CancelFunc
	loops   background // beats, sweeps, events and looks
	undoing background // rollbacks that nobody waits for
}

// The phases of a Manager. Acquire works in phaseRunning only.
const (
	phaseNew int32 = iota
	phaseRunning
	phaseDraining
	phaseStopped
)

// New checks the options and makes a Manager that has not started. As it is, it
// reads the store, reconciles and revokes by force, for operators where no pod
// can be asked (spec §9); it acquires nothing and runs no handler.
func New(opt Options) (*Manager, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	m := &Manager{
		opt: opt, obs: opt.Observer, log: opt.Log, ids: randomIdentities{},
		handlers: map[string]Handler{},
	}
	m.base, m.endBase = context.WithCancel(context.Background())
	m.endLoop = func() {}
	m.contact = &contact{
		long:  min(2*opt.ReapInterval, opt.StaleAfter-opt.Heartbeat),
		stale: opt.StaleAfter,
	}
	m.store = newMetered(opt.Store, opt.OpTimeout, opt.Observer, m.contact)
	m.lines = newWaitLines(m)
	m.dispatch = newDispatcher(m)
	return m, nil
}

// Register sets the handler of a type. It must come before Start.
func (m *Manager) Register(typ string, h Handler) {
	if m.started.Load() {
		panic("lease: Register after Start")
	}
	m.handlers[typ] = h
}

// Start waits until this pod's registration is in the store, then beats and
// sweeps until Stop. It goes on trying while the store is out of reach, until
// ctx ends; Ready tells.
func (m *Manager) Start(ctx context.Context) error {
	switch {
	case m.opt.Pod.ID == "":
		return errors.New("lease: the pod has no id")
	case m.opt.Pod.Endpoint == "":
		return errors.New("lease: the pod has no endpoint, so other pods would take it for dead")
	}
	if m.started.Swap(true) {
		return errors.New("lease: Start was called twice")
	}
	if err := m.register(ctx); err != nil {
		return err
	}
	m.contact.start(time.Now())
	m.events = newEventQueue()
	loops, end := context.WithCancel(m.base)
	m.endLoop = end
	m.phase.CompareAndSwap(phaseNew, phaseRunning)
	m.loops.run(func() { m.beatLoop(loops) })
	m.loops.run(func() { m.sweepLoop(loops) })
	m.loops.run(func() { m.storeEvents(loops) })
	return nil
}

// Ready reports whether the pod has been in contact with the store once.
func (m *Manager) Ready() bool { return m.phase.Load() != phaseNew }

// Drain registers the pod STOPPING: it takes no new lease, and lives. Those who
// wait for a slot here are refused at once.
func (m *Manager) Drain(ctx context.Context) error {
	if !m.phase.CompareAndSwap(phaseRunning, phaseDraining) {
		return nil
	}
	m.lines.close(unavailable("this gateway is shutting down; try again", nil))
	return m.putPod(ctx, PodStopping, false)
}

// Stop ends the sweeps, waits for running handlers until ctx ends and registers
// the pod STOPPED. With handedOver its not podBound leases live on for the
// other pods.
func (m *Manager) Stop(ctx context.Context, handedOver bool) error {
	was := m.phase.Swap(phaseStopped)
	if was == phaseStopped {
		return nil
	}
	m.lines.close(unavailable("this gateway is shutting down; try again", nil))
	m.endLoop()
	idle := make(chan struct{})
	go func() {
		m.dispatch.close()
		m.loops.wait()
		m.undoing.wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	m.endBase()
	if was == phaseNew {
		return nil
	}
	// Last of all, and also where ctx has ended: until it is written the other
	// pods leave this one's leases alone.
	end, cancel := m.own(ctx)
	defer cancel()
	return m.putPod(end, PodStopped, handedOver)
}

// own is a context for what must be finished although its caller has gone: a
// rollback or release that ended with the caller's deadline would leave a
// holder behind for a whole TTL. Each operation in it still has its deadline.
func (m *Manager) own(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 3*m.opt.OpTimeout)
}

// Find lists living holders, or those in f.States.
func (m *Manager) Find(ctx context.Context, f Filter) ([]Holder, error) {
	hs, err := m.store.Holders(ctx, f)
	if err != nil {
		return nil, storeGone(err)
	}
	return hs, nil
}

// Records is the store's records as everybody above the engine calls them: with
// the deadline, the metric and the memory of an outage that the engine's own
// calls have.
func (m *Manager) Records() Records { return m.store }

// Events lists what happened in the last hour, newest first, of one tenant or,
// with "", of all.
func (m *Manager) Events(ctx context.Context, tenant string, limit int) ([]Event, error) {
	return m.store.Events(ctx, tenant, limit)
}

// Pods lists all registrations; PodAlive tells which are alive.
func (m *Manager) Pods(ctx context.Context) ([]Pod, error) { return m.store.Pods(ctx) }

// LostReason looks up why a token is gone; "" where nobody knows.
func (m *Manager) LostReason(ctx context.Context, t Token) Reason {
	h, ok, err := m.store.Holder(ctx, t)
	if err != nil || !ok || h.Revocation == nil {
		return ""
	}
	return h.Revocation.Reason
}

func unavailable(why string, err error) *UnavailableError {
	return &UnavailableError{Why: why, Err: err}
}

// storeGone is what every operation says whose store did not answer.
func storeGone(err error) *UnavailableError {
	return unavailable("the lease store could not be reached; try again", err)
}

// nobody observes nothing.
type nobody struct{}

func (nobody) Acquired(string, Outcome, time.Duration)              {}
func (nobody) Checked(string, Outcome)                              {}
func (nobody) Released(string, Outcome)                             {}
func (nobody) Reaped(Reason)                                        {}
func (nobody) Reconciled(Outcome)                                   {}
func (nobody) EventLost()                                           {}
func (nobody) StoreCalled(string, time.Duration, error)             {}
func (nobody) Drifted(string, definition.Level, int, time.Duration) {}
func (nobody) Happened(Event)                                       {}

// unreachable is a pod without peers.
type unreachable struct{}

func (unreachable) Revoked(context.Context, Pod, Token) error {
	return errors.New("this pod has no way to reach other pods")
}
