package view

import (
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
