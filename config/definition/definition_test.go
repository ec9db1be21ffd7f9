package definition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

var limits = Limits{MaxTTL: time.Hour, MaxWait: time.Minute}

// docs is a source of lease documents; the key is "tenant/project/lease".
type docs struct {
	mu    sync.Mutex
	texts map[string]string
	err   error // of acme's tenant layer
}

func (d *docs) Read(_ context.Context, k document.Key) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil && k.Tenant == "acme" && k.Project == document.TenantProject {
		return nil, d.err
	}
	name, _ := NameOf(k.Path)
	if t, ok := d.texts[k.Tenant+"/"+k.Project+"/"+name]; ok {
		return []byte(t), nil
	}
	return nil, document.ErrNotFound
}

func (d *docs) Name(k document.Key) string                   { return k.Tenant + "/" + k.Project + "/" + k.Path }
func (d *docs) List(context.Context) ([]document.Key, error) { return nil, nil }
func (d *docs) set(key, text string) *docs                   { d.texts[key] = text; return d }
func layers(system, tenant, project string) *docs {
	d := &docs{texts: map[string]string{}}
	for key, text := range map[string]string{"_vance/_tenant/browser": system, "acme/_tenant/browser": tenant, "acme/thesis/browser": project} {
		if text != "" {
			d.texts[key] = text
		}
	}
	return d
}

func resolver(d *docs) *Cascaded {
	return NewCascaded(document.NewCascade(d), limits, &strictyaml.Variables{LookupEnv: func(n string) (string, bool) { return "4", n == "CAP" }})
}

