package document

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Cascade reads the layers of a scope from its sources and tells subscribers of
// changes. It is safe for concurrent use.
type Cascade struct {
	sources []Source

	mu          sync.Mutex
	subscribers map[int]func(Change)
	next        int
}

// NewCascade reads from sources, of which an earlier one wins over a later one.
// The bundled layer comes with it.
func NewCascade(sources ...Source) *Cascade {
	return &Cascade{sources: sources, subscribers: map[int]func(Change){}}
}

// scope is where a layer's documents stand.
type scope struct {
	layer           Layer
	tenant, project string
}

// scopes are the layers of a tenant and project, least specific first, each
// place once: the system tenant's defaults are the system layer and nothing
// else.
func scopes(tenant, project string) []scope {
	out := []scope{{System, SystemTenant, TenantProject}}
	if tenant != SystemTenant {
		out = append(out, scope{Tenant, tenant, TenantProject})
	}
	if project != TenantProject {
		out = append(out, scope{Project, tenant, project})
	}
	return out
}

// Layers returns the documents at path that a scope sees, least specific first;
// layers without one are left out. An error means that a layer could not be
// read, and then nothing is known of the others either: the missing one might
// hold what protects a resource.
func (c *Cascade) Layers(ctx context.Context, tenant, project, path string) ([]Found, error) {
	if err := (Key{tenant, project, path}).Validate(); err != nil {
		return nil, err
	}
	var out []Found
	if f, err := read(ctx, bundled{}, Bundled, Key{Path: path}); err == nil {
		out = append(out, f)
	} else if !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	for _, s := range scopes(tenant, project) {
		f, err := c.read(ctx, s.layer, Key{s.tenant, s.project, path})
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// First returns the most specific document at path that a scope sees, or
// ErrNotFound. A layer that cannot be read is an error, and not passed over.
func (c *Cascade) First(ctx context.Context, tenant, project, path string) (Found, error) {
	if err := (Key{tenant, project, path}).Validate(); err != nil {
		return Found{}, err
	}
	for _, s := range slices.Backward(scopes(tenant, project)) {
		f, err := c.read(ctx, s.layer, Key{s.tenant, s.project, path})
		if !errors.Is(err, ErrNotFound) {
			return f, err
		}
	}
	return read(ctx, bundled{}, Bundled, Key{Path: path})
}

func (c *Cascade) read(ctx context.Context, layer Layer, key Key) (Found, error) {
	for _, s := range c.sources {
		f, err := read(ctx, s, layer, key)
		if !errors.Is(err, ErrNotFound) {
			return f, err
		}
	}
	return Found{}, ErrNotFound
}

func read(ctx context.Context, s Source, layer Layer, key Key) (Found, error) {
	text, err := s.Read(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return Found{}, ErrNotFound
	}
	if err == nil && len(text) > MaxSize {
		err = ErrTooLong
	}
	if err != nil {
		return Found{}, &ReadError{Layer: layer, Name: s.Name(key), Err: err}
	}
	return Found{Layer: layer, Key: key, Name: s.Name(key), Text: text}, nil
}

// ErrTooLong says that a document is longer than MaxSize.
var ErrTooLong = fmt.Errorf("the document is longer than %d KiB", MaxSize>>10)

// ReadError says that a document, or a folder of documents, could not be read.
type ReadError struct {
	Layer Layer // empty where that is not known
	Name  string
	Err   error
}

func (e *ReadError) Error() string { return e.Name + ": " + e.Err.Error() }

func (e *ReadError) Unwrap() error { return e.Err }

// Lasting reports whether a document is there and cannot be read until somebody
// changes it, so that trying again is of no use.
func Lasting(err error) bool {
	var u unfit
	return errors.Is(err, ErrTooLong) || errors.As(err, &u)
}

// unfit says what is wrong with where a document stands.
type unfit string

func (u unfit) Error() string { return string(u) }

// Each visits every document of every source and the bundled ones, for `check`. The
// error joins what could not be read.
func (c *Cascade) Each(ctx context.Context, visit func(Found)) error {
	seen := map[Key]bool{}
	var failed []error
	for _, s := range append(slices.Clone(c.sources), bundled{}) {
		keys, err := s.List(ctx)
		if err != nil {
			failed = append(failed, err)
		}
		for _, key := range keys {
			if seen[key] {
				continue // an earlier source wins
			}
			f, err := read(ctx, s, layerOf(key), key)
			if errors.Is(err, ErrNotFound) {
				continue // gone in between
			}
			seen[key] = true
			if err != nil {
				failed = append(failed, err)
				continue
			}
			visit(f)
		}
	}
	return errors.Join(failed...)
}

// OperatorPaths are the paths of the bundled and system documents, each once. What
// cannot be listed is left out.
func (c *Cascade) OperatorPaths(ctx context.Context) []string {
	var paths []string
	for _, s := range append([]Source{bundled{}}, c.sources...) {
		keys, _ := s.List(ctx) // what can be listed comes beside the error
		for _, key := range keys {
			if layerOf(key).Trusted() {
				paths = append(paths, key.Path)
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func layerOf(key Key) Layer {
	switch {
	case key.Tenant == "":
		return Bundled
	case key.Project != TenantProject:
		return Project
	case key.Tenant == SystemTenant:
		return System
	}
	return Tenant
}

// Subscribe calls f for every change until cancel is called. F must not block.
func (c *Cascade) Subscribe(f func(Change)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.next
	c.next++
	c.subscribers[id] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subscribers, id)
	}
}

// Changed tells every subscriber, and returns when each has been told: whoever
// asks after that sees the new text.
func (c *Cascade) Changed(changes ...Change) {
	c.mu.Lock()
	var fs []func(Change)
	for _, f := range c.subscribers {
		fs = append(fs, f)
	}
	c.mu.Unlock()
	for _, ch := range changes {
		for _, f := range fs {
			f(ch)
		}
	}
}
