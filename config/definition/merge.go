package definition

import (
	"strconv"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/document"
)

// owner says which layers may set a field (spec §2). Bundled and system may set
// every field.
type owner int

const (
	operators owner = iota // bundled and system: what all tenants share
	tenants                // and a tenant
	everyone               // and a project
)

func (o owner) allows(l document.Layer) bool {
	switch l {
	case document.Project:
		return o == everyone
	case document.Tenant:
		return o != operators
	}
	return true
}

// levelOwners are the owners of the four caps.
var levelOwners = map[Level]owner{Global: operators, Tenant: tenants, Project: everyone, User: everyone}

// found is a layer with where it comes from.
type found struct {
	at document.Layer
	layer
}

// merge takes each field from the most specific layer that sets it and may.
// Layers come least specific first and have been validated.
func merge(name string, layers []found, lim Limits) *Merged {
	m := &Merged{Definition: Definition{Name: name, Caps: map[Level]Cap{}}}

	resource := pick(m, "resource", tenants, layers, func(l layer) *string { return l.Resource }, name, func(s string) string { return s })
	m.Resource = resource.value
	for i := len(Levels) - 1; i >= 0; i-- { // wide to narrow, as people write them
		level := Levels[i]
		if c := pick(m, "levels."+string(level), levelOwners[level], layers, func(l layer) *int { return l.cap(level) }, 0, strconv.Itoa); c.value > 0 {
			m.Caps[level] = Cap(c.value)
		}
	}
	ttl := pick(m, "ttlSeconds", everyone, layers, func(l layer) *int { return l.TTL }, int(min(DefaultTTL, lim.MaxTTL)/time.Second), strconv.Itoa)
	m.TTL = time.Duration(ttl.value) * time.Second
	wait := pick(m, "waitMs", everyone, layers, func(l layer) *int { return l.Wait }, int(min(DefaultWait, lim.MaxWait)/time.Millisecond), strconv.Itoa)
	m.Wait = time.Duration(wait.value) * time.Millisecond

	m.Label = label(m.Resource, resource.from, layers)
	return m
}

func (l layer) cap(level Level) *int {
	switch level {
	case Global:
		return l.Global
	case Tenant:
		return l.Tenant
	case Project:
		return l.Project
	}
	return l.User
}

// label is what metrics may show: a name that an operator wrote. A tenant could
// make any number of others.
func label(resource string, from document.Layer, layers []found) string {
	if from == "" { // it is the lease's name: who says that there is such a lease?
		from = layers[0].at // the least specific one
	}
	if from.Trusted() {
		return resource
	}
	return "other"
}

type picked[T any] struct {
	value T
	from  document.Layer // "" for the default
}

// pick finds one field's value and records in m where it and the others come
// from.
func pick[T any](m *Merged, name string, o owner, layers []found, get func(layer) *T, otherwise T, text func(T) string) picked[T] {
	p := picked[T]{value: otherwise}
	for _, l := range layers {
		if v := get(l.layer); v != nil && o.allows(l.at) {
			p = picked[T]{*v, l.at}
		}
	}
	field := Field{Name: name, Layer: p.from}
	for _, l := range layers {
		v := get(l.layer)
		switch {
		case v == nil || l.at == p.from:
		case !o.allows(l.at):
			field.Ignored = append(field.Ignored, Ignored{l.at, text(*v), "a " + string(l.at) + " may not set it"})
		default:
			field.Ignored = append(field.Ignored, Ignored{l.at, text(*v), "overridden by " + string(p.from)})
		}
	}
	if p.from != "" || text(otherwise) != "0" { // a cap that nobody sets has no value
		field.Value = text(p.value)
	}
	if field.Value != "" || len(field.Ignored) > 0 {
		m.Fields = append(m.Fields, field)
	}
	return p
}
