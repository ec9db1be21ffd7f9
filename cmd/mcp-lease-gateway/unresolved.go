package main

import (
	"context"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// noted is the resolver of one consumer. Whoever has no definition asks for no
// lease, so the engine does not see that somebody was refused; it is told here.
// For whom a lease was wanted is known up to the project.
type noted struct {
	definition.Resolver
	typ    string // the consumer's
	refuse func(lease.Request, time.Duration)
}

// Resolve resolves, and tells of what cannot be.
func (n noted) Resolve(ctx context.Context, tenant, project, name string) (*definition.Definition, error) {
	began := time.Now()
	d, err := n.Resolver.Resolve(ctx, tenant, project, name)
	if err != nil && ctx.Err() == nil { // who has left was not refused
		n.refuse(lease.Request{Type: n.typ, Tenant: tenant, Project: project, Definition: &definition.Definition{Name: name}}, time.Since(began))
	}
	return d, err
}
