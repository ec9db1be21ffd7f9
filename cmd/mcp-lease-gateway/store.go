package main

import (
	"context"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/boltstore"
	"github.com/vancetope/mcp-lease-gateway/lease/mongostore"
)

// openStore opens the lease store that gateway.yaml names. A MongoDB that does
// not answer yet is no error: its verbs fail until it does.
func openStore(ctx context.Context, c *config.Gateway) (lease.Store, error) {
	if c.Embedded() {
		return boltstore.Open(ctx, c.Store.Path)
	}
	return mongostore.Open(ctx, mongostore.Options{URI: c.Store.URI, Database: c.Store.Database})
}
