package lease

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// pollMin and pollMax bound the pause between two polls. It is jittered, so
	// that waiting pods do not race in lockstep, and its mean is constant: a
	// backoff would make those who have waited longest be polled for least often.
	pollMin = 20 * time.Millisecond
	pollMax = 60 * time.Millisecond

	// lazySweepEvery is how often a pod sweeps one resource because somebody
	// wants a slot of it.
	lazySweepEvery = time.Second

	// pollAhead is how many waiters behind one full counter a poll considers.
	pollAhead = 8
)

// waitLines are the waiters of this pod: per resource one line in the order of
// arrival, and one goroutine that polls for all of them with a single query, so
// that waiting costs the store one read per resource and pod, however many
// wait.
//
// Each waiter stands behind the counter that was full for it. Those who wait
// for different counters do not hold each other up: a user who waits for its
// own slot must not keep other tenants from theirs. Behind one counter the
// order of arrival counts, also against newcomers.
type waitLines struct {
	m      *Manager
	jitter func() time.Duration
	mu     sync.Mutex
	lines  map[string]*line
	n      int
	closed error
}

type line struct {
	waiters []*waiter // in order of arrival
	kick    chan struct{}
}

type waiter struct {
	f      *funnel
	no     *full
	trying bool
	wake   chan error // nil: try now; else the wait is over
}

func newWaitLines(m *Manager) *waitLines {
	return &waitLines{
		m: m, lines: map[string]*line{},
		jitter: func() time.Duration { return pollMin + rand.N(pollMax-pollMin) },
	}
}

// acquireWaiting tries and, where a level is full, waits its turn.
// The caller's going, which gone tells, ends the wait.
func (m *Manager) acquireWaiting(ctx context.Context, gone <-chan struct{}, f *funnel, begun, deadline time.Time) (*Lease, error) {
	no := m.lines.ahead(f)
	if no == nil {
		l, full, err := m.try(ctx, f)
		if err != nil || l != nil {
			return l, err
		}
		no = full
	}
	w, err := m.lines.join(f, no)
	if err != nil {
		return nil, err
	}
	defer m.lines.leave(w)
	end := time.NewTimer(time.Until(deadline))
	defer end.Stop()
	for {
		select {
		case err := <-w.wake:
			if err != nil {
				return nil, err
			}
			l, full, err := m.try(ctx, f)
			if err != nil || l != nil {
				return l, err
			}
			m.lines.stay(w, full)
		case <-end.C:
			return nil, m.busy(ctx, f, m.lines.blocked(w), begun)
		case <-gone:
			return nil, unavailable("the request ended while it waited for a slot", context.Canceled)
		}
	}
}

// ahead returns the counter of f that somebody in this pod waits for already,
// or nil. Who comes later stands behind them without trying.
func (q *waitLines) ahead(f *funnel) *full {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[f.def.Resource]
	if l == nil {
		return nil
	}
	for _, s := range f.steps {
		for _, w := range l.waiters {
			if w.no.id == s.id {
				return &full{step: s, count: w.no.count}
			}
		}
	}
	return nil
}

func (q *waitLines) join(f *funnel, no *full) (*waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return nil, q.closed
	}
	if q.n >= q.m.opt.MaxWaiters {
		return nil, unavailable("too many requests wait for a slot on this gateway already (limits.waiters); try again later", nil)
	}
	q.n++
	w := &waiter{f: f, no: no, wake: make(chan error, 1)}
	l := q.lines[f.def.Resource]
	if l == nil {
		l = &line{kick: make(chan struct{}, 1)}
		q.lines[f.def.Resource] = l
		q.m.loops.run(func() { q.pollLoop(f.def.Resource, l) })
	}
	l.waiters = append(l.waiters, w)
	return w, nil
}

func (q *waitLines) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[w.f.def.Resource]
	if i := slices.Index(l.waiters, w); i >= 0 {
		l.waiters = slices.Delete(l.waiters, i, i+1)
		q.n--
	}
	if len(l.waiters) == 0 {
		l.nudge() // its loop sees the empty line and ends
	}
}

// stay puts a waiter whose try failed back where it stood.
func (q *waitLines) stay(w *waiter, no *full) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.no, w.trying = no, false
}

func (q *waitLines) blocked(w *waiter) *full {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.no
}

