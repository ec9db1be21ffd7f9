//go:build external

package main

import (
	"testing"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
)

func TestTenThousandLeasesOfAPodAreTakenFromMongoDB(t *testing.T) {
	b := newDeskBench(t, "mongodb")
	b.conf.Store.URI, b.conf.Store.Database = mongo.Database(t)
	revokeMany(t, b, func() lease.Store { return opened(t, b.conf) })
}
