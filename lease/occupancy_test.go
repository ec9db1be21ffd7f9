package lease_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// counted counts what a view reads.
type counted struct {
	lease.Store
	listed, booked int
}

func (c *counted) ListCounters(ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
	c.listed++
	return c.Store.ListCounters(ctx, resource, after, limit)
}

func (c *counted) Booked(ctx context.Context, ids []lease.CounterID) (map[lease.CounterID]int, error) {
	c.booked += len(ids)
	return c.Store.Booked(ctx, ids)
}

// TestATenantsOccupancyReadsLittleOfTheOthers compares a tenant's view with the
// whole one and bounds what it reads of 12,000 counters.
func TestATenantsOccupancyReadsLittleOfTheOthers(t *testing.T) {
	mem := storetest.NewMemory(time.Now)
	var all []storetest.CounterDoc
	add := func(resource string, level definition.Level, s lease.Scope) {
		id, err := lease.NewCounterID(resource, level, s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, storetest.CounterDoc{Counter: lease.Counter{ID: id, Count: 1, Cap: 2, Gen: "g", UpdatedAt: time.Now()}})
	}
	tenants := []string{"ac", "acme", "acme-x", "acme.x", "acme_", "acme2", "a b", "huge", "zeta"}
	for _, resource := range []string{"browser", "browser-2", "browser.x", "tex"} {
		add(resource, definition.Global, lease.Scope{})
		for _, tenant := range tenants {
			n := 3
			if tenant == "huge" || tenant == "acme-x" {
				n = 700
			}
			add(resource, definition.Tenant, lease.Scope{Tenant: tenant})
			for i := range n {
				add(resource, definition.Project, lease.Scope{Tenant: tenant, Project: fmt.Sprintf("p%03d", i)})
				add(resource, definition.User, lease.Scope{Tenant: tenant, User: fmt.Sprintf("u%03d", i)})
			}
		}
	}
	for _, tenant := range tenants {
		inline := definition.InlinePrefix + strings.ReplaceAll(tenant, " ", "%20") + "/p/x"
		add(inline, definition.Project, lease.Scope{Tenant: tenant, Project: "p"})
	}
	for i := range 700 {
		add(fmt.Sprintf("%sb%03d/p/x", definition.InlinePrefix, i), definition.Tenant, lease.Scope{Tenant: fmt.Sprintf("b%03d", i)})
	}
	mem.Put(nil, all)
	store := &counted{Store: mem}
	v := storetest.NewManager(t, store, "a")
	ids := func(f lease.OccupancyFilter) (got []lease.CounterID) {
		t.Helper()
		for {
			page, err := v.Occupancies(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range page {
				got = append(got, o.ID)
			}
			if f.Limit == 0 || len(page) < f.Limit {
				return got
			}
			f.After = page[len(page)-1].ID
		}
	}
	whole := ids(lease.OccupancyFilter{})
	if len(whole) != len(all) {
		t.Fatalf("%d of %d", len(whole), len(all))
	}
	for _, tenant := range append(tenants, "nobody", "A", "b350") {
		var want []lease.CounterID
		for _, id := range whole {
			if _, _, s, err := id.Parse(); err == nil && s.Tenant == tenant {
				want = append(want, id)
			}
		}
		store.listed, store.booked = 0, 0
		if diff := cmp.Diff(want, ids(lease.OccupancyFilter{Tenant: tenant})); diff != "" {
			t.Errorf("%s: %s", tenant, diff)
		}
		if store.booked != len(want) || store.listed > 30 {
			t.Errorf("%s: %d pages listed, %d counters counted for %d", tenant, store.listed, store.booked, len(want))
		}
		if diff := cmp.Diff(want, ids(lease.OccupancyFilter{Tenant: tenant, Limit: 201})); diff != "" {
			t.Errorf("%s in pages: %s", tenant, diff)
		}
	}
	if got := ids(lease.OccupancyFilter{Tenant: "acme", Resource: "browser"}); len(got) != 7 {
		t.Errorf("%v", got)
	}
}
