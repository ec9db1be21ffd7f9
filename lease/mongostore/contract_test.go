//go:build external

package mongostore

import (
	"context"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
)

func openTest(t testing.TB) *Store {
	t.Helper()
	uri, name := mongo.Database(t)
	s, err := Open(t.Context(), Options{URI: uri, Database: name})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) lease.Store { return openTest(t) })
}

func TestACounterInConstantUseIsMended(t *testing.T) {
	s := openTest(t)
	defer func() { _ = s.Close(context.WithoutCancel(t.Context())) }()
	storetest.RunBusy(t, s, 3*time.Second)
}

func BenchmarkStore(b *testing.B) { storetest.Benchmark(b, openTest(b)) }
