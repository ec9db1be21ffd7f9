package definition

import (
	"context"
	"errors"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// Cascaded resolves definitions through the four layers of a document cascade.
type Cascaded struct {
	docs  *document.Cascade
	lim   Limits
	vars  *strictyaml.Variables
	cache *document.Cache[*Merged]
}

// NewCascaded makes a resolver whose cache follows the changes that docs tells
// of. Vars is what ${…} means in system and bundled documents.
func NewCascaded(docs *document.Cascade, lim Limits, vars *strictyaml.Variables) *Cascaded {
	c := &Cascaded{docs: docs, lim: lim, vars: vars}
	c.cache = document.NewCache(docs, func(ctx context.Context, tenant, project, path string) (*Merged, error) {
		name, _ := NameOf(path) // Resolve made the path
		return c.Fresh(ctx, tenant, project, name)
	})
	return c
}

// Resolve returns the cached merged definition. An *Error says what is wrong.
func (c *Cascaded) Resolve(ctx context.Context, tenant, project, name string) (*Definition, error) {
	if !ValidName(name) {
		return nil, invalidName(name)
	}
	m, err := c.cache.Get(ctx, tenant, project, PathOf(name))
	if err != nil {
		var e *Error
		if !errors.As(err, &e) { // the caller's context has ended
			err = &Error{Lease: name, What: "the load was not waited for", Transient: true, Err: err}
		}
		return nil, err
	}
	return &m.Definition, nil
}

// Fresh reads past the cache, for operators.
func (c *Cascaded) Fresh(ctx context.Context, tenant, project, name string) (*Merged, error) {
	if !ValidName(name) {
		return nil, invalidName(name)
	}
	docs, err := c.docs.Layers(ctx, tenant, project, PathOf(name))
	if err != nil {
		e := &Error{Lease: name, What: "a layer cannot be read", Transient: !document.Lasting(err), Err: err}
		var re *document.ReadError
		if errors.As(err, &re) {
			e.Layer = re.Layer
		}
		return nil, e
	}
	if len(docs) == 0 {
		return nil, &Error{Lease: name, Unknown: true, What: "no layer defines it"}
	}
	layers := make([]found, 0, len(docs))
	for _, f := range docs {
		l, problems := parseLayer(name, f, c.lim, c.vars)
		if len(problems) > 0 {
			p := problems[0]
			return nil, &Error{Lease: name, Layer: f.Layer, Where: p.Where(), Field: p.Key, What: p.What, Reason: p.Reason}
		}
		layers = append(layers, found{f.Layer, l})
	}
	return merge(name, layers, c.lim), nil
}

// A name that no document can have is not shown to clients: it may be anything.
func invalidName(name string) *Error {
	shown := name
	if len(shown) > 64 || !ValidName(shown) {
		shown = "?"
	}
	return &Error{Lease: shown, Unknown: true, What: NameRule}
}

var _ Resolver = (*Cascaded)(nil)
