package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// ErrDown is what a verb that fails says, unless a test wants something else.
var ErrDown = errors.New("connection refused")

// Faulty is a Store whose verbs a test can let fail or hold up, and whose leases
// it can take away. Verbs are named as in lease.NewAround: "touch" is a check,
// "holder" a peek, "createHolder" begins an acquire, "deleteHolder" a release.
type Faulty struct {
	*lease.Around
	store lease.Store

	mu      sync.Mutex
	down    error // every verb
	fails   map[string]error
	held    map[string]*gate
	calls   map[string]int
	changed chan struct{} // closed and replaced after each call and each change
}

// gate holds up the calls of one verb.
type gate struct {
	arrived chan struct{} // closed by the first call
	once    sync.Once
	open    chan struct{}
}

// NewFaulty wraps a store that works; every verb works until the test says
// otherwise.
func NewFaulty(s lease.Store) *Faulty {
	f := &Faulty{store: s, fails: map[string]error{}, held: map[string]*gate{}, calls: map[string]int{}, changed: make(chan struct{})}
	f.Around = lease.NewAround(s, f.call)
	return f
}

func (f *Faulty) call(ctx context.Context, verb string, call func(context.Context) error) error {
	f.mu.Lock()
	g := f.held[verb]
	f.mu.Unlock()
	if g != nil {
		g.once.Do(func() { close(g.arrived) })
		select {
		case <-g.open:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	err := f.down
	if err == nil {
		err = f.fails[verb]
	}
	f.mu.Unlock()
	if err == nil {
		err = call(ctx)
	}
	f.change(func() { f.calls[verb]++ })
	return err
}

func (f *Faulty) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// Fail lets these verbs fail without being applied, or all of them where none is
// named. A nil err lets them work again.
func (f *Faulty) Fail(err error, verbs ...string) {
	f.change(func() {
		if len(verbs) == 0 {
			f.down = err
		}
		for _, v := range verbs {
			f.fails[v] = err
		}
	})
}

// Hold keeps the calls of a verb waiting before they are applied, each until open
// is called or its context ends. arrived is closed when the first one is there.
func (f *Faulty) Hold(verb string) (arrived <-chan struct{}, open func()) {
	g := &gate{arrived: make(chan struct{}), open: make(chan struct{})}
	f.change(func() { f.held[verb] = g })
	return g.arrived, sync.OnceFunc(func() {
		f.change(func() {
			if f.held[verb] == g {
				delete(f.held, verb)
			}
		})
		close(g.open)
	})
}

// Calls is how many calls of a verb have come back, or with "" of any.
func (f *Faulty) Calls(verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if verb != "" {
		return f.calls[verb]
	}
	n := 0
	for _, c := range f.calls {
		n += c
	}
	return n
}

// Until waits until ok, which is asked again after each call and change.
func (f *Faulty) Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("it never happened that %s", what)
		}
	}
}

// Held lists the living holders, whatever fails for the engine.
func (f *Faulty) Held(t testing.TB) []lease.Holder {
	t.Helper()
	hs, err := f.store.Holders(context.Background(), lease.Filter{States: []lease.State{lease.Held}})
	if err != nil {
		t.Fatal(err)
	}
	return hs
}

// Lose takes leases away as another pod does, all that are held where no token is
// named: they are marked, and their slots are back. It returns the holders as
// their handlers get them, which it leaves to the test.
func (f *Faulty) Lose(t testing.TB, why lease.Reason, tokens ...lease.Token) []lease.Holder {
	t.Helper()
	ctx := context.Background()
	if len(tokens) == 0 {
		for _, h := range f.Held(t) {
			tokens = append(tokens, h.Token)
		}
	}
	var lost []lease.Holder
	for _, token := range tokens {
		h, ok, err := f.store.MarkHolder(ctx, token, lease.Mark{Cause: lease.Cause{Reason: why}})
		if err != nil || !ok {
			t.Fatalf("the holder %s could not be marked: %v", token.Short(), err)
		}
		for _, b := range h.Levels {
			if _, err := f.store.Decrement(ctx, b.ID, b.Gen, b.Gen); err != nil {
				t.Fatal(err)
			}
		}
		if h, _, err = f.store.Holder(ctx, token); err != nil {
			t.Fatal(err)
		}
		lost = append(lost, h)
	}
	f.change(func() {})
	return lost
}

// NewManager makes the engine of a pod over a store. It does not sweep by itself,
// and is stopped at the test's end. The caller registers handlers and starts it.
func NewManager(t testing.TB, s lease.Store, pod lease.PodID, change ...func(*lease.Options)) *lease.Manager {
	t.Helper()
	o := lease.Options{Store: s, Pod: lease.Pod{ID: pod, Endpoint: string(pod) + ":1"}, ReapInterval: 1000 * time.Hour}
	for _, c := range change {
		c(&o)
	}
	m, err := lease.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := m.Stop(ctx, false); err != nil {
			t.Log("the engine's end:", err)
		}
	})
	return m
}
