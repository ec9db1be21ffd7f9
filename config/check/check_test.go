package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

const quiet = "identity: {anonymous: {tenant: acme, projects: ['*'], user: dev}}\n"

// look runs a check over these files and returns what it says, without the
// folder's name.
func look(t *testing.T, gateway string, files map[string]string) (problems, warnings []string) {
	t.Helper()
	dir := t.TempDir()
	files["gateway.yaml"] = gateway
	if _, ok := files["documents"]; !ok {
		files["documents/acme/_tenant/_vance/notes.md"] = "something of another program"
	}
	delete(files, "documents")
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := func(string) (string, bool) { return "", false }
	g, err := config.Load(filepath.Join(dir, "gateway.yaml"), env)
	if err != nil {
		t.Fatal(err)
	}
	p := Parts{Gateway: g, Cascade: document.NewCascade(document.NewDir(g.Documents.Dir)), Secrets: server.NewSecrets(g.Documents.Secrets),
		Limits: definition.Limits{MaxTTL: g.Lease.MaxTTL, MaxWait: g.Lease.MaxWait}, Variables: config.Variables(dir, env)}
	p.Definitions = definition.NewCascaded(p.Cascade, p.Limits, p.Variables)
	p.Settings = settings.New(p.Cascade, p.Variables)
	r := Run(t.Context(), p)
	say := func(ps strictyaml.Problems) (out []string) {
		for _, p := range ps {
			out = append(out, strings.ReplaceAll(p.Error(), dir+"/", ""))
		}
		return out
	}
	return say(r.Problems), say(r.Warnings)
}

