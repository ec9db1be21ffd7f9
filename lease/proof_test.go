package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// A proof is one sentence about the engine, shown on the real engine over the
// reference store in fake time. It is run twice: as it is, where it must hold,
// and once for each mutant that it must kill, where it must not.
type proof struct {
	says string
	run  func(w *world)
}

// world is what a proof is about: a store, pods and what was seen of them.
type world struct {
	mutant func(lease.Store) lease.Store
	mem    *storetest.Memory
	calls  *calls
	pods   []*lease.Manager

	mu       sync.Mutex
	handled  []string // "pod token"
	adopted  []string
	events   []lease.Event
	outcomes []string
	failing  map[lease.Token]int
	failed   []string
}

// failure ends a proof at once.
type failure struct{}

func (w *world) fatalf(format string, args ...any) {
	w.errorf(format, args...)
	panic(failure{})
}

func (w *world) errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, fmt.Sprintf(format, args...))
}

func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.fatalf(format, args...)
	}
}

// show runs a proof in a bubble and returns what it found wrong.
func show(t *testing.T, p proof, mutant func(lease.Store) lease.Store) (failed []string) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{mutant: mutant, mem: storetest.NewMemory(nil), failing: map[lease.Token]int{}}
		w.calls = &calls{Store: w.mem}
		func() {
			defer func() {
				if r := recover(); r != nil {
					if _, ok := r.(failure); !ok {
						panic(r)
					}
				}
			}()
			p.run(w)
		}()
		for _, m := range w.pods {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			_ = m.Stop(ctx, false)
			cancel()
		}
		time.Sleep(time.Hour) // whatever a proof that ended early has left asleep
		failed = w.failed
	})
	return failed
}

func TestProofs(t *testing.T) {
	for _, p := range proofs {
		t.Run(p.says, func(t *testing.T) {
			for _, f := range show(t, p, nil) {
				t.Error(f)
			}
		})
	}
}

// pod makes a pod whose handler type "t" records and "job" adopts, and starts
// it. Its sweeps come every 30 s.
func (w *world) pod(id string, change ...func(*lease.Options)) *lease.Manager {
	m := w.newPod(id, change...)
	if err := m.Start(context.Background()); err != nil {
		w.fatalf("start: %v", err)
	}
	synctest.Wait()
	return m
}

func (w *world) newPod(id string, change ...func(*lease.Options)) *lease.Manager {
	store := lease.Store(w.calls)
	if w.mutant != nil {
		store = w.mutant(store)
	}
	o := lease.Options{
		Store: store, Pod: lease.Pod{ID: lease.PodID(id), Endpoint: id + ":1"},
		Peers: w, Observer: watcher{w},
	}
	for _, c := range change {
		c(&o)
	}
	m, err := lease.New(o)
	if err != nil {
		w.fatalf("new: %v", err)
	}
	h := handler{w, id}
	m.Register("t", h)
	m.Register("job", adopter{h})
	w.mu.Lock()
	w.pods = append(w.pods, m)
	w.mu.Unlock()
	return m
}

// withoutPod is a Manager that nobody starts, as the command line has one.
func (w *world) withoutPod() *lease.Manager {
	m, err := lease.New(lease.Options{Store: w.mem})
	if err != nil {
		w.fatalf("new: %v", err)
	}
	return m
}

// quiet is a pod that does not sweep by itself.
func quiet(o *lease.Options) { o.ReapInterval = 1000 * time.Hour }

type handler struct {
	w   *world
	pod string
}

func (h handler) OnRevoked(_ context.Context, x lease.Holder) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.handled = append(h.w.handled, h.pod+" "+string(x.Token))
	if h.w.failing[x.Token] > 0 {
		h.w.failing[x.Token]--
		return errors.New("the upstream does not answer")
	}
	return nil
}

// fails lets the handler of a token fail n times.
func (w *world) fails(t lease.Token, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing[t] = n
}

type adopter struct{ handler }

func (a adopter) Adopt(_ context.Context, h lease.Holder) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.w.adopted = append(a.w.adopted, a.pod+" "+string(h.Token))
	return nil
}

// Revoked is lease.Peers: it calls the other pod's manager, if it runs.
func (w *world) Revoked(ctx context.Context, p lease.Pod, t lease.Token) error {
	w.mu.Lock()
	var to *lease.Manager
	for _, m := range w.pods {
		if m.PodAlive(lease.Pod{ID: p.ID}) {
			to = m
		}
	}
	w.mu.Unlock()
	if to == nil {
		return errors.New("connection refused")
	}
	return to.HandleRevoked(ctx, t)
}

