// Package groups lets calls that ask a store for the same thing, each for its own
// document, go there together: while some are under way, those that arrive wait,
// and the next operation is for all of them.
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
type Groups[T comparable] struct {
	opt Options
	run func(ctx context.Context, all []T) (yes map[T]bool, err error)

	mu       sync.Mutex
	inFlight int
	waiting  []*call[T] // in the order of their arrival
}

// Options bound the operations.
type Options struct {
	AtOnce  int           // operations under way at the same time
	Most    int           // calls in one operation
	Timeout time.Duration // of an operation, which outlives callers that leave
}

type call[T comparable] struct {
	item T
	left bool // its caller waits no more
	done chan struct{}
	yes  bool
	err  error
}

// New makes Groups. Run asks the store for all items, each of them once, and says
// which the answer is yes for.
func New[T comparable](o Options, run func(ctx context.Context, all []T) (yes map[T]bool, err error)) *Groups[T] {
	return &Groups[T]{opt: o, run: run}
}

// Do is one call. An error leaves open whether the item was asked for. A caller
// whose context ends is not waited with; its call may still be made.
func (g *Groups[T]) Do(ctx context.Context, item T) (bool, error) {
	c := &call[T]{item: item, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	// The first one begins an operation in its own goroutine, the others find one
	// under way.
	own := g.begin()
	g.mu.Unlock()
	if own != nil {
		go g.work(context.WithoutCancel(ctx), own)
	}
	select {
	case <-c.done:
		return c.yes, c.err
	case <-ctx.Done():
		g.mu.Lock()
		c.left = true
		g.mu.Unlock()
		return false, ctx.Err()
	}
}

// begin takes those who wait for an operation, where one more may begin; nil
// otherwise. Whoever arrives from now on is not among them.
func (g *Groups[T]) begin() []*call[T] {
	if g.inFlight == g.opt.AtOnce {
		return nil
	}
	var all []*call[T]
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
func (g *Groups[T]) work(ctx context.Context, all []*call[T]) {
	for len(all) > 0 {
		g.operate(ctx, all)
		g.mu.Lock()
		g.inFlight--
		all = g.begin()
		g.mu.Unlock()
	}
}

// operate makes one operation and answers its calls.
func (g *Groups[T]) operate(ctx context.Context, all []*call[T]) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Timeout)
	defer cancel()
	items := make([]T, 0, len(all))
	asked := make(map[T]bool, len(all))
	for _, c := range all {
		if !asked[c.item] {
			asked[c.item] = true
			items = append(items, c.item)
		}
	}
	yes, err := g.run(ctx, items)
	for _, c := range all {
		c.yes, c.err = yes[c.item] && err == nil, err
		close(c.done)
	}
}

// Matched is a Run that is one update with a condition, and where that matched
// fewer than were asked for, one look at which ones it holds for. An item for
// which the condition no longer holds at the look is no: it has ended meanwhile.
// One for which it holds only since the update is yes, so the condition must be
// one that comes true by a write that does what the update does.
func Matched[T comparable](ctx context.Context, all []T,
	update func(ctx context.Context, all []T) (matched int, err error),
	which func(ctx context.Context, all []T) ([]T, error),
) (map[T]bool, error) {
	matched, err := update(ctx, all)
	if err != nil {
		return nil, err
	}
	hold := all
	switch {
	case matched == len(all):
	case len(all) == 1:
		return nil, nil // there is nothing to tell apart
	default:
		if hold, err = which(ctx, all); err != nil {
			return nil, err
		}
	}
	yes := make(map[T]bool, len(hold))
	for _, t := range hold {
		yes[t] = true
	}
	return yes, nil
}
