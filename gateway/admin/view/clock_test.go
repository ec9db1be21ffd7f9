package view_test

import (
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/viewtest"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// TestAgesAreCountedByTheStoresClock looks from a machine whose clock is an hour
// behind the store's.
func TestAgesAreCountedByTheStoresClock(t *testing.T) {
	store := func() time.Time { return time.Now().Add(time.Hour) }
	e := viewtest.New(t, store)
	e.AddPod(lease.Pod{ID: "pod-a", BeatAt: store().Add(-10 * time.Second), BeatAge: 10 * time.Second})
	held := e.Hold(lease.Holder{Tenant: "acme", Project: "thesis", CreatedAt: store().Add(-90 * time.Second), LastSeenAt: store().Add(-30 * time.Second)},
		map[definition.Level]definition.Cap{definition.Project: 1})
	d := &view.View{Engine: e}
	h, err := d.Holder(t.Context(), view.Scope{}, string(held))
	if err != nil || h.AgeSeconds < 89 || h.AgeSeconds > 95 || h.IdleSeconds < 29 || h.IdleSeconds > 35 {
		t.Errorf("%v: age %d, idle %d", err, h.AgeSeconds, h.IdleSeconds)
	}
	page, err := d.Holders(t.Context(), view.Scope{}, view.HolderQuery{})
	if err != nil || len(page.Holders) != 1 || page.Holders[0].TTLLeftSeconds < 80 || page.Holders[0].TTLLeftSeconds > 91 {
		t.Errorf("%v: %+v", err, page)
	}
}
