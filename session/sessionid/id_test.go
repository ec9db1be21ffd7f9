package sessionid

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

func box(t testing.TB) *seal.Box {
	ring, err := seal.NewRing(bytes.Repeat([]byte{7}, seal.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return ring.Box("session")
}

func TestSealedIDs(t *testing.T) {
	in := Sealed{Number: NewNumber(), Owner: Owner{1}, Endpoint: Endpoint{2}, Opened: time.Unix(1_800_000_000, 0), InPayload: true, Version: "2025-11-25", Pod: "pod-a",
		Lease: lease.Ref{Token: "t", Type: "mcp", Label: "browser", TTL: 90 * time.Second, PodBound: true}, Upstream: "upstream"}
	b := box(t)
	id := in.Seal(b, Route("acme", "thesis", "browser"))
	out, err := Open(b, id, Route("acme", "thesis", "browser"))
	if err != nil || out != in {
		t.Errorf("%v\n got %+v\nwant %+v", err, out, in)
	}
	for _, other := range [][]byte{Route("acme", "thesis", "other"), Route("acme", "other", "browser"), Route("other", "thesis", "browser")} {
		if _, err := Open(b, id, other); err == nil {
			t.Errorf("opened on the route %s", other)
		}
	}
	if strings.Trim(string(id), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		t.Error("an id that is not visible ASCII")
	}
}

func TestLogsHaveTheBeginningOfASessionsNumber(t *testing.T) {
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "session", Number{0xab, 1, 2, 3, 4, 5})
	if !strings.Contains(log.String(), `"session":"ab010203"`) {
		t.Error(log.String())
	}
}

// FuzzOpenID feeds what a client may send, and plain texts that a key of this
// gateway has sealed: neither may crash the reading.
func FuzzOpenID(f *testing.F) {
	b := box(f)
	valid := Sealed{Number: Number{1}, Lease: lease.Ref{Token: "t"}, Upstream: "u"}
	f.Add(string(valid.Seal(b, nil)), []byte{1})
	f.Add("", []byte{})
	f.Add("AAAA", []byte{1, 255, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(_ *testing.T, id string, plain []byte) {
		_, _ = Open(b, ID(id), nil)
		_, _ = Open(b, ID(b.Seal(plain, nil)), nil)
		_, _ = Open(b, ID(b.Seal(append(make([]byte, 41), plain...), nil)), nil)
		_, _ = Open(b, ID(b.Seal(append(append([]byte{sealedForm}, make([]byte, 40)...), plain...), nil)), nil)
	})
}
