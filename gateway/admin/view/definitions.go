package view

import (
	"context"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Definition is a merged definition with the origin of each field.
type Definition struct {
	Name       string             `json:"name"`
	Resource   string             `json:"resource"`
	Levels     map[string]int     `json:"levels"` // the capped levels
	TTLSeconds int64              `json:"ttlSeconds"`
	WaitMs     int64              `json:"waitMs"`
	Noop       bool               `json:"noop"` // no caps: nothing is limited
	Fields     []definition.Field `json:"fields"`
	// Uncounted are the living leases of the tenant that the counters of these
	// levels do not know: they were taken when the definition had not the level, or
	// another resource.
	Uncounted []Uncounted `json:"uncounted,omitempty"`
}

// Uncounted is how many more than a level's cap may be in use for as long as these
// leases live.
type Uncounted struct {
	Level  string `json:"level"`
	Leases int    `json:"leases"`
}

// uncountedPages bounds what is read for Uncounted, in pages of 1000 holders.
const uncountedPages = 10

// uncounted compares the tenant's living leases of a name with its definition.
func (d *View) uncounted(ctx context.Context, tenant string, m *definition.Merged) ([]Uncounted, error) {
	if d.Engine == nil || m.Noop() {
		return nil, nil
	}
	n := map[definition.Level]int{}
	for after, page := lease.Token(""), 0; page < uncountedPages; page++ {
		hs, err := d.Engine.Find(ctx, lease.Filter{Tenant: tenant, After: after})
		if err != nil {
			return nil, Unreachable(err)
		}
		if len(hs) == 0 {
			break
		}
		after = hs[len(hs)-1].Token
		for _, h := range hs {
			if h.Lease != m.Name || h.State != lease.Held {
				continue
			}
			for l := range m.Caps {
				booked := h.Resource == m.Resource && slices.ContainsFunc(h.Levels, func(b lease.Booking) bool { return b.Level == l })
				if !booked {
					n[l]++
				}
			}
		}
	}
	var out []Uncounted
	for _, l := range definition.Levels {
		if n[l] > 0 {
			out = append(out, Uncounted{Level: string(l), Leases: n[l]})
		}
	}
	return out, nil
}

func definitionView(m *definition.Merged) Definition {
	v := Definition{Name: m.Name, Resource: m.Resource, Levels: map[string]int{}, TTLSeconds: seconds(m.TTL),
		WaitMs: m.Wait.Milliseconds(), Noop: m.Noop(), Fields: m.Fields}
	for l, c := range m.Caps {
		v.Levels[string(l)] = int(c)
	}
	if v.Fields == nil {
		v.Fields = []definition.Field{}
	}
	return v
}

// Event is something that happened in the last hour.
type Event struct {
	At       time.Time       `json:"at"`
	Kind     lease.EventKind `json:"kind"`
	Reason   string          `json:"reason,omitempty"`
	By       string          `json:"by,omitempty"`
	Type     string          `json:"type,omitempty"`
	Resource string          `json:"resource,omitempty"`
	Lease    string          `json:"lease,omitempty"`
	Level    string          `json:"level,omitempty"`
	Tenant   string          `json:"tenant,omitempty"`
	Project  string          `json:"project,omitempty"`
	User     string          `json:"user,omitempty"`
	Pod      string          `json:"pod,omitempty"`
	Token    string          `json:"token,omitempty"`
}

func eventView(s Scope, e lease.Event) Event {
	return Event{At: e.At, Kind: e.Kind, Reason: e.Reason, By: shownBy(s, e.By), Type: e.Type, Resource: e.Resource,
		Lease: e.Lease, Level: string(e.Level), Tenant: e.Tenant, Project: e.Project, User: e.User, Pod: string(e.Pod),
		Token: e.Token}
}
