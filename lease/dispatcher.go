package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"
)

const (
	// handlerTimeout is the longest run of one handler: less than what a peer
	// waits for its answer.
	handlerTimeout = 10 * time.Second
	// peerTimeout is the longest POST to another pod (connect 3 s, read 15 s).
	peerTimeout = 18 * time.Second
	// sweepMarks is how many of the oldest marks a sweep lists. Where most of
	// them pause after a failure it lists more, up to sweepMarksMax, so that an
	// upstream which is gone does not hide the marks behind its own.
	sweepMarks    = 500
	sweepMarksMax = 32_000
	// handlerBackoffMax is the longest pause between two runs of a handler that
	// goes on failing. A mark is never given up.
	handlerBackoffMax = 10 * time.Minute
)

// dispatcher runs the handlers of revoked leases (spec §6). The marks in the
// store are its queue; memory holds a bounded few of them, and what does not
// fit or dies with this pod is found by the next sweep of any pod.
type dispatcher struct {
	m    *Manager
	pool *pool.Pool

	mu      sync.Mutex
	queue   []func()
	workers int
	max     int
	closed  bool
	running map[Token]chan struct{}
	failed  map[Token]failure
}

type failure struct {
	times int
	next  time.Time
}

func newDispatcher(m *Manager) *dispatcher {
	return &dispatcher{
		m: m, pool: pool.New(), max: m.opt.Handlers,
		running: map[Token]chan struct{}{}, failed: map[Token]failure{},
	}
}

// enqueue has a mark dispatched soon. It never waits; it reports whether the
// mark was taken.
func (d *dispatcher) enqueue(t Token) bool {
	return d.submit(func() { d.dispatch(d.m.base, t) })
}

// adopt tells a handler that a holder is now this pod's. There is no mark that a
// sweep would find, so where the queue is full it waits.
func (d *dispatcher) adopt(a Adopter, h Holder) {
	run := func() {
		ctx, cancel := context.WithTimeout(d.m.base, handlerTimeout)
		defer cancel()
		if err := guarded(func() error { return a.Adopt(ctx, h) }); err != nil {
			d.m.log.Warn("a lease was adopted and its handler failed; its TTL decides now", "token", h.Token.Short(), "type", h.Type, "error", err)
		}
	}
	if !d.submit(run) {
		run()
	}
}

// submit starts a worker as long as there are fewer than allowed, else queues
// up to four runs for each.
func (d *dispatcher) submit(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.queue) >= 4*d.max {
		return false
	}
	d.queue = append(d.queue, f)
	if d.workers < d.max {
		d.workers++
		d.pool.Go(d.work)
	}
	return true
}

func (d *dispatcher) work() {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 || d.closed {
			d.workers--
			d.mu.Unlock()
			return
		}
		f := d.queue[0]
		d.queue = d.queue[1:]
		d.mu.Unlock()
		f()
	}
}

// close starts nothing more and waits for what runs. What is still queued stays
// marked in the store.
func (d *dispatcher) close() {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	d.closed = true
	d.mu.Unlock()
	d.pool.Wait()
}

// sweep runs the handlers of marks that have not been handled: those of pods
// that died before they could, those that failed, those that did not fit. It
// waits for what it starts.
func (d *dispatcher) sweep(ctx context.Context, done *Swept) error {
	marks, err := d.listMarks(ctx)
	if err != nil {
		return err
	}
	p := pool.New().WithMaxGoroutines(d.max)
	var handled atomic.Int64
	// Nothing new is begun after one interval, so that handlers which hang do not
	// keep the next sweep from finding what is idle. Those that failed pause, so
	// it gets on with the others.
	end := time.Now().Add(d.m.opt.ReapInterval)
	for _, h := range marks {
		if !d.due(h.Token) || ctx.Err() != nil || time.Now().After(end) {
			continue
		}
		p.Go(func() {
			if d.dispatch(ctx, h.Token) {
				handled.Add(1)
			}
		})
	}
	p.Wait()
	done.Handled = int(handled.Load())
	done.Unhandled = len(marks) - done.Handled
	return ctx.Err()
}

func (d *dispatcher) listMarks(ctx context.Context) ([]Holder, error) {
	for limit := sweepMarks; ; limit *= 4 {
		marks, err := d.m.store.Unhandled(ctx, limit)
		if err != nil {
			return nil, err
		}
		if len(marks) < limit {
			d.keepFailures(marks)
			return marks, nil
		}
		due := 0
		for _, h := range marks {
			if d.due(h.Token) {
				due++
			}
		}
		if limit >= sweepMarksMax || due >= 4*d.max {
			return marks, nil
		}
	}
}

