package lease_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

func TestCounterIDs(t *testing.T) {
	full := lease.Scope{Tenant: "acme", Project: "thesis", User: "u42"}
	for _, tc := range []struct {
		says     string
		resource string
		level    definition.Level
		scope    lease.Scope
		want     lease.CounterID
	}{
		{"the global level has one counter", "tex2pdf", definition.Global, full, "tex2pdf|global|*"},
		{"a tenant's counter", "tex2pdf", definition.Tenant, full, "tex2pdf|tenant|acme"},
		{"a project's counter", "tex2pdf", definition.Project, full, "tex2pdf|project|acme/thesis"},
		{"a user's counter spans projects", "tex2pdf", definition.User, full, "tex2pdf|user|acme/u42"},
		{"what joins is encoded in parts", "a|b", definition.Project, lease.Scope{Tenant: "a/b", Project: "c|d%"}, "a%7Cb|project|a%2Fb/c%7Cd%25"},
		{"a star is a name and not the global scope", "r", definition.Tenant, lease.Scope{Tenant: "*"}, "r|tenant|%2A"},
		{"names of any script", "r", definition.Tenant, lease.Scope{Tenant: "ü"}, "r|tenant|%C3%BC"},
		{"an inline resource stays as it is", "mcp-inline:a%2Fb/p/browser", definition.Project, lease.Scope{Tenant: "a/b", Project: "p"}, "mcp-inline:a%2Fb/p/browser|project|a%2Fb/p"},
		{"what only looks inline does not reach one", "mcp-inline:x", definition.Global, full, "mcp-inline%3Ax|global|*"},
		{"no scope", "r", definition.User, lease.Scope{Tenant: "acme"}, ""},
		{"no tenant", "r", definition.User, lease.Scope{User: "u"}, ""},
		{"no resource", "", definition.Global, full, ""},
		{"no level", "r", "planet", full, ""},
	} {
		t.Run(tc.says, func(t *testing.T) {
			got, err := lease.NewCounterID(tc.resource, tc.level, tc.scope)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
	t.Run("what definitions call an inline resource is one", func(t *testing.T) {
		resource := definition.InlineResource("a/b|c", "ü %41", "browser")
		id, err := lease.NewCounterID(resource, definition.Global, full)
		if err != nil || id != lease.CounterID(resource+"|global|*") {
			t.Errorf("got %q, %v", id, err)
		}
		if r, _, _, err := id.Parse(); err != nil || r != resource {
			t.Errorf("it comes apart into %q, %v", r, err)
		}
	})
	for _, bad := range []lease.CounterID{
		"", "a", "a|global", "a|global|x", "a|global|*|", "|global|*", "a|tenant|", "a|tenant|a/b", "a|project|a", "a|user|a/b/c",
		"a|user|a/", "a|planet|x", "a|tenant|%2f", "a|tenant|%41", "a|tenant|%4", "a|tenant|ü", "a:b|global|*", "mcp-inline:a/b|global|*",
	} {
		if r, l, s, err := bad.Parse(); err == nil {
			t.Errorf("%q was taken apart into %q, %q, %v", bad, r, l, s)
		}
	}
}

// Two scopes never share an id, and an id comes apart into what made it.
func FuzzCounterID(f *testing.F) {
	f.Add("tex", "acme", "thesis", "u42", uint8(0))
	f.Add("mcp-inline:a/b/c", "a/b", "c|d", "%2F", uint8(1))
	f.Add("a|b", "*", "", "\xff\x00", uint8(2))
	f.Fuzz(func(t *testing.T, resource, tenant, project, user string, n uint8) {
		level := definition.Levels[int(n)%len(definition.Levels)]
		given := lease.Scope{Tenant: tenant, Project: project, User: user}
		id, err := lease.NewCounterID(resource, level, given)
		if err != nil {
			return
		}
		if strings.Count(string(id), "|") != 2 {
			t.Fatalf("%q has a separator in a part", id)
		}
		r, l, s, err := id.Parse()
		if err != nil {
			t.Fatalf("%q: %v", id, err)
		}
		want := map[definition.Level]lease.Scope{
			definition.Global:  {},
			definition.Tenant:  {Tenant: tenant},
			definition.Project: {Tenant: tenant, Project: project},
			definition.User:    {Tenant: tenant, User: user},
		}[level]
		if r != resource || l != level || s != want {
			t.Fatalf("%q came apart into %q, %q:\n%s", id, r, l, cmp.Diff(want, s))
		}
	})
}

// What is taken apart is what NewCounterID makes of the parts: one spelling
// for each counter.
func FuzzParseCounterID(f *testing.F) {
	for _, s := range []string{"tex|global|*", "a%2Fb|user|a/b", "mcp-inline:a/b/c|project|a/b", "a|tenant|%41", "||"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		resource, level, scope, err := lease.CounterID(text).Parse()
		if err != nil {
			return
		}
		if again, err := lease.NewCounterID(resource, level, scope); err != nil || string(again) != text {
			t.Fatalf("%q comes apart, and its parts make %q, %v", text, again, err)
		}
	})
}
