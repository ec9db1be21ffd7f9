package definition

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
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
	merging := merging{m, layers, lockedBy(layers)}

	resource := pick(merging, "resource", tenants, unchanged[string], func(l layer) *string { return l.Resource }, name, func(s string) string { return s })
	m.Resource = resource.value
	for i := len(Levels) - 1; i >= 0; i-- { // wide to narrow, as people write them
		level := Levels[i]
		if c := pick(merging, "levels."+string(level), levelOwners[level], lowered, func(l layer) *int { return l.cap(level) }, 0, strconv.Itoa); c.value > 0 {
			m.Caps[level] = Cap(c.value)
		}
	}
	ttl := pick(merging, "ttlSeconds", everyone, unchanged[int], func(l layer) *int { return l.TTL }, int(min(DefaultTTL, lim.MaxTTL)/time.Second), strconv.Itoa)
	m.TTL = time.Duration(ttl.value) * time.Second
	wait := pick(merging, "waitMs", everyone, unchanged[int], func(l layer) *int { return l.Wait }, int(min(DefaultWait, lim.MaxWait)/time.Millisecond), strconv.Itoa)
	m.Wait = time.Duration(wait.value) * time.Millisecond
	pick(merging, "locked", operators, unchanged[[]string], func(l layer) *[]string { return l.Locked }, nil, func(names []string) string { return strings.Join(names, ", ") })

	m.Label = label(m.Resource, resource.from, layers)
	return m
}

// lockedBy lists the fields that tenants and projects may not set, or only lower.
// A definition whose operators set levels.global, or lock anything, shares a
// resource among tenants: then a tenant must neither leave that resource for
// another, nor take more of it than the operators give it.
func lockedBy(layers []found) map[string]bool {
	var global *int
	var named *[]string
	for _, l := range layers {
		if l.at.Trusted() {
			global, named = cmp.Or(l.Global, global), cmp.Or(l.Locked, named)
		}
	}
	locked := map[string]bool{}
	if global != nil || named != nil && len(*named) > 0 {
		locked["resource"], locked["levels."+string(Tenant)] = true, true
	}
	if named != nil {
		for _, name := range *named {
			if level := Level(name); slices.Contains(Levels[:], level) {
				name = "levels." + name
			}
			locked[name] = true
		}
	}
	return locked
}

// unchanged and lowered say why a layer of a tenant or project may not set a
// locked field to v, where the operators have set it to set; "" where it may.
func unchanged[T any](at document.Layer, _ *T, _ T) string {
	return "a " + string(at) + " may not set it: the operators have locked it"
}

func lowered(at document.Layer, set *int, v int) string {
	if set == nil || v <= *set {
		return ""
	}
	return "a " + string(at) + " may only lower it: the operators' cap is " + strconv.Itoa(*set)
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

// merging is what the fields of one merge have in common.
type merging struct {
	m      *Merged
	layers []found
	locked map[string]bool
}

// pick finds one field's value and records in m where it and the others come
// from.
func pick[T any](m merging, name string, o owner, whereLocked func(at document.Layer, set *T, v T) string, get func(layer) *T, otherwise T, text func(T) string) picked[T] {
	p := picked[T]{value: otherwise}
	var set *T // by the operators
	refused := map[document.Layer]string{}
	for _, l := range m.layers {
		v := get(l.layer)
		if v == nil {
			continue
		}
		if !o.allows(l.at) {
			refused[l.at] = "a " + string(l.at) + " may not set it"
		} else if l.at.Trusted() {
			set = v
		} else if m.locked[name] {
			if why := whereLocked(l.at, set, *v); why != "" {
				refused[l.at] = why
			}
		}
		if refused[l.at] == "" {
			p = picked[T]{*v, l.at}
		}
	}
	field := Field{Name: name, Layer: p.from}
	for _, l := range m.layers {
		v := get(l.layer)
		if v == nil || l.at == p.from {
			continue
		}
		field.Ignored = append(field.Ignored, Ignored{l.at, text(*v), cmp.Or(refused[l.at], overridden+string(p.from))})
	}
	if p.from != "" || text(otherwise) != "0" && text(otherwise) != "" { // a cap that nobody sets has no value
		field.Value = text(p.value)
	}
	if field.Value != "" || len(field.Ignored) > 0 {
		m.m.Fields = append(m.m.Fields, field)
	}
	return p
}