// dispatch takes one mark through the matrix and reports whether it is handled
// now. The mark is read again first: this pod's sweep and its queue, or another
// pod's sweep, may have seen to it meanwhile.
//
//	holder's pod is this one             handler here
//	another living pod                   that pod's handler; unreachable → below
//	dead (or unreachable), podBound      nothing: the resource died with its pod
//	dead (or unreachable), not podBound  handler here, with the payload
//
// Where a pod is alive and only out of reach, or may be alive after an outage,
// its podBound mark stays for the next sweep: the resource still runs there.
func (d *dispatcher) dispatch(ctx context.Context, t Token) (handled bool) {
	release, first := d.only(t)
	if !first {
		return false // it is being handled just now
	}
	defer release()
	h, ok, err := d.m.store.Holder(ctx, t)
	if err != nil {
		return false
	}
	if !ok || h.Revocation == nil || !h.Revocation.HandledAt.IsZero() {
		return true
	}
	err = d.route(ctx, h)
	d.outcome(t, err)
	if err != nil {
		d.m.log.Warn("a revoked lease could not be cleaned up yet; the next sweeps try again",
			"token", t.Short(), "type", h.Type, "holderPod", h.Pod, "error", err)
		return false
	}
	// After the run, never before: a pod that dies in between runs it twice,
	// and handlers are idempotent by token.
	ok, err = d.m.store.MarkHandled(ctx, t)
	if err != nil {
		d.m.log.Debug("a handled mark could not be written; the handler will run again", "token", t.Short(), "error", err)
		return false
	}
	if ok && h.Revocation.Forced { // exactly one pod gets here for a mark
		d.m.obs.Reaped(h.Revocation.Reason)
	}
	return true
}

func (d *dispatcher) route(ctx context.Context, h Holder) error {
	if h.Pod == d.m.opt.Pod.ID {
		return d.run(ctx, h)
	}
	all, err := d.m.registry(ctx)
	if err != nil {
		return err
	}
	p, known := all[h.Pod]
	alive := known && d.m.PodAlive(p)
	var unreachable error
	if alive {
		peerCtx, cancel := context.WithTimeout(ctx, peerTimeout)
		defer cancel()
		if unreachable = d.m.opt.Peers.Revoked(peerCtx, p, h.Token); unreachable == nil {
			return nil
		}
	}
	if h.PodBound {
		if alive {
			return fmt.Errorf("its pod lives and cannot be reached: %w", unreachable)
		}
		if !d.m.podsCertain() {
			return errors.New("its pod may live: nobody has had time to beat since the store was away")
		}
		return nil
	}
	return d.run(ctx, h)
}

// run calls the handler of h's type in this pod.
func (d *dispatcher) run(ctx context.Context, h Holder) error {
	handler, ok := d.m.handlers[h.Type]
	if !ok {
		return fmt.Errorf("no handler for type %q in this pod", h.Type)
	}
	ctx, cancel := context.WithTimeout(ctx, handlerTimeout)
	defer cancel()
	return guarded(func() error { return handler.OnRevoked(ctx, h) })
}

// guarded turns a handler's panic into an error: it must not end the pod.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the handler panicked: %v", r)
		}
	}()
	return f()
}

// only lets one run per token and pod through at a time.
func (d *dispatcher) only(t Token) (release func(), first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.running[t]; ok {
		return nil, false
	}
	done := make(chan struct{})
	d.running[t] = done
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.running, t)
		close(done)
	}, true
}

// outcome counts failures, for the pause before the next run.
func (d *dispatcher) outcome(t Token, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.failed, t)
		return
	}
	f := d.failed[t]
	f.times++
	f.next = time.Now().Add(min(d.m.opt.ReapInterval<<min(f.times-1, 8), handlerBackoffMax) - d.m.opt.ReapInterval/2)
	d.failed[t] = f
}

func (d *dispatcher) due(t Token) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.failed[t]
	return !ok || !time.Now().Before(f.next)
}

// keepFailures forgets failures of marks that are gone; marks are all there are.
func (d *dispatcher) keepFailures(marks []Holder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.failed) == 0 {
		return
	}
	there := make(map[Token]bool, len(marks))
	for _, h := range marks {
		there[h.Token] = true
	}
	for t := range d.failed {
		if !there[t] {
			delete(d.failed, t)
		}
	}
}

// HandleRevoked runs the handler of a mark here, for a peer that has asked
// (POST /internal/lease/revoked). ErrNotFound where there is no such mark; an
// error of the handler means that the peer has to see to it.
func (m *Manager) HandleRevoked(ctx context.Context, t Token) error {
	h, ok, err := m.store.Holder(ctx, t)
	if err != nil {
		return storeGone(err)
	}
	if !ok || h.State != Revoked {
		return ErrNotFound
	}
	m.known.drop(t)
	if h.Revocation != nil && !h.Revocation.HandledAt.IsZero() {
		return nil
	}
	release, first := m.dispatch.only(t)
	if !first {
		return m.dispatch.await(ctx, t)
	}
	defer release()
	err = m.dispatch.run(ctx, h)
	m.dispatch.outcome(t, err)
	if err != nil {
		return err
	}
	if _, err := m.store.MarkHandled(ctx, t); err != nil {
		return storeGone(err)
	}
	return nil
}

// await waits for the run of a token that is under way here, and tells whether
// it was good.
func (d *dispatcher) await(ctx context.Context, t Token) error {
	d.mu.Lock()
	done, ok := d.running[t]
	d.mu.Unlock()
	if ok {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, bad := d.failed[t]; bad {
		return errors.New("the handler failed")
	}
	return nil
}