// kill ends a pod as kill -9 would: nothing of it runs on, nothing is told.
func (w *world) kill(m *lease.Manager) {
	m.Halt()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods = slices.DeleteFunc(w.pods, func(o *lease.Manager) bool { return o == m })
}

func (w *world) handledBy(pod string, t lease.Token) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, h := range w.handled {
		if h == pod+" "+string(t) {
			n++
		}
	}
	return n
}

func (w *world) handledAnywhere(t lease.Token) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, h := range w.handled {
		if h[len(h)-len(t):] == string(t) {
			n++
		}
	}
	return n
}

func (w *world) wasAdopted(by string, t lease.Token) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.adopted, by+" "+string(t))
}

type watcher struct{ w *world }

func (o watcher) note(s string) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.w.outcomes = append(o.w.outcomes, s)
}
func (o watcher) Acquired(label string, outcome lease.Outcome, _ time.Duration) {
	o.note("acquire " + label + " " + string(outcome))
}
func (o watcher) Checked(label string, outcome lease.Outcome) {
	o.note("check " + label + " " + string(outcome))
}
func (o watcher) Released(label string, outcome lease.Outcome) {
	o.note("release " + label + " " + string(outcome))
}
func (o watcher) Reaped(r lease.Reason)                                { o.note("reap " + string(r)) }
func (o watcher) EventLost()                                           { o.note("event lost") }
func (o watcher) Reconciled(outcome lease.Outcome)                     { o.note("reconcile " + string(outcome)) }
func (o watcher) StoreCalled(string, time.Duration, error)             {}
func (o watcher) Drifted(string, definition.Level, int, time.Duration) {}
func (o watcher) Happened(e lease.Event) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.w.events = append(o.w.events, e)
}

func (w *world) saw(outcome string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.outcomes, outcome)
}

func (w *world) event(kind lease.EventKind, reason string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e lease.Event) bool { return e.Kind == kind && e.Reason == reason })
}

// browser is a definition with one slot per user, two per project, three per
// tenant and four in all, unless caps say otherwise.
func browser(caps map[definition.Level]definition.Cap) *definition.Definition {
	if caps == nil {
		caps = map[definition.Level]definition.Cap{
			definition.User: 1, definition.Project: 2, definition.Tenant: 3, definition.Global: 4,
		}
	}
	return &definition.Definition{
		Name: "browser", Resource: "browser", Label: "browser", Caps: caps,
		TTL: 2 * time.Minute, Wait: 10 * time.Second,
	}
}

func only(level definition.Level, c definition.Cap) map[definition.Level]definition.Cap {
	return map[definition.Level]definition.Cap{level: c}
}

func wants(d *definition.Definition, user string) lease.Request {
	return lease.Request{Type: "t", Definition: d, Tenant: "acme", Project: "thesis", User: user}
}

func (w *world) acquire(m *lease.Manager, r lease.Request) *lease.Lease {
	l, err := m.Acquire(context.Background(), r)
	if err != nil {
		w.fatalf("acquire: %v", err)
	}
	return l
}

func (w *world) busy(m *lease.Manager, r lease.Request) *lease.BusyError {
	_, err := m.Acquire(context.Background(), r)
	var busy *lease.BusyError
	if !errors.As(err, &busy) {
		w.fatalf("acquire: got %v, want LEASE_BUSY", err)
	}
	return busy
}

func (w *world) refused(m *lease.Manager, r lease.Request) *lease.UnavailableError {
	_, err := m.Acquire(context.Background(), r)
	var u *lease.UnavailableError
	if !errors.As(err, &u) {
		w.fatalf("acquire: got %v, want LEASE_UNAVAILABLE", err)
	}
	return u
}

func (w *world) lives(l *lease.Lease) {
	if err := l.Check(context.Background()); err != nil {
		w.fatalf("check: %v", err)
	}
}

func (w *world) lost(l *lease.Lease, want lease.Reason) {
	err := l.Check(context.Background())
	var lost *lease.LostError
	if !errors.As(err, &lost) || lost.Reason != want {
		w.fatalf("check: got %v, want LEASE_LOST for %q", err, want)
	}
}