const (
	serverFile   = "documents/acme/thesis/_vance/server-tools/browser.yaml"
	systemFile   = "documents/_vance/_tenant/_vance/server-tools/browser.yaml"
	leaseFile    = "documents/_vance/_tenant/_vance/config/lease/browser.yaml"
	service      = "tex: [{name: t, preset: rbehzadan, upstream: 'http://t'}]\n"
	settingsFile = "documents/acme/thesis/_vance/config/settings.yaml"
	plain        = "type: mcp_server\nparameters:\n  url: http://1.1.1.1/mcp\n"
)

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name, gateway      string
		files              map[string]string
		problems, warnings []string
	}{
		{"nothing to say", quiet, map[string]string{serverFile: plain + "  lease: browser\n", leaseFile: "{levels: {user: 1}, ttlSeconds: 300, waitMs: 2000}"}, nil, nil},
		{"a gateway that nobody may call", "{}", map[string]string{}, nil,
			[]string{"gateway.yaml: identity: it names no credential"}},
		{"waits that clients do not have", quiet + "session:\n  openWait: 9s\n", map[string]string{}, nil,
			[]string{"gateway.yaml:3: session.openWait: MCP clients give up after 5s"}},
		{"a token that goes to other pods", quiet + "internal: {sendToken: true}\n", map[string]string{}, nil,
			[]string{"gateway.yaml:2: internal.sendToken: whoever can write an address into the lease store"}},
		{"a wait that openWait cuts and a TTL shorter than reading", quiet, map[string]string{serverFile: plain + "  lease: browser\n", leaseFile: "{levels: {user: 1}, ttlSeconds: 30, waitMs: 8000}"}, nil,
			[]string{serverFile + ":4: parameters.lease: the lease browser waits 8s for a slot (waitMs), but opening a session waits at most 2s", serverFile + ":4: parameters.lease: the lease browser is lost after 30s"}},
		{"a cap per user where a credential names none", "identity: {anonymous: {tenant: acme, projects: [thesis]}}\n", map[string]string{serverFile: plain + "  lease: {name: a, levels: {user: 1}, ttlSeconds: 300, waitMs: 0}\n"}, nil,
			[]string{serverFile + ":4: parameters.lease: the lease a has a cap per user (levels.user), and identity.anonymous in gateway.yaml names no user"}},
		{"not where the credential does not reach", "identity: {anonymous: {tenant: acme, projects: [paper]}}\n", map[string]string{serverFile: plain + "  lease: {name: a, levels: {user: 1}, ttlSeconds: 300, waitMs: 0}\n"}, nil, nil},
		{"a lease that nobody defines", quiet, map[string]string{serverFile: plain + "  lease: brwoser\n"}, nil,
			[]string{serverFile + ":4: parameters.lease: no layer that this document's scope sees defines the lease brwoser"}},
		{"a lease that limits nothing", quiet, map[string]string{serverFile: plain + "  lease: {name: a}\n"}, nil,
			[]string{serverFile + ":4: parameters.lease: the lease a has no caps here"}},
		{"a secret that is missing, and one that is the operator's", quiet, map[string]string{serverFile: plain + "  auth: {type: basic, user: '{{secret:u}}', password: '{{secret:p}}'}\n", "secrets/_vance/_tenant/p": "x"}, nil,
			[]string{serverFile + ":4: parameters.auth.user: there is no secret u", serverFile + ":4: parameters.auth.password: the secret p is the operator's"}},
		{"unknown keys of a server", quiet, map[string]string{serverFile: plain + "  leese: browser\n"}, nil,
			[]string{serverFile + ":4: parameters.leese: unknown key"}},
		{"another program's tool", quiet, map[string]string{serverFile: "type: rest_api\nparameters: {base: x}\n"}, nil,
			[]string{serverFile + ":1: type: only mcp_server", serverFile + ":2: parameters.base: unknown key"}},
		{"every problem of every document", quiet, map[string]string{serverFile: "type: mcp_server\nparameters:\n  url: ftp://x/\n  timeoutSeconds: 0\n", leaseFile: "levels:\n  user: 0\n  team: 1\n",
			"documents/acme/_tenant/_vance/config/settings.yaml": "a: [1]\n"},
			[]string{leaseFile + ":2: levels.user", leaseFile + ":3: levels.team: unknown key", "documents/acme/_tenant/_vance/config/settings.yaml:1: a: a setting is one value",
				serverFile + ":3: parameters.url: the URL must begin with http", serverFile + ":4: parameters.timeoutSeconds"}, nil},
		{"a private address in a project's document", quiet, map[string]string{serverFile: "type: mcp_server\nparameters:\n  url: http://10.0.0.1/\n"},
			[]string{serverFile + ":3: parameters.url: this is not a public address"}, nil},
		{"not in the operator's", quiet, map[string]string{systemFile: "type: mcp_server\nparameters:\n  url: http://10.0.0.1/\n"}, nil, nil},
		{"not where egress allows it", quiet + "egress: {allow: [10.0.0.0/8]}\n", map[string]string{serverFile: "type: mcp_server\nparameters:\n  url: http://10.0.0.1/\n"}, nil, nil},
		{"fields that a layer may not set", quiet, map[string]string{"documents/acme/thesis/_vance/config/lease/x.yaml": "resource: a\nlevels:\n  global: 9\n"}, nil,
			[]string{"documents/acme/thesis/_vance/config/lease/x.yaml:1: resource: a project may not set it, so it is ignored", "documents/acme/thesis/_vance/config/lease/x.yaml:3: levels.global: a project may not set it"}},
		{"fields of a tenant that the operators have locked", quiet, map[string]string{"documents/_vance/_tenant/_vance/config/lease/x.yaml": "levels: {global: 9, tenant: 3}\n",
			"documents/acme/_tenant/_vance/config/lease/x.yaml": "resource: a\nlevels:\n  tenant: 4\n"}, nil,
			[]string{"documents/acme/_tenant/_vance/config/lease/x.yaml:1: resource: a tenant may not set it: the operators have locked it, so it is ignored",
				"documents/acme/_tenant/_vance/config/lease/x.yaml:3: levels.tenant: a tenant may only lower it: the operators' cap is 3, so it is ignored"}},
		{"a document beside the places that are read", quiet, map[string]string{"documents/acme/thesis/_vance/config/lease/x.yml": "{}", "documents/acme/thesis/config/lease/x.yaml": "{}"}, nil,
			[]string{"documents/acme/thesis/_vance/config/lease/x.yml: no part of the gateway reads this path", "documents/acme/thesis/config/lease/x.yaml: no part of the gateway reads this path"}},
		{"a lease with a name that none can have", quiet, map[string]string{"documents/acme/thesis/_vance/config/lease/a.b.yaml": "{}"},
			[]string{"documents/acme/thesis/_vance/config/lease/a.b.yaml: no lease can have this name"}, nil},
		{"a folder that is not there", quiet, map[string]string{"documents": ""}, []string{"gateway.yaml: documents: the folder documents cannot be opened"}, nil},
		{"a lease of compiles that nobody defines", quiet + "tex: [{name: t, preset: rbehzadan, upstream: 'http://t'}]\n", map[string]string{"documents/_vance/_tenant/_vance/config/settings.yaml": "tex.lease: pdf"}, nil,
			[]string{"gateway.yaml: tex: the setting tex.lease names the lease pdf"}},
		{"a project's lease of compiles that nobody defines", quiet + service, map[string]string{settingsFile: "tex.lease: pdf"}, nil,
			[]string{settingsFile + ": tex.lease: no layer that this document's scope sees defines the lease pdf"}},
		{"a project's lease of compiles where the operator has said another", quiet + "tex: [{name: t, preset: rbehzadan, upstream: 'http://t', lease: tex}]\n", map[string]string{settingsFile: "tex.lease: none"}, nil,
			[]string{settingsFile + ": tex.lease: it does not count for the service t, whose lease is tex by gateway.yaml"}},
		{"no lease where the operator's is optional", quiet + "tex: [{name: t, preset: rbehzadan, upstream: 'http://t', lease: tex, optional: true}]\n", map[string]string{settingsFile: "tex.lease: none"}, nil, nil},
		{"a service's lease that nobody defines", quiet + "tex: [{name: t, preset: rbehzadan, upstream: 'http://t', lease: pdf}]\n", map[string]string{}, nil,
			[]string{"gateway.yaml: tex.t: its lease is pdf, which neither the system nor the bundled layer defines"}},
		{"one that no lease can be", quiet + service, map[string]string{settingsFile: "tex.lease: ../x"}, nil,
			[]string{settingsFile + ": tex.lease: no layer that this document's scope sees defines the lease ../x"}},
		{"one that its project defines", quiet + service, map[string]string{settingsFile: "tex.lease: mine", "documents/acme/thesis/_vance/config/lease/mine.yaml": "levels: {project: 2}"}, nil, nil},
		{"no lease of compiles", quiet + service, map[string]string{settingsFile: "tex.lease: none"}, nil, nil},
		{"a lease of compiles with a cap per user where a credential names none", "identity: {anonymous: {tenant: acme, projects: ['*']}}\n" + service, map[string]string{settingsFile: "tex.lease: mine", "documents/acme/thesis/_vance/config/lease/mine.yaml": "levels: {user: 1}"}, nil,
			[]string{settingsFile + ": tex.lease: the lease mine has a cap per user (levels.user), and identity.anonymous"}},
		{"a spool with little room for one upload", quiet + service + "limits: {spool: 60MiB}\n", map[string]string{}, nil,
			[]string{"gateway.yaml: tex.t: an upload of more than 20480 KiB, a third of limits.spool, is refused"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			problems, warnings := look(t, tc.gateway, tc.files)
			begins := cmp.Comparer(func(got, want string) bool { return strings.HasPrefix(got, want) || strings.HasPrefix(want, got) })
			if d := cmp.Diff(tc.problems, problems, begins); d != "" {
				t.Errorf("problems %s", d)
			}
			if d := cmp.Diff(tc.warnings, warnings, begins); d != "" {
				t.Errorf("warnings %s", d)
			}
		})
	}
}
