package boltstore

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

func openTest(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
	return s
}

func TestSmoke(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "d", "l.db"))
	ctx := t.Context()
	if err := s.CreateHolder(ctx, lease.Holder{Token: "a", Resource: "r", TTL: time.Second, Payload: lease.Payload{"key": "k"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureCounter(ctx, "r|user|x", "g"); err != nil {
		t.Fatal(err)
	}
	g, n, ok, err := s.Increment(ctx, "r|user|x", 1)
	if g != "g" || n != 1 || !ok || err != nil {
		t.Fatal(g, n, ok, err)
	}
	ok, err = s.PushLast(ctx, "a", lease.Booking{ID: "r|user|x", Level: "user", Gen: g}, nil, time.Minute, time.Minute)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := s.Touch(ctx, "a", ""); !ok || err != nil {
		t.Fatal(ok, err)
	}
	h, ok, err := s.MarkHolder(ctx, "a", lease.Mark{Cause: lease.Cause{Reason: "idle"}})
	t.Log(h, ok, err)
	if ok, err := s.Touch(ctx, "a", ""); ok || err != nil {
		t.Fatal(ok, err)
	}
	start := time.Now()
	for range 100 {
		s.Increment(ctx, "r|user|x", 1000)
	}
	t.Log(time.Since(start) / 100)
}