// used checks a lease each half TTL for a while.
func (w *world) used(l *lease.Lease, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(l.Ref().TTL / 2)
		w.lives(l)
	}
}

func (w *world) holder(t lease.Token) (lease.Holder, bool) {
	h, ok, _ := w.mem.Holder(context.Background(), t)
	return h, ok
}

func (w *world) living() int {
	n := 0
	for _, h := range w.mem.AllHolders() {
		if h.State != lease.Revoked {
			n++
		}
	}
	return n
}

func (w *world) counts() map[lease.CounterID]int {
	m := map[lease.CounterID]int{}
	for _, c := range w.mem.AllCounters() {
		m[c.ID] = c.Count
	}
	return m
}

// balanced demands that every counter equals the holders that book it.
func (w *world) balanced() {
	ids := []lease.CounterID{}
	for _, c := range w.mem.AllCounters() {
		ids = append(ids, c.ID)
	}
	booked, _ := w.mem.Booked(context.Background(), ids)
	for id, n := range w.counts() {
		if booked[id] != n {
			w.errorf("counter %s is %d and %d holders book it", id, n, booked[id])
		}
	}
}

var errStoreDown = errors.New("the store is down")

// calls is a Store that counts, and that a test can take down or trip.
type calls struct {
	lease.Store

	mu   sync.Mutex
	n    map[string]int
	down bool
	trip func(op string) (before, after error) // what happens to a call
	slow time.Duration                         // each call takes so long
}

func (c *calls) begin(ctx context.Context, op string) (after func(error) error, err error) {
	c.mu.Lock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[op]++
	down, trip, slow := c.down, c.trip, c.slow
	c.mu.Unlock()
	if slow > 0 {
		t := time.NewTimer(slow)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if down {
		return nil, errStoreDown
	}
	var lost error
	if trip != nil {
		before, afterwards := trip(op)
		if before != nil {
			return nil, before
		}
		lost = afterwards
	}
	return func(err error) error {
		if err == nil {
			err = lost
		}
		return err
	}, nil
}

func (c *calls) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n = map[string]int{}
}

func (c *calls) of(op string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[op]
}

func (c *calls) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, k := range c.n {
		n += k
	}
	return n
}

func (c *calls) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *calls) CreateHolder(ctx context.Context, h lease.Holder) error {
	after, err := c.begin(ctx, "createHolder")
	if err != nil {
		return err
	}
	return after(c.Store.CreateHolder(ctx, h))
}

func (c *calls) PushLevel(ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
	after, err := c.begin(ctx, "pushLevel")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.PushLevel(ctx, t, b, maxAge)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) PushLast(ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error) {
	after, err := c.begin(ctx, "pushLast")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.PushLast(ctx, t, b, others, ttl, maxAge)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) DeleteHolder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	after, err := c.begin(ctx, "deleteHolder")
	if err != nil {
		return lease.Holder{}, false, err
	}
	h, ok, err := c.Store.DeleteHolder(ctx, t)
	if err = after(err); err != nil {
		return lease.Holder{}, false, err
	}
	return h, ok, nil
}

func (c *calls) Touch(ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
	after, err := c.begin(ctx, "touch")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.Touch(ctx, t, pod)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) SetPayload(ctx context.Context, t lease.Token, p lease.Payload) (bool, error) {
	after, err := c.begin(ctx, "setPayload")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.SetPayload(ctx, t, p)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) HolderPods(ctx context.Context) ([]lease.PodID, error) {
	after, err := c.begin(ctx, "holderPods")
	if err != nil {
		return nil, err
	}
	ids, err := c.Store.HolderPods(ctx)
	return ids, after(err)
}

func (c *calls) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
	after, err := c.begin(ctx, "markHolder")
	if err != nil {
		return lease.Holder{}, false, err
	}
	h, ok, err := c.Store.MarkHolder(ctx, t, m)
	if err = after(err); err != nil {
		return lease.Holder{}, false, err
	}
	return h, ok, nil
}

func (c *calls) MarkHandled(ctx context.Context, t lease.Token) (bool, error) {
	after, err := c.begin(ctx, "markHandled")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.MarkHandled(ctx, t)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) Holder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	after, err := c.begin(ctx, "holder")
	if err != nil {
		return lease.Holder{}, false, err
	}
	h, ok, err := c.Store.Holder(ctx, t)
	return h, ok, after(err)
}

