package boltstore

import (
	"path/filepath"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) lease.Store {
		return openTest(t, filepath.Join(t.TempDir(), "leases.db"))
	})
}
