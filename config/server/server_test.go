package server

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

var limits = definition.Limits{MaxTTL: time.Hour, MaxWait: time.Minute}

var vars = &strictyaml.Variables{LookupEnv: func(n string) (string, bool) { return "http://up:1/mcp", n == "URL" }}

// docs is a source of server documents; the key is "tenant/project/server".
type docs struct {
	mu    sync.Mutex
	texts map[string]string
	err   error
}

func (d *docs) Read(_ context.Context, k document.Key) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
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

const (
	inSystem  = "_vance/_tenant/browser"
	inTenant  = "acme/_tenant/browser"
	inProject = "acme/thesis/browser"
)

func resolver(t *testing.T, d *docs) (*Cascaded, string) {
	dir := t.TempDir()
	return NewCascaded(document.NewCascade(d), NewSecrets(dir), limits, vars), dir
}

func one(t *testing.T, place, text string) (*Document, error) {
	t.Helper()
	r, _ := resolver(t, &docs{texts: map[string]string{place: text}})
	return r.Resolve(t.Context(), "acme", "thesis", "browser")
}

const minimal = "type: mcp_server\nparameters:\n  url: http://browsers:8931/mcp\n"

func TestResolve(t *testing.T) {
	t.Run("a short document has every default", func(t *testing.T) {
		got, err := one(t, inProject, minimal)
		if err != nil {
			t.Fatal(err)
		}
		want := &Document{Name: "browser", Layer: document.Project, Tenant: "acme", Project: "thesis", Transport: "http",
			URL: &url.URL{Scheme: "http", Host: "browsers:8931", Path: "/mcp"}, Auth: config.Auth{Type: "none"},
			Timeout: time.Minute, InitTimeout: 5 * time.Second, MaxCall: time.Hour, Untrusted: true}
		got.secrets = nil
		if d := cmp.Diff(want, got, cmp.AllowUnexported(Document{})); d != "" {
			t.Error(d)
		}
	})
	t.Run("a stdio server of the operator's has a minute to start", func(t *testing.T) {
		got, err := one(t, inSystem, "type: mcp_server\nparameters: {transport: stdio, command: [npx, '@playwright/mcp'], cwd: /srv, env: {A: b}, lease: browser, onBusy: replaceOwn, modern: fence}\n")
		if err != nil {
			t.Fatal(err)
		}
		if got.InitTimeout != time.Minute || got.Untrusted || got.Lease != "browser" || got.OnBusy != "replaceOwn" || got.Modern != "fence" || got.Cwd != "/srv" || len(got.Command) != 2 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("the operator's document may take a variable", func(t *testing.T) {
		got, err := one(t, inSystem, "type: mcp_server\nparameters: {url: ${URL}}\n")
		if err != nil || got.URL.Host != "up:1" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("the most specific document counts whole", func(t *testing.T) {
		r, _ := resolver(t, &docs{texts: map[string]string{inSystem: minimal + "  lease: browser\n", inTenant: minimal}})
		got, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil || got.Layer != document.Tenant || got.Lease != "" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("enabled: false ends the search, also above a server that is there", func(t *testing.T) {
		r, _ := resolver(t, &docs{texts: map[string]string{inSystem: minimal, inProject: "type: mcp_server\nenabled: false\n"}})
		if _, err := r.Resolve(t.Context(), "acme", "thesis", "browser"); !errors.Is(err, ErrDisabled) {
			t.Error(err)
		}
		if _, err := r.Resolve(t.Context(), "acme", "paper", "browser"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a broken document does not let a less specific one through", func(t *testing.T) {
		r, _ := resolver(t, &docs{texts: map[string]string{inSystem: minimal, inProject: "{"}})
		_, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		var e *InvalidError
		if !errors.As(err, &e) || e.Layer != document.Project {
			t.Error(err)
		}
	})
	t.Run("no document, or a name that no document can have, is unknown", func(t *testing.T) {
		r, _ := resolver(t, &docs{})
		for _, name := range []string{"browser", "", "..", "a..b", "../browser", "a/b", strings.Repeat("a", 65)} {
			if _, err := r.Resolve(t.Context(), "acme", "thesis", name); !errors.Is(err, ErrUnknown) {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
	t.Run("a source that cannot be read is neither unknown nor invalid", func(t *testing.T) {
		r, _ := resolver(t, &docs{err: errors.New("no answer")})
		_, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		var e *InvalidError
		if err == nil || errors.Is(err, ErrUnknown) || errors.As(err, &e) {
			t.Error(err)
		}
	})
	t.Run("an inline lease has the resource of the project that resolves it", func(t *testing.T) {
		got, err := one(t, inTenant, minimal+"  lease: {name: shell, levels: {user: 1}}\n")
		if err != nil || got.Inline == nil || got.Inline.Resource != "mcp-inline:acme/thesis/shell" || got.Lease != "" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	for _, none := range []string{"", "  lease: none\n", "  lease: ''\n", "  lease:\n"} {
		t.Run("no lease: "+none, func(t *testing.T) {
			if got, err := one(t, inProject, minimal+none); err != nil || got.Lease != "" || got.Inline != nil {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestABrokenLeaseIsSaidAndNeverNone has documents whose server is in order.
func TestABrokenLeaseIsSaidAndNeverNone(t *testing.T) {
	head := "type: mcp_server\nparameters:\n  "
	for _, tc := range []struct{ name, text, field, what string }{
		{"a bad lease name", head + "{url: http://x, lease: '../tex'}\n", "parameters.lease", "a lease name begins"},
		{"a lease that is a number", head + "{url: http://x, lease: 7}\n", "parameters.lease", "the name of a lease"},
		{"an inline lease with a global cap", head + "{url: http://x, lease: {name: a, levels: {global: 900}}}\n", "parameters.lease.levels.global", "reach beyond its project"},
		{"an inline lease with a cap of 0", head + "{url: http://x, lease: {name: a, levels: {user: 0}}}\n", "parameters.lease.levels.user", "at least 1"},
		{"an inline lease without a name", head + "{url: http://x, lease: {levels: {user: 1}}}\n", "parameters.lease.name", "needs a name"},
		{"an inline lease with an unknown key", head + "{url: http://x, lease: {name: a, levls: {user: 1}}}\n", "parameters.lease.levls", "unknown key"},
		{"an inline lease with a cap in words", head + "{url: http://x, lease: {name: a, levels: {user: one}}}\n", "parameters.lease.levels.user", "a whole number is wanted"},
		{"a list of leases", head + "{url: http://x, lease: [a]}\n", "parameters.lease", "the name of a lease"},
	} {
		for _, place := range []string{inSystem, inTenant, inProject} {
			t.Run(tc.name+" in "+place, func(t *testing.T) {
				d, err := one(t, place, tc.text)
				if err != nil || d.LeaseError == nil {
					t.Fatalf("%+v, %v", d, err)
				}
				e := d.LeaseError
				if e.Field != tc.field || !strings.Contains(e.What, tc.what) || e.Transient || e.Unknown || d.Lease == "" || d.Inline != nil {
					t.Errorf("%+v", e)
				}
				if c := e.Client(); !strings.Contains(c, tc.field) || !strings.Contains(c, tc.what) || strings.Contains(c, "../") || strings.Contains(c, "900") {
					t.Errorf("a client reads %q", c)
				}
			})
		}
	}
}

func TestInvalid(t *testing.T) {
	head := "type: mcp_server\nparameters:\n  "
	for _, tc := range []struct{ name, text, field, what string }{
		{"another type", "type: rest_api\n", "type", "only mcp_server"},
		{"no type", "parameters: {url: http://x}\n", "type", "required"},
		{"no url", "type: mcp_server\n", "parameters.url", "needs its url"},
		{"a relative url", head + "url: /mcp\n", "parameters.url", "an absolute URL"},
		{"another scheme", head + "url: file:///etc/passwd\n", "parameters.url", "an absolute URL"},
		{"a scheme with a host", head + "url: gopher://x/\n", "parameters.url", "must begin with http"},
		{"a user in the url", head + "url: http://u:hunter2@x/mcp\n", "parameters.url", "must not hold a user"},
		{"a fragment", head + "url: http://x/#a\n", "parameters.url", "fragment"},
		{"a secret in the url", head + "url: 'http://x/{{secret:a}}'\n", "parameters.url", "auth and env only"},
		{"sse without an address", head + "{transport: sse}\n", "parameters.url", "needs its url"},
		{"another transport", head + "{transport: grpc, url: http://x}\n", "parameters.transport", "http, sse or stdio"},
		{"a command with http", head + "{url: http://x, command: [sh]}\n", "parameters.command", ""},
		{"an unknown auth", head + "{url: http://x, auth: {type: magic}}\n", "parameters.auth.type", "one of bearer"},
		{"a bearer without its token", head + "{url: http://x, auth: {type: bearer}}\n", "parameters.auth.token", "needs its token"},
		{"basic without a password", head + "{url: http://x, auth: {type: basic, user: a}}\n", "parameters.auth.password", "needs its password"},
		{"a key into the session header", head + "{url: http://x, auth: {type: apiKey, headerName: Mcp-Session-Id, value: x}}\n", "parameters.auth.headerName", "another meaning; choose another one, such as X-API-Key"},
		{"a header name that is none", head + "{url: http://x, auth: {type: apiKey, headerName: 'a b', value: x}}\n", "parameters.auth.headerName", "not a header name"},
		{"oauth2 without a tokenURL", head + "{url: http://x, auth: {type: oauth2, clientID: a, clientSecret: b}}\n", "parameters.auth.tokenURL", "needs its tokenURL"},
		{"a tokenURL of another scheme", head + "{url: http://x, auth: {type: oauth2, tokenURL: 'ldap://x', clientID: a, clientSecret: b}}\n", "parameters.auth.tokenURL", "must begin with http"},
		{"a credential without a type", head + "{url: http://x, auth: {token: hunter2}}\n", "parameters.auth.type", "never sent"},
		{"a reference with a slip", head + "{url: http://x, auth: {type: bearer, token: '{{secrets:a}}'}}\n", "parameters.auth.token", "that is no {{secret:name}}"},
		{"a secret with a path", head + "{url: http://x, auth: {type: bearer, token: '{{secret:../../a}}'}}\n", "parameters.auth.token", "the name of a secret"},
		{"a timeout of 0", head + "{url: http://x, timeoutSeconds: 0}\n", "parameters.timeoutSeconds", "at least 1"},
		{"a timeout that is a word", head + "{url: http://x, timeoutSeconds: long}\n", "parameters.timeoutSeconds", "whole number"},
		{"another onBusy", head + "{url: http://x, onBusy: kill}\n", "parameters.onBusy", "one of refuse, replaceOwn"},
		{"a modern form that is not built", head + "{url: http://x, modern: handle}\n", "parameters.modern", "not built in this version"},
		{"another modern", head + "{url: http://x, modern: yes please}\n", "parameters.modern", "fence is wanted"},
		{"an environment variable with a bad name", head + "{url: http://x, env: {'A=B': c}}\n", "parameters.env.A=B", "not the name"},
		{"an alias", "a: &a 1\ntype: *a\n", "a", "anchors and aliases"},
		{"a variable", head + "url: ${URL}\n", "parameters.url", "system and bundled documents only"},
		{"a program", head + "{transport: stdio, command: [sh, -c, id]}\n", "parameters.command", "must not run programs on the gateway's host; ask the operator"},
		{"stdio", head + "transport: stdio\n", "parameters.transport", "must not run programs"},
		{"forward", head + "{url: http://x, auth: {type: forward}}\n", "parameters.auth.type", "an operator must want; ask the operator"},
	} {
		for _, place := range []string{inTenant, inProject} {
			t.Run(tc.name+" in "+place, func(t *testing.T) {
				_, err := one(t, place, tc.text)
				var e *InvalidError
				if !errors.As(err, &e) {
					t.Fatalf("got %v", err)
				}
				if e.Field != tc.field || !strings.Contains(e.What, tc.what) || !strings.HasPrefix(e.Where, "acme/") {
					t.Errorf("got %+v", e)
				}
				if tc.field == "parameters.command" && !strings.Contains(e.Client(), tc.what) {
					t.Errorf("a client is not told the way out: %s", e.Client())
				}
				for _, text := range []string{"ftp", "gopher", "magic", "grpc", "kill", "long", "../", "yes please"} {
					if strings.Contains(e.Client(), text) && strings.Contains(tc.text, text) {
						t.Errorf("a client reads the text: %s", e.Client())
					}
				}
				if strings.Contains(e.Error()+e.Client(), "hunter2") {
					t.Errorf("a secret is told: %v", e)
				}
			})
		}
	}
	for name, text := range map[string]string{"a program without a command": "{transport: stdio}", "a command that is a text": "{transport: stdio, command: npx x}",
		"a secret on the command line": "{transport: stdio, command: [x, '{{secret:a}}']}", "an unset variable": "{url: ${NOPE}}"} {
		t.Run(name+" in the operator's document", func(t *testing.T) {
			_, err := one(t, inSystem, head+text+"\n")
			var e *InvalidError
			if !errors.As(err, &e) || e.Layer != document.System {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("the operator may forward", func(t *testing.T) {
		if d, err := one(t, inSystem, head+"{url: http://x, auth: {type: forward}}\n"); err != nil || d.Auth.Type != "forward" {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("a megabyte is refused by the layer's name", func(t *testing.T) {
		_, err := one(t, inProject, minimal+strings.Repeat("#", 1<<20))
		var e *InvalidError
		if !errors.As(err, &e) || e.Layer != document.Project || !strings.Contains(e.What, "64 KiB") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("unknown keys warn with their line, and the document counts", func(t *testing.T) {
		f := document.Found{Layer: document.Project, Name: "browser.yaml", Text: []byte(minimal + "  toolPrefix: x\nlabels: [a]\n")}
		c := Check("browser", "acme", "thesis", f, limits, nil)
		if c.Document == nil || len(c.Warnings) != 2 || c.Warnings[0].Key != "parameters.toolPrefix" || c.Warnings[0].Line != 4 || c.Warnings[1].Key != "labels" {
			t.Errorf("%+v", c)
		}
	})
}

func TestSecrets(t *testing.T) {
	put := func(t *testing.T, dir, name, text string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	with := func(place string) *docs {
		return &docs{texts: map[string]string{place: minimal + "  auth: {type: bearer, token: 'a-{{ secret:browsers }}-z'}\n  env: {TOKEN: '{{secret:browsers}}'}\n"}}
	}
	t.Run("a secret is looked up anew for each use, the most specific first", func(t *testing.T) {
		r, dir := resolver(t, with(inSystem))
		d, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct{ file, text, want string }{
			{"_vance/_tenant/browsers", "sys\n", "a-sys-z"}, {"acme/_tenant/browsers", "ten\r\n", "a-ten-z"},
			{"acme/thesis/browsers", "pro", "a-pro-z"}, {"acme/thesis/browsers", "rotated", "a-rotated-z"},
		} {
			put(t, dir, step.file, step.text)
			a, err := r.Auth(t.Context(), d)
			if err != nil || a.Token != step.want {
				t.Errorf("got %q, %v; want %q", a.Token, err, step.want)
			}
		}
		env, err := d.ResolvedEnv()
		if err != nil || env["TOKEN"] != "rotated" {
			t.Errorf("env: %v, %v", env, err)
		}
		if strings.Contains(d.Auth.Token, "rotated") {
			t.Error("the cached document keeps the secret")
		}
	})
	t.Run("a project's document cannot send the operator's secrets anywhere", func(t *testing.T) {
		for _, place := range []string{inTenant, inProject} {
			r, dir := resolver(t, with(place))
			put(t, dir, "_vance/_tenant/browsers", "hunter2")
			d, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
			if err != nil {
				t.Fatal(err)
			}
			a, err := r.Auth(t.Context(), d)
			if err == nil || a.Token != "" || !strings.Contains(err.Error(), "is the operator's") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %+v, %v", a, err)
			}
			if env, err := d.ResolvedEnv(); err == nil || env != nil {
				t.Errorf("got %v, %v", env, err)
			}
		}
	})
	t.Run("another tenant's and project's secrets are not found", func(t *testing.T) {
		r, dir := resolver(t, with(inProject))
		put(t, dir, "umbrella/_tenant/browsers", "x")
		put(t, dir, "acme/paper/browsers", "x")
		d, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Auth(t.Context(), d); err == nil || !strings.Contains(err.Error(), "there is no secret browsers; put it at") {
			t.Error(err)
		}
	})
	t.Run("a secret that would break a header, or is empty, is refused without being told", func(t *testing.T) {
		for _, text := range []string{"hunter2\r\nX-Evil: 1", "hunter2\nx"} {
			r, dir := resolver(t, with(inProject))
			put(t, dir, "acme/thesis/browsers", text)
			d, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Auth(t.Context(), d); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Error(err)
			}
		}
		r, dir := resolver(t, &docs{texts: map[string]string{inProject: minimal + "  auth: {type: bearer, token: '{{secret:e}}'}\n"}})
		put(t, dir, "acme/thesis/e", "\n")
		d, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Auth(t.Context(), d); err == nil {
			t.Error("an empty token was taken")
		}
	})
	t.Run("a secret out of the folder is not read", func(t *testing.T) {
		r, dir := resolver(t, with(inProject))
		outside := filepath.Join(t.TempDir(), "x")
		put(t, filepath.Dir(outside), "x", "hunter2")
		if err := os.MkdirAll(filepath.Join(dir, "acme", "thesis"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(dir, "acme", "thesis", "browsers")); err != nil {
			t.Fatal(err)
		}
		d, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Auth(t.Context(), d); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Error(err)
		}
	})
	t.Run("what a secret holds is not read as a reference itself", func(t *testing.T) {
		r, dir := resolver(t, with(inProject))
		put(t, dir, "acme/thesis/browsers", "{{secret:other}}")
		put(t, dir, "acme/thesis/other", "hunter2")
		d, err := r.Resolve(t.Context(), "acme", "thesis", "browser")
		if err != nil {
			t.Fatal(err)
		}
		if a, err := r.Auth(t.Context(), d); err != nil || a.Token != "a-{{secret:other}}-z" {
			t.Errorf("got %q, %v", a.Token, err)
		}
	})
}

func FuzzDocument(f *testing.F) {
	for _, seed := range []string{minimal, minimal + "  lease: {name: a, levels: {user: 1}}\n", "type: mcp_server\nenabled: false\n", "type: mcp_server\nparameters: {transport: stdio, command: [sh]}\n",
		minimal + "  auth: {type: forward}\n", "type: mcp_server\nparameters: {url: 'http://[::1]:80/{{secret:a}}'}\n", "type: mcp_server\nparameters: {url: ${URL}}\n",
		minimal + "  auth: {type: bearer, token: '{{secret:a}}'}\n", "a: &b [*b]\n", minimal + "  env: {A: '{{secret:a}}'}\n"} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, system bool) {
		layer := document.Project
		if system {
			layer = document.System
		}
		c := Check("browser", "acme", "thesis", document.Found{Layer: layer, Name: "browser.yaml", Text: text}, limits, vars)
		d := c.Document
		if (d != nil) == (len(c.Problems) > 0 || c.Disabled) {
			t.Fatalf("%+v", c)
		}
		if d == nil {
			return
		}
		if !system && (len(d.Command) > 0 || d.Transport == "stdio" || d.Auth.Type == "forward" || !d.Untrusted) {
			t.Fatalf("a project's document got %+v", d)
		}
		if d.Transport != "stdio" && (d.URL == nil || d.URL.User != nil || d.URL.Hostname() == "") || d.Transport == "stdio" && len(d.Command) == 0 {
			t.Fatalf("%+v", d)
		}
		if d.Inline != nil && (!strings.HasPrefix(d.Inline.Resource, definition.InlinePrefix+"acme/thesis/") || d.Inline.Caps[definition.Global] != 0 || d.Inline.Caps[definition.Tenant] != 0) {
			t.Fatalf("%+v", d.Inline)
		}
		if d.Timeout < time.Second || d.InitTimeout < time.Second || d.MaxCall < time.Second {
			t.Fatalf("%+v", d)
		}
	})
}

func TestADocumentThatStandsWrongIsInvalid(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "acme", "thesis", "_vance", "server-tools")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "long.yaml"), make([]byte, document.MaxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"outside": t.TempDir(), "circle": "circle.yaml"} {
		if err := os.Symlink(target, filepath.Join(folder, name+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	r := NewCascaded(document.NewCascade(document.NewDir(root)), NewSecrets(root), limits, nil)
	for _, name := range []string{"long", "outside", "circle"} {
		_, err := r.Resolve(t.Context(), "acme", "thesis", name)
		var wrong *InvalidError
		if !errors.As(err, &wrong) || wrong.Where != filepath.Join(folder, name+".yaml") || strings.Contains(wrong.Client(), root) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