func (c *calls) Holders(ctx context.Context, f lease.Filter) ([]lease.Holder, error) {
	after, err := c.begin(ctx, "holders")
	if err != nil {
		return nil, err
	}
	hs, err := c.Store.Holders(ctx, f)
	return hs, after(err)
}

func (c *calls) Expired(ctx context.Context, resource string, grace time.Duration, limit int) ([]lease.Holder, error) {
	after, err := c.begin(ctx, "expired")
	if err != nil {
		return nil, err
	}
	hs, err := c.Store.Expired(ctx, resource, grace, limit)
	return hs, after(err)
}

func (c *calls) OldestBooking(ctx context.Context, id lease.CounterID) (time.Duration, error) {
	after, err := c.begin(ctx, "oldestBooking")
	if err != nil {
		return 0, err
	}
	age, err := c.Store.OldestBooking(ctx, id)
	return age, after(err)
}

func (c *calls) Increment(ctx context.Context, id lease.CounterID, limit definition.Cap) (lease.Gen, int, bool, error) {
	after, err := c.begin(ctx, "increment")
	if err != nil {
		return "", 0, false, err
	}
	gen, n, ok, err := c.Store.Increment(ctx, id, limit)
	if err = after(err); err != nil {
		return "", 0, false, err
	}
	return gen, n, ok, nil
}

func (c *calls) EnsureCounter(ctx context.Context, id lease.CounterID, gen lease.Gen) error {
	after, err := c.begin(ctx, "ensureCounter")
	if err != nil {
		return err
	}
	return after(c.Store.EnsureCounter(ctx, id, gen))
}

func (c *calls) Decrement(ctx context.Context, id lease.CounterID, gen, listed lease.Gen) (bool, error) {
	after, err := c.begin(ctx, "decrement")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.Decrement(ctx, id, gen, listed)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) DecrementPrev(ctx context.Context, id lease.CounterID, listed lease.Gen) (bool, error) {
	after, err := c.begin(ctx, "decrementPrev")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.DecrementPrev(ctx, id, listed)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) OpenAudit(ctx context.Context, was lease.Counter, gen lease.Gen, margin time.Duration) (bool, error) {
	after, err := c.begin(ctx, "openAudit")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.OpenAudit(ctx, was, gen, margin)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) BookedBefore(ctx context.Context, id lease.CounterID, gen lease.Gen) (int, error) {
	after, err := c.begin(ctx, "bookedBefore")
	if err != nil {
		return 0, err
	}
	n, err := c.Store.BookedBefore(ctx, id, gen)
	return n, after(err)
}

func (c *calls) CloseAudit(ctx context.Context, was lease.Counter, booked int, gen lease.Gen, margin time.Duration) (bool, error) {
	after, err := c.begin(ctx, "closeAudit")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.CloseAudit(ctx, was, booked, gen, margin)
	err = after(err)
	return ok && err == nil, err
}

func (c *calls) Counters(ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error) {
	after, err := c.begin(ctx, "counters")
	if err != nil {
		return nil, err
	}
	cs, err := c.Store.Counters(ctx, ids)
	return cs, after(err)
}

func (c *calls) Pods(ctx context.Context) ([]lease.Pod, error) {
	after, err := c.begin(ctx, "pods")
	if err != nil {
		return nil, err
	}
	ps, err := c.Store.Pods(ctx)
	return ps, after(err)
}

func (c *calls) PutPod(ctx context.Context, p lease.Pod) error {
	after, err := c.begin(ctx, "putPod")
	if err != nil {
		return err
	}
	return after(c.Store.PutPod(ctx, p))
}

func (c *calls) BeatPod(ctx context.Context, id lease.PodID) (bool, error) {
	after, err := c.begin(ctx, "beatPod")
	if err != nil {
		return false, err
	}
	ok, err := c.Store.BeatPod(ctx, id)
	return ok, after(err)
}

func (c *calls) Unhandled(ctx context.Context, limit int) ([]lease.Holder, error) {
	after, err := c.begin(ctx, "unhandled")
	if err != nil {
		return nil, err
	}
	hs, err := c.Store.Unhandled(ctx, limit)
	return hs, after(err)
}

func (c *calls) ListCounters(ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
	end, err := c.begin(ctx, "listCounters")
	if err != nil {
		return nil, err
	}
	cs, err := c.Store.ListCounters(ctx, resource, after, limit)
	return cs, end(err)
}
