// Package groups lets calls that ask a store for the same thing go there together:
// while some are under way, those that arrive wait, and the next operation is for
// all of them.
//
// A call is answered by an operation that began after it arrived, never by one
// that was under way already: what that one has seen may be older than the call.
// So a call means what it means alone. The package knows no store.
package groups

import (
	"context"
	"sync"
	"time"
)

// Groups are the calls of one kind. It is safe for concurrent use.
type Groups[T, R any] struct {
	opt Options
	run Run[T, R]

	mu       sync.Mutex
	inFlight int
	waiting  []*call[T, R] // in the order of their arrival
}

// Run asks the store for all items, in their order, and returns what each is
// answered with.
type Run[T, R any] func(ctx context.Context, all []T) ([]R, error)

// Options bound the operations.
type Options struct {
	AtOnce  int           // operations under way at the same time
	Most    int           // calls in one operation
	Timeout time.Duration // of an operation, which outlives callers that leave
}

type call[T, R any] struct {
	item   T
	left   bool // its caller waits no more
	done   chan struct{}
	answer R
	err    error
}

// New makes Groups.
func New[T, R any](o Options, run Run[T, R]) *Groups[T, R] { return &Groups[T, R]{opt: o, run: run} }

// Do is one call. An error leaves open whether the item was asked for. A caller
// whose context ends is not waited with; its call may still be made.
func (g *Groups[T, R]) Do(ctx context.Context, item T) (R, error) {
	c := &call[T, R]{item: item, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	own := g.begin()
	g.mu.Unlock()
	if own != nil {
		go g.work(context.WithoutCancel(ctx), own)
	}
	select {
	case <-c.done:
		return c.answer, c.err
	case <-ctx.Done():
		g.mu.Lock()
		c.left = true
		g.mu.Unlock()
		var none R
		return none, ctx.Err()
	}
}

// begin takes those who wait for an operation, where one more may begin; nil
// otherwise. Whoever arrives from now on is not among them.
func (g *Groups[T, R]) begin() []*call[T, R] {
	if g.inFlight == g.opt.AtOnce {
		return nil
	}
	var all []*call[T, R]
	for len(g.waiting) > 0 && len(all) < g.opt.Most {
		if c := g.waiting[0]; !c.left {
			all = append(all, c)
		}
		g.waiting = g.waiting[1:]
	}
	if len(all) > 0 {
		g.inFlight++
	}
	return all
}

// work makes operations until nobody waits.
func (g *Groups[T, R]) work(ctx context.Context, all []*call[T, R]) {
	for len(all) > 0 {
		g.operate(ctx, all)
		g.mu.Lock()
		g.inFlight--
		all = g.begin()
		g.mu.Unlock()
	}
}

// operate makes one operation and answers its calls.
func (g *Groups[T, R]) operate(ctx context.Context, all []*call[T, R]) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Timeout)
	defer cancel()
	items := make([]T, len(all))
	for i, c := range all {
		items[i] = c.item
	}
	answers, err := g.run(ctx, items)
	for i, c := range all {
		if c.err = err; err == nil {
			c.answer = answers[i]
		}
		close(c.done)
	}
}

// Keyed are Groups for each of any number of keys. Those of a key exist while it
// has calls.
type Keyed[K comparable, T, R any] struct {
	opt Options
	run func(ctx context.Context, key K, all []T) ([]R, error)

	mu   sync.Mutex
	keys map[K]*keyed[T, R]
}

type keyed[T, R any] struct {
	*Groups[T, R]
	calls int
}

// NewKeyed makes Groups by key.
func NewKeyed[K comparable, T, R any](o Options, run func(ctx context.Context, key K, all []T) ([]R, error)) *Keyed[K, T, R] {
	return &Keyed[K, T, R]{opt: o, run: run, keys: map[K]*keyed[T, R]{}}
}

// Do is one call for a key; see Groups.Do.
func (k *Keyed[K, T, R]) Do(ctx context.Context, key K, item T) (R, error) {
	k.mu.Lock()
	g := k.keys[key]
	if g == nil {
		g = &keyed[T, R]{Groups: New(k.opt, func(ctx context.Context, all []T) ([]R, error) { return k.run(ctx, key, all) })}
		k.keys[key] = g
	}
	g.calls++
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if g.calls--; g.calls == 0 {
			delete(k.keys, key)
		}
	}()
	return g.Do(ctx, item)
}

// Matched is a Run that is one update with a condition for all items, each of them
// once, and where that matched fewer, one look at which ones it holds for; the
// answer is whether it holds. An item for
// which the condition no longer holds at the look is no: it has ended meanwhile.
// One for which it holds only since the update is yes, so the condition must be
// one that comes true by a write that does what the update does.
func Matched[T comparable](ctx context.Context, all []T,
	update func(ctx context.Context, all []T) (matched int, err error),
	which func(ctx context.Context, all []T) ([]T, error),
) ([]bool, error) {
	calls := all
	all = once(all)
	matched, err := update(ctx, all)
	if err != nil {
		return nil, err
	}
	hold := all
	switch {
	case matched == len(all):
	case len(all) == 1:
		hold = nil // there is nothing to tell apart
	default:
		if hold, err = which(ctx, all); err != nil {
			return nil, err
		}
	}
	yes := make(map[T]bool, len(hold))
	for _, t := range hold {
		yes[t] = true
	}
	answers := make([]bool, len(calls))
	for i, t := range calls {
		answers[i] = yes[t]
	}
	return answers, nil
}

// once leaves out what stands in all a second time.
func once[T comparable](all []T) []T {
	seen := make(map[T]bool, len(all))
	out := make([]T, 0, len(all))
	for _, t := range all {
		if !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	return out
}
