package lease_test

import (
	"path/filepath"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/lease/boltstore"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// The engine on the reference store: what the engine itself costs.
func BenchmarkEngineOnMemory(b *testing.B) { storetest.BenchmarkEngine(b, storetest.NewMemory(nil)) }

// The engine on the embedded store, where each write is on disk before its
// answer.
func BenchmarkEngineOnBolt(b *testing.B) {
	s, err := boltstore.Open(b.Context(), filepath.Join(b.TempDir(), "leases.db"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close(b.Context()) })
	storetest.BenchmarkEngine(b, s)
}
