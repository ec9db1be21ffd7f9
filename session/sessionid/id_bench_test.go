package sessionid

import (
	"bytes"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// BenchmarkOpenID is what every request of a session pays to be told by its id.
func BenchmarkOpenID(b *testing.B) {
	ring, err := seal.NewRing(bytes.Repeat([]byte{7}, seal.KeySize))
	if err != nil {
		b.Fatal(err)
	}
	box, at := ring.Box("session"), Route("acme", "thesis", "browser")
	s := Sealed{Number: NewNumber(), Opened: time.Now(), Upstream: "an-upstream-session-of-usual-length", Version: "2025-11-25",
		Lease: lease.Ref{Token: "0123456789abcdef0123456789abcdef", Type: "mcp", Label: "browser", TTL: time.Minute}}
	id := s.Seal(box, at)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Open(box, id, at); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOwner(b *testing.B) {
	p := principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}
	b.ReportAllocs()
	for b.Loop() {
		OwnerOf(p)
	}
}
