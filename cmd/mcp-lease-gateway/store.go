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
	// A nil *Store in a lease.Store would not be nil, so errors return by hand.
	if c.Embedded() {
		s, err := boltstore.Open(ctx, c.Store.Path)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	s, err := mongostore.Open(ctx, mongostore.Options{URI: c.Store.URI, Database: c.Store.Database})
	if err != nil {
		return nil, err
	}
	return s, nil
}
