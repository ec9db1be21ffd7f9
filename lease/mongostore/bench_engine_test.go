//go:build external

package mongostore

import (
	"testing"

	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// The engine on MongoDB, beside the store's bare conditional increment.
func BenchmarkEngine(b *testing.B) { storetest.BenchmarkEngine(b, openTest(b)) }