func TestMerge(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		system, tenant, project string
		want                    Definition
	}{
		{"an empty mapping takes the defaults and is a NOOP lease", "{}", "", "",
			Definition{Resource: "browser", Caps: map[Level]Cap{}, TTL: DefaultTTL, Wait: DefaultWait, Label: "browser"}},
		{"the most specific layer that may set a field wins, field by field",
			"{resource: sys, levels: {tenant: 8, project: 7, user: 6}, ttlSeconds: 50, waitMs: 5000}",
			"{resource: ten, levels: {tenant: 40, user: 3}, ttlSeconds: 40}",
			"{levels: {project: 2}, waitMs: 0}",
			Definition{Resource: "ten", Caps: map[Level]Cap{Tenant: 40, Project: 2, User: 3}, TTL: 40 * time.Second, Label: "other"}},
		{"under a global cap a tenant lowers its own cap and keeps the resource",
			"{resource: sys, levels: {global: 9, tenant: 3}}", "{resource: ten, levels: {tenant: 2, project: 50}}", "{levels: {user: 60}, ttlSeconds: 9}",
			Definition{Resource: "sys", Caps: map[Level]Cap{Global: 9, Tenant: 2, Project: 50, User: 60}, TTL: 9 * time.Second, Wait: DefaultWait, Label: "sys"}},
		{"under a global cap a tenant does not raise its own cap", "{levels: {global: 9, tenant: 3}}", "{levels: {tenant: 1000}}", "",
			Definition{Resource: "browser", Caps: map[Level]Cap{Global: 9, Tenant: 3}, TTL: DefaultTTL, Wait: DefaultWait, Label: "browser"}},
		{"under a global cap a tenant takes a cap where it had none", "{levels: {global: 9}}", "{levels: {tenant: 1000}}", "",
			Definition{Resource: "browser", Caps: map[Level]Cap{Global: 9, Tenant: 1000}, TTL: DefaultTTL, Wait: DefaultWait, Label: "browser"}},
		{"what the operators lock is theirs, with resource and the tenant's cap",
			"{locked: [project, user, ttlSeconds, waitMs], levels: {tenant: 5, project: 3}, ttlSeconds: 30}",
			"{resource: ten, levels: {tenant: 6, project: 2, user: 4}, ttlSeconds: 900, waitMs: 1}", "{levels: {project: 4}, waitMs: 2}",
			Definition{Resource: "browser", Caps: map[Level]Cap{Tenant: 5, Project: 2, User: 4}, TTL: 30 * time.Second, Wait: DefaultWait, Label: "browser"}},
		{"a tenant locks nothing", "{levels: {project: 3}}", "{locked: [project]}", "{levels: {project: 4}}",
			Definition{Resource: "browser", Caps: map[Level]Cap{Project: 4}, TTL: DefaultTTL, Wait: DefaultWait, Label: "browser"}},
		{"a tenant cannot set the global ceiling, and a project neither it, the tenant's, nor the resource",
			"{levels: {global: 9}}",
			"{levels: {global: 900}}",
			"{resource: mine, levels: {global: 99, tenant: 98, user: 1}}",
			Definition{Resource: "browser", Caps: map[Level]Cap{Global: 9, User: 1}, TTL: DefaultTTL, Wait: DefaultWait, Label: "browser"}},
		{"nor can they where no other layer does", "", "{levels: {global: 900}}", "{levels: {tenant: 98}}",
			Definition{Resource: "browser", Caps: map[Level]Cap{}, TTL: DefaultTTL, Wait: DefaultWait, Label: "other"}},
		{"a variable of the operator's", "{name: browser, levels: {global: ${CAP}}}", "", "",
			Definition{Resource: "browser", Caps: map[Level]Cap{Global: 4}, TTL: DefaultTTL, Wait: DefaultWait, Label: "browser"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Name = "browser"
			got, err := resolver(layers(tc.system, tc.tenant, tc.project)).Resolve(t.Context(), "acme", "thesis", "browser")
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(&tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("the bundled lease of TeX compiles is there without any document", func(t *testing.T) {
		got, err := resolver(layers("", "", "")).Resolve(t.Context(), "acme", "thesis", "tex")
		if err != nil {
			t.Fatal(err)
		}
		want := &Definition{Name: "tex", Resource: "tex2pdf", Caps: map[Level]Cap{Global: 6, Tenant: 3, Project: 1}, TTL: 120 * time.Second, Wait: 10 * time.Second, Label: "tex2pdf"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("each field shows where it comes from and what was ignored", func(t *testing.T) {
		got, err := resolver(layers("{levels: {global: 9, tenant: 3, project: 3}}", "{resource: ten, locked: [user], levels: {global: 90, tenant: 4, project: 2}}", "{resource: mine, levels: {project: 1}, ttlSeconds: 30}")).
			Fresh(t.Context(), "acme", "thesis", "browser")
		if err != nil {
			t.Fatal(err)
		}
		want := []Field{
			{Name: "resource", Value: "browser", Ignored: []Ignored{{document.Tenant, "ten", "a tenant may not set it: the operators have locked it"}, {document.Project, "mine", "a project may not set it"}}},
			{Name: "levels.global", Value: "9", Layer: document.System, Ignored: []Ignored{{document.Tenant, "90", "a tenant may not set it"}}},
			{Name: "levels.tenant", Value: "3", Layer: document.System, Ignored: []Ignored{{document.Tenant, "4", "a tenant may only lower it: the operators' cap is 3"}}},
			{Name: "levels.project", Value: "1", Layer: document.Project, Ignored: []Ignored{{document.System, "3", "overridden by project"}, {document.Tenant, "2", "overridden by project"}}},
			{Name: "ttlSeconds", Value: "30", Layer: document.Project},
			{Name: "waitMs", Value: "10000"},
			{Name: "locked", Ignored: []Ignored{{document.Tenant, "user", "a tenant may not set it"}}},
		}
		if d := cmp.Diff(want, got.Fields); d != "" {
			t.Error(d)
		}
	})
}

func TestBrokenLayers(t *testing.T) {
	good := "{levels: {global: 9}}"
	for _, tc := range []struct{ name, text, field string }{
		{"a cap of 0", "levels: {user: 0}", "levels.user"},
		{"a negative cap", "levels: {user: -1}", "levels.user"},
		{"a cap in quotes", `levels: {user: "1"}`, "levels.user"},
		{"a cap with a fraction", "levels: {user: 1.0}", "levels.user"},
		{"a cap in another base", "levels: {user: 0x1}", "levels.user"},
		{"a cap with a leading zero", "levels: {user: 010}", "levels.user"},
		{"a cap with underscores", "levels: {user: 1_0}", "levels.user"},
		{"an octal cap", "levels: {user: 0o7}", "levels.user"},
		{"a cap that is a word", "levels: {user: many}", "levels.user"},
		{"a cap that is true", "levels: {user: true}", "levels.user"},
		{"a cap without a value", "levels: {user: }", "levels.user"},
		{"a cap beyond any number", "levels: {user: 99999999999999999999}", "levels.user"},
		{"levels without a value", "levels:", "levels"},
		{"levels as a list", "levels: [1]", "levels"},
		{"an unknown level", "levels: {team: 1}", "levels.team"},
		{"an unknown key", "ttl: 3", "ttl"},
		{"a name that is not the file's", "name: chrome", "name"},
		{"a TTL of 0", "ttlSeconds: 0", "ttlSeconds"},
		{"a TTL over the ceiling", "ttlSeconds: 3601", "ttlSeconds"},
		{"a negative wait", "waitMs: -1", "waitMs"},
		{"a wait over the ceiling", "waitMs: 60001", "waitMs"},
		{"a resource of inline leases", "resource: 'mcp-inline:umbrella/thesis/x'", "resource"},
		{"so written", "resource: 'MCP-Inline:x'", "resource"},
		{"an empty resource", "resource: ''", "resource"},
		{"a resource that is a number", "resource: 7", "resource"},
		{"a global cap that is broken, where none may be set", "levels: {global: x}", "levels.global"},
		{"an anchor", "levels: &l {user: 1}", "levels"},
		{"an alias", "a: &l 1\nlevels: {user: *l}", "a"},
		{"a merge key", "levels: {<<: {user: 1}}", "levels.<<"},
		{"a tag", "levels: {user: !!int '1'}", "levels.user"},
		{"a key that stands twice", "waitMs: 1\nwaitMs: 2", "waitMs"},
		{"two documents", "waitMs: 1\n---\nwaitMs: 2", ""},
		{"no mapping", "- 1", ""},
		{"an empty text", "", ""},
		{"a comment only", "# x", ""},
		{"broken YAML", "levels: {", ""},
		{"bytes that are no text", "waitMs: \xff", ""},
		{"a variable", "levels: {user: '${CAP}'}", "levels.user"},
		{"a variable without quotes", "levels: {user: ${CAP}}", "levels.user"},
	} {
		for layer, l := range map[document.Layer]*docs{document.Tenant: layers(good, "", good), document.Project: layers(good, "", "")} {
			t.Run(fmt.Sprintf("%s in the %s layer gives no definition and names it", tc.name, layer), func(t *testing.T) {
				l.set(map[document.Layer]string{document.Tenant: "acme/_tenant/browser", document.Project: "acme/thesis/browser"}[layer], tc.text)
				d, err := resolver(l).Resolve(t.Context(), "acme", "thesis", "browser")
				var e *Error
				if !errors.As(err, &e) || d != nil {
					t.Fatalf("got %+v, %v", d, err)
				}
				if e.Layer != layer || e.Field != tc.field || e.Unknown || e.Transient || !strings.HasPrefix(e.Where, "acme/") {
					t.Errorf("got %+v", e)
				}
				for _, secret := range []string{"mcp-inline:umbrella", "chrome", "many"} {
					if strings.Contains(e.Client(), secret) {
						t.Errorf("a client reads the text: %s", e.Client())
					}
				}
			})
		}
	}
	t.Run("a layer that cannot be read gives no definition, and none is kept", func(t *testing.T) {
		d := layers(good, "", "")
		d.err = errors.New("no answer")
		r := resolver(d)
		_, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		var e *Error
		if !errors.As(err, &e) || !e.Transient || e.Layer != document.Tenant {
			t.Fatalf("got %+v", err)
		}
		d.err = nil
		if _, err := r.Resolve(t.Context(), "acme", "thesis", "browser"); err != nil {
			t.Errorf("the error was kept: %v", err)
		}
	})
	t.Run("a name that no layer defines is unknown, and so is one that cannot be a name", func(t *testing.T) {
		for _, name := range []string{"chrome", "", "../browser", "a/b", "-a", ".a", "_a", "a.b", strings.Repeat("a", 65), "bröwser", "a\n"} {
			_, err := resolver(layers(good, "", "")).Resolve(t.Context(), "acme", "thesis", name)
			var e *Error
			if !errors.As(err, &e) || !e.Unknown {
				t.Errorf("%q: got %v", name, err)
			}
			if e != nil && strings.ContainsAny(e.Client(), "\n/") {
				t.Errorf("%q: a client reads %q", name, e.Client())
			}
		}
	})
	t.Run("a change that is told is seen at once", func(t *testing.T) {
		d := layers(good, "", "")
		cascade := document.NewCascade(d)
		r := NewCascaded(cascade, limits, nil)
		before, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil {
			t.Fatal(err)
		}
		d.set("_vance/_tenant/browser", "{levels: {global: 1}}")
		if again, _ := r.Resolve(t.Context(), "acme", "thesis", "browser"); again != before {
			t.Error("the definition is not cached")
		}
		cascade.Changed(document.Change{Key: document.Key{Tenant: "_vance", Project: "_tenant", Path: PathOf("browser")}})
		after, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil || after.Caps[Global] != 1 {
			t.Errorf("got %+v, %v", after, err)
		}
	})
}

func inline(text, tenant, project string) (*Definition, *strictyaml.Document, error) {
	doc := strictyaml.Parse("server.yaml", []byte(text), nil)
	var in struct {
		Lease *yaml.Node `yaml:"lease"`
	}
	strictyaml.Decode(doc, &in, strictyaml.Lenient)
	if in.Lease == nil {
		return nil, doc, errors.New("no lease")
	}
	d, err := ParseInline(doc, in.Lease, "lease", tenant, project, limits)
	return d, doc, err
}

func TestInline(t *testing.T) {
	t.Run("an inline lease has a project's fields and a resource of its own", func(t *testing.T) {
		got, _, err := inline("lease: {name: shell, levels: {project: 2, user: 1}, ttlSeconds: 30, waitMs: 0}", "acme", "thesis")
		if err != nil {
			t.Fatal(err)
		}
		want := &Definition{Name: "shell", Resource: "mcp-inline:acme/thesis/shell", Caps: map[Level]Cap{Project: 2, User: 1}, TTL: 30 * time.Second, Inline: true, Label: "mcp-inline"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
	for _, tc := range []struct{ name, text, field string }{
		{"a resource", "lease: {name: a, resource: tex2pdf, levels: {user: 1}}", "lease.resource"},
		{"a global cap", "lease: {name: a, levels: {global: 900}}", "lease.levels.global"},
		{"a tenant cap", "lease: {name: a, levels: {tenant: 900}}", "lease.levels.tenant"},
		{"no name", "lease: {levels: {user: 1}}", "lease.name"},
		{"a bad name", "lease: {name: 'a/b', levels: {user: 1}}", "lease.name"},
		{"an unknown key", "lease: {name: a, ttl: 1}", "lease.ttl"},
		{"a cap of 0", "lease: {name: a, levels: {user: 0}}", "lease.levels.user"},
		{"a TTL over the ceiling", "lease: {name: a, ttlSeconds: 3601}", "lease.ttlSeconds"},
	} {
		t.Run(tc.name+" is rejected", func(t *testing.T) {
			d, doc, err := inline(tc.text, "acme", "thesis")
			if err == nil || d != nil {
				t.Fatalf("got %+v", d)
			}
			if ps := doc.Problems(); len(ps) != 1 || ps[0].Key != tc.field || ps[0].Line != 1 {
				t.Errorf("got %v", ps)
			}
		})
	}
	t.Run("two scopes never share a resource", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			part := rapid.StringMatching(`[a/%|.]{0,4}`)
			a := [3]string{part.Draw(t, "a"), part.Draw(t, "b"), part.Draw(t, "c")}
			b := [3]string{part.Draw(t, "d"), part.Draw(t, "e"), part.Draw(t, "f")}
			if (InlineResource(a[0], a[1], a[2]) == InlineResource(b[0], b[1], b[2])) != (a == b) {
				t.Fatalf("%q and %q", a, b)
			}
		})
	})
	t.Run("what is not plain is percent-encoded", func(t *testing.T) {
		if got := InlineResource("a/b", "p|%", "n"); got != "mcp-inline:a%2Fb/p%7C%25/n" {
			t.Error(got)
		}
	})
}

// TestMergeAgainstReference holds the merge against the table of the spec, read
// as plainly as it can be written.
func TestMergeAgainstReference(t *testing.T) {
	mayset := map[string][]string{ // field → layers, least specific first
		"resource": {"system", "tenant"}, "global": {"system"}, "tenant": {"system", "tenant"},
		"project": {"system", "tenant", "project"}, "user": {"system", "tenant", "project"},
		"ttlSeconds": {"system", "tenant", "project"}, "waitMs": {"system", "tenant", "project"},
	}
	rapid.Check(t, func(t *rapid.T) {
		written, locked := map[string]map[string]string{}, map[string][]string{}
		for _, layer := range []string{"system", "tenant", "project"} {
			if rapid.Bool().Draw(t, "has "+layer) {
				locked[layer] = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"resource", "tenant", "project", "user", "ttlSeconds", "waitMs"}), rapid.ID).Draw(t, "locked by "+layer)
				written[layer] = rapid.MapOf(rapid.SampledFrom(slices.Sorted(maps.Keys(mayset))), rapid.StringMatching(`[1-9][0-9]?`)).Draw(t, layer)
			}
		}
		text := func(layer string) string {
			fields, ok := written[layer]
			if !ok {
				return ""
			}
			var top, levels []string
			for f, v := range fields {
				switch f {
				case "resource":
					top = append(top, "resource: r"+v)
				case "ttlSeconds", "waitMs":
					top = append(top, f+": "+v)
				default:
					levels = append(levels, f+": "+v)
				}
			}
			if len(levels) > 0 {
				top = append(top, "levels: {"+strings.Join(levels, ", ")+"}")
			}
			if len(locked[layer]) > 0 {
				top = append(top, "locked: ["+strings.Join(locked[layer], ", ")+"]")
			}
			return "{" + strings.Join(top, ", ") + "}"
		}
		_, global := written["system"]["global"]
		shared := global || len(locked["system"]) > 0
		ignored := func(field, layer, value string) bool {
			if layer == "system" || !slices.Contains(locked["system"], field) && !(shared && (field == "resource" || field == "tenant")) {
				return false
			}
			cap, set := written["system"][field]
			if field == "resource" || field == "ttlSeconds" || field == "waitMs" {
				return true
			}
			n, _ := strconv.Atoi(value)
			most, _ := strconv.Atoi(cap)
			return set && n > most
		}
		want := func(field, otherwise string) string {
			v := otherwise
			for _, layer := range mayset[field] {
				if w, ok := written[layer][field]; ok && !ignored(field, layer, w) {
					v = w
				}
			}
			return v
		}
		got, err := resolver(layers(text("system"), text("tenant"), text("project"))).Resolve(context.Background(), "acme", "thesis", "browser")
		if len(written) == 0 {
			var e *Error
			if !errors.As(err, &e) || !e.Unknown {
				t.Fatalf("got %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		show := map[string]string{"resource": strings.TrimPrefix(got.Resource, "r"), "ttlSeconds": fmt.Sprint(int(got.TTL / time.Second)), "waitMs": fmt.Sprint(int(got.Wait / time.Millisecond))}
		for _, l := range Levels {
			show[string(l)] = fmt.Sprint(got.Caps[l])
		}
		for field := range mayset {
			otherwise := map[string]string{"resource": "browser", "ttlSeconds": "120", "waitMs": "10000"}[field]
			if otherwise == "" {
				otherwise = "0"
			}
			if show[field] != want(field, otherwise) {
				t.Fatalf("%s is %s, want %s", field, show[field], want(field, otherwise))
			}
		}
		_, sysResource := written["system"]["resource"]
		_, tenResource := written["tenant"]["resource"]
		tenResource = tenResource && !shared
		_, inSystem := written["system"]
		wantOther := tenResource || !sysResource && !inSystem
		if (got.Label == "other") != wantOther {
			t.Fatalf("label %s", got.Label)
		}
	})
}

func FuzzLayer(f *testing.F) {
	for _, seed := range []string{"name: browser\nlevels: {global: 6}\n", "levels: {user: 0}", "{}", "a: &b [*b]", "<<: {a: 1}", "levels:\n  user: 1\n  user: 2\n",
		"---\n---\n", "ttlSeconds: 1e3", "resource: 'mcp-inline:a/b/c'", "? [a]\n: b", "levels: {user: ${CAP}}", "%YAML 1.1\n---\nname: browser", "!!map {name: browser}",
		"levels: {user: 0b1}", "levels: {user: +1}", "\u2028: 1", "waitMs: 190:20:30"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		found := document.Found{Layer: document.Project, Key: document.Key{Tenant: "acme", Project: "thesis", Path: PathOf("browser")}, Name: "browser.yaml", Text: text}
		l, problems := parseLayer("browser", found, limits, nil)
		if len(problems) > 0 {
			return
		}
		for _, n := range []*int{l.Global, l.Tenant, l.Project, l.User, l.TTL} {
			if n != nil && *n < 1 {
				t.Fatalf("a cap or TTL below 1 was taken: %d", *n)
			}
		}
		if l.Wait != nil && (*l.Wait < 0 || l.wait() > limits.MaxWait) || l.TTL != nil && l.ttl() > limits.MaxTTL {
			t.Fatal("a bound was passed")
		}
		if l.Resource != nil && strings.HasPrefix(*l.Resource, InlinePrefix) || l.Name != nil && *l.Name != "browser" {
			t.Fatal("a foreign resource or name was taken")
		}
		// What is taken by yaml.v3's own decoding must be what was read here.
		var plain struct {
			Levels map[string]int `yaml:"levels"`
		}
		if err := yaml.Unmarshal(text, &plain); err != nil {
			t.Fatalf("another reader refuses it: %v", err)
		}
		for level, p := range map[string]*int{"global": l.Global, "tenant": l.Tenant, "project": l.Project, "user": l.User} {
			if n, ok := plain.Levels[level]; ok != (p != nil) || ok && n != *p {
				t.Fatalf("another reader sees %s as %d", level, n)
			}
		}
	})
}
