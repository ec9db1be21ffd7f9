package document

import (
	"context"
	"sync"
	"time"
)

// Bounds of a Cache.
const (
	// MaxAge is how long a value is kept where no change was told of: the safety
	// net under the watches and what the pods tell each other.
	MaxAge = 10 * time.Second
	// maxEntries bounds a cache, whose keys callers choose.
	maxEntries = 10_000
	// loadTimeout is the longest load.
	loadTimeout = 10 * time.Second
)

// Cache keeps what was made of the documents at a path for a scope, until one of
// them changes. Errors are not kept. It is safe for concurrent use.
//
// A load that began before a change is neither kept after it nor given to
// anybody who asks after it: a change takes the entry out of the map, also one
// that is still being loaded, and only an entry that is still in the map when
// its load ends stays there. So a definition that lost a race with its own
// change cannot come back.
type Cache[V any] struct {
	load    func(ctx context.Context, tenant, project, path string) (V, error)
	mu      sync.Mutex
	entries map[Key]*entry[V]
}

type entry[V any] struct {
	done    chan struct{} // closed when value and err are set
	value   V
	err     error
	expires time.Time // set with done; before that the entry does not expire
	loaded  bool
}

// NewCache makes a cache that follows the changes that c tells of.
func NewCache[V any](c *Cascade, load func(ctx context.Context, tenant, project, path string) (V, error)) *Cache[V] {
	cache := &Cache[V]{load: load, entries: map[Key]*entry[V]{}}
	c.Subscribe(cache.drop)
	return cache
}

// Get returns the value for a scope's path. Callers that ask at the same time
// share one load, which does not end with the first of them.
func (c *Cache[V]) Get(ctx context.Context, tenant, project, path string) (V, error) {
	key := Key{tenant, project, path}
	c.mu.Lock()
	e, ok := c.entries[key]
	if !ok || e.loaded && !time.Now().Before(e.expires) {
		e = &entry[V]{done: make(chan struct{})}
		c.makeRoom()
		c.entries[key] = e
		go c.fill(context.WithoutCancel(ctx), key, e)
	}
	c.mu.Unlock()
	select {
	case <-e.done:
		return e.value, e.err
	case <-ctx.Done():
		var zero V
		return zero, ctx.Err()
	}
}

func (c *Cache[V]) fill(ctx context.Context, key Key, e *entry[V]) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	value, err := c.load(ctx, key.Tenant, key.Project, key.Path)
	c.mu.Lock()
	e.value, e.err = value, err
	e.loaded, e.expires = true, time.Now().Add(MaxAge)
	if err != nil && c.entries[key] == e {
		delete(c.entries, key)
	}
	c.mu.Unlock()
	close(e.done)
}

// makeRoom drops what has expired, and failing that anything: a cache miss is
// only slow. The caller holds the lock.
func (c *Cache[V]) makeRoom() {
	if len(c.entries) < maxEntries {
		return
	}
	now := time.Now()
	for k, e := range c.entries {
		if e.loaded && !now.Before(e.expires) {
			delete(c.entries, k)
		}
	}
	for k := range c.entries {
		if len(c.entries) < maxEntries {
			return
		}
		delete(c.entries, k)
	}
}

func (c *Cache[V]) drop(ch Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.entries {
		if ch.reaches(k.Tenant, k.Project, k.Path) {
			delete(c.entries, k)
		}
	}
}