// released has the store polled at once for those who wait for one of these counters.
func (q *waitLines) released(levels []Booking) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lines {
		if slices.ContainsFunc(l.waiters, func(w *waiter) bool {
			return slices.ContainsFunc(levels, func(b Booking) bool { return b.ID == w.no.id })
		}) {
			l.nudge()
		}
	}
}

func (l *line) nudge() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// close refuses all waiters, now and from now on.
func (q *waitLines) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return
	}
	q.closed = err
	for _, l := range q.lines {
		l.fail(err)
		l.nudge()
	}
}

// fail ends the wait of all who are not trying just now.
func (l *line) fail(err error) {
	for _, w := range l.waiters {
		if !w.trying {
			w.trying = true
			w.wake <- err
		}
	}
}

// pollLoop polls for the waiters of one resource until there are none.
func (q *waitLines) pollLoop(resource string, l *line) {
	freed := q.m.lazySweep(q.m.base, resource)
	for {
		if !freed && !q.pause(l) {
			q.mu.Lock()
			l.fail(unavailable("this gateway is shutting down; try again", nil))
			q.mu.Unlock()
			// Whoever is still trying fails by its own deadline.
			return
		}
		if q.retire(resource, l) {
			return
		}
		freed = false
		if err := q.poll(l); err != nil {
			q.mu.Lock()
			l.fail(storeGone(err))
			q.mu.Unlock()
			continue
		}
		freed = q.m.lazySweep(q.m.base, resource)
	}
}

// pause waits for the next poll and reports whether there is one.
func (q *waitLines) pause(l *line) bool {
	t := time.NewTimer(q.jitter())
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.kick:
	case <-q.m.base.Done():
		return false
	}
	return true
}

// retire ends an empty line. Under the lock, so that who joins at this instant
// finds either a line with a loop or none.
func (q *waitLines) retire(resource string, l *line) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(l.waiters) > 0 {
		return false
	}
	delete(q.lines, resource)
	return true
}

// poll reads the counters of those at the front, behind each full counter, in
// one query, and wakes whom it finds room for on every level. Room is handed
// out in the order of arrival; what those who are trying just now may still
// take counts as taken.
func (q *waitLines) poll(l *line) error {
	front, taken, ids := q.front(l)
	if len(front) == 0 {
		return nil
	}
	cs, err := q.m.store.Counters(q.m.base, ids)
	if err != nil {
		return err
	}
	count := make(map[CounterID]int, len(cs))
	for _, c := range cs {
		count[c.ID] = c.Count
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range front {
		if w.trying || !slices.Contains(l.waiters, w) {
			continue // it has been refused or has left meanwhile
		}
		if no := w.f.firstFull(count, taken); no != nil {
			w.no = no
			continue
		}
		for _, s := range w.f.steps {
			taken[s.id]++
		}
		w.trying = true
		w.wake <- nil
	}
	return nil
}

// front is whom a poll is for, the counters that they need, and how many slots of
// each are about to be taken by those who are trying.
func (q *waitLines) front(l *line) (front []*waiter, taken map[CounterID]int, ids []CounterID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken = map[CounterID]int{}
	behind := map[CounterID]int{}
	asked := map[CounterID]bool{}
	for _, w := range l.waiters {
		if w.trying {
			for _, s := range w.f.steps {
				taken[s.id]++
			}
			continue
		}
		if behind[w.no.id]++; behind[w.no.id] > pollAhead {
			continue
		}
		front = append(front, w)
		for _, s := range w.f.steps {
			if !asked[s.id] {
				asked[s.id] = true
				ids = append(ids, s.id)
			}
		}
	}
	return front, taken, ids
}

// firstFull is the narrowest level without room, or nil.
func (f *funnel) firstFull(count, taken map[CounterID]int) *full {
	for _, s := range f.steps {
		if count[s.id]+taken[s.id] >= int(s.cap) {
			return &full{step: s, count: count[s.id]}
		}
	}
	return nil
}

// lazyGate lets one lazy sweep per resource through in lazySweepEvery.
type lazyGate struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (g *lazyGate) open(resource string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.last[resource]) < lazySweepEvery {
		return false
	}
	if g.last == nil {
		g.last = map[string]time.Time{}
	}
	g.last[resource] = now
	return true
}

// forget drops resources that nobody has wanted for a while.
func (g *lazyGate) forget(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for r, at := range g.last {
		if now.Sub(at) > time.Minute {
			delete(g.last, r)
		}
	}
}
