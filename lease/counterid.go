package lease

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Scope is whom a counter belongs to: nothing on the global level, the tenant
// alone on the tenant level, tenant and project or tenant and user on the
// others (a user's scope spans projects, spec §4).
type Scope struct {
	Tenant  string
	Project string
	User    string
}

// String shows a scope to people: "*", "acme", "acme/thesis" or "acme/u42".
func (s Scope) String() string {
	switch {
	case s.Tenant == "":
		return globalScope
	case s.User != "":
		return s.Tenant + "/" + s.User
	case s.Project != "":
		return s.Tenant + "/" + s.Project
	}
	return s.Tenant
}

const globalScope = "*"

// errNoScope says that a capped level lacks the scope value that it counts by.
var errNoScope = errors.New("the scope of this level is not known")

// NewCounterID makes the id of the counter of a resource and level that s falls
// under (spec §4). Every part is percent-encoded outside [A-Za-z0-9_.@-] before
// the parts are joined, so two scopes never share an id: tenant "a/b" is not
// tenant "a", project "b". It fails where s lacks what the level counts by.
func NewCounterID(resource string, level definition.Level, s Scope) (CounterID, error) {
	if resource == "" {
		return "", errors.New("a counter needs a resource")
	}
	var scope string
	switch level {
	case definition.Global:
		scope = globalScope
	case definition.Tenant:
		if s.Tenant == "" {
			return "", errNoScope
		}
		scope = definition.EncodePart(s.Tenant)
	case definition.Project:
		if s.Tenant == "" || s.Project == "" {
			return "", errNoScope
		}
		scope = definition.EncodePart(s.Tenant) + "/" + definition.EncodePart(s.Project)
	case definition.User:
		if s.Tenant == "" || s.User == "" {
			return "", errNoScope
		}
		scope = definition.EncodePart(s.Tenant) + "/" + definition.EncodePart(s.User)
	default:
		return "", fmt.Errorf("%q is not a level", level)
	}
	return CounterID(EncodeResource(resource) + "|" + string(level) + "|" + scope), nil
}

// Parse takes a counter id apart again. It refuses what NewCounterID would not
// have made.
func (id CounterID) Parse() (resource string, level definition.Level, s Scope, err error) {
	bad := func(what string) (string, definition.Level, Scope, error) {
		return "", "", Scope{}, fmt.Errorf("counter id: %s", what)
	}
	parts := strings.Split(string(id), "|")
	if len(parts) != 3 {
		return bad("not <resource>|<level>|<scope>")
	}
	if resource, err = decodeResource(parts[0]); err != nil {
		return bad("resource: " + err.Error())
	}
	level = definition.Level(parts[1])
	names := strings.Split(parts[2], "/")
	decoded := make([]string, len(names))
	if level != definition.Global {
		for i, n := range names {
			if decoded[i], err = definition.DecodePart(n); err != nil {
				return bad("scope: " + err.Error())
			}
		}
	}
	switch {
	case level == definition.Global && parts[2] == globalScope:
	case level == definition.Tenant && len(names) == 1:
		s = Scope{Tenant: decoded[0]}
	case level == definition.Project && len(names) == 2:
		s = Scope{Tenant: decoded[0], Project: decoded[1]}
	case level == definition.User && len(names) == 2:
		s = Scope{Tenant: decoded[0], User: decoded[1]}
	default:
		return bad("the scope does not fit the level")
	}
	return resource, level, s, nil
}

// EncodeResource gives a resource the form that it has in counter ids. The
// resource of an inline definition is encoded in its parts already and stays as
// it is; in any other one a colon is encoded, so that no name that somebody
// writes down can reach an inline counter.
func EncodeResource(resource string) string {
	if inlineResource(resource) {
		return resource
	}
	return definition.EncodePart(resource)
}

// inlineResource reports whether resource is one that an inline definition
// gets: definition.InlinePrefix and the encoded tenant/project/name.
func inlineResource(resource string) bool {
	rest, ok := strings.CutPrefix(resource, definition.InlinePrefix)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "/")
	for _, p := range parts {
		if _, err := definition.DecodePart(p); err != nil {
			return false
		}
	}
	return len(parts) == 3
}

func decodeResource(s string) (string, error) {
	if inlineResource(s) {
		return s, nil
	}
	return definition.DecodePart(s)
}
