package lease

import (
	"context"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Occupancies lists counters in id order with the number of holders that book
// each: the number to which a reconcile pass corrects (spec §9). A difference is
// shown, not hidden.
func (m *Manager) Occupancies(ctx context.Context, f OccupancyFilter) ([]Occupancy, error) {
	all, err := m.occupancies(ctx, f)
	if err != nil {
		return nil, storeGone(err)
	}
	return all, nil
}

func (m *Manager) occupancies(ctx context.Context, f OccupancyFilter) ([]Occupancy, error) {
	resource := f.Resource
	if resource != "" {
		resource = EncodeResource(resource)
	}
	var all []Occupancy
	after := f.After
	for {
		page, err := m.store.ListCounters(ctx, resource, after, reconcilePage)
		if err != nil || len(page) == 0 {
			return all, err
		}
		after = page[len(page)-1].ID
		last := len(page) < reconcilePage
		if f.Tenant != "" {
			page = slices.DeleteFunc(page, func(c CounterAge) bool {
				_, _, s, err := c.ID.Parse()
				return err != nil || s.Tenant != f.Tenant
			})
			after = passOver(after, f.Tenant)
		}
		if f.Limit > 0 {
			page = page[:min(len(page), f.Limit-len(all))]
		}
		booked := map[CounterID]int{}
		if len(page) > 0 {
			if booked, err = m.store.Booked(ctx, counterIDs(page)); err != nil {
				return nil, err
			}
		}
		for _, c := range page {
			o := Occupancy{Counter: c.Counter, Booked: booked[c.ID], Age: c.Age}
			if res, level, scope, err := c.ID.Parse(); err == nil {
				o.Resource, o.Level, o.Scope = res, level, scope.String()
			} else {
				o.Resource = string(c.ID) // not ours; show it rather than hide it
			}
			all = append(all, o)
		}
		if last || f.Limit > 0 && len(all) == f.Limit {
			return all, nil
		}
	}
}

// passOver returns an id, at or behind last, with no counter of the tenant
// between the two: a tenant's view does not read what all others have.
func passOver(last CounterID, tenant string) CounterID {
	resource, rest, _ := strings.Cut(string(last), "|")
	level, _, found := strings.Cut(rest, "|")
	if !found {
		return last // not ours
	}
	name := definition.EncodePart(tenant)
	if inlineResource(resource) {
		switch own := definition.InlinePrefix + name + "/"; {
		case resource < own && !strings.HasPrefix(resource, own):
			return below(own)
		case !strings.HasPrefix(resource, own):
			return CounterID(definition.InlinePrefix + "~") // behind all of them
		}
	}
	// In the order of their ids; global belongs to no tenant.
	for _, l := range []definition.Level{definition.Project, definition.Tenant, definition.User} {
		want := resource + "|" + string(l) + "|" + name
		if l != definition.Tenant {
			want += "/"
		}
		switch {
		case string(last) < want:
			return below(want)
		case level == string(l) && l != definition.Tenant && strings.HasPrefix(string(last), want):
			return last // in the middle of the tenant's
		}
	}
	return CounterID(resource + "}") // } is the character behind |
}

// below is an id before prefix with no counter between the two: ~ is behind
// every character of an id.
func below(prefix string) CounterID {
	end := len(prefix) - 1
	return CounterID(prefix[:end] + string(prefix[end]-1) + "~")
}
