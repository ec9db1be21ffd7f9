package storetest_test

import (
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// The reference keeps the contract that it is the reference of.
func TestMemoryContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) lease.Store { return storetest.NewMemory(time.Now) })
}
