package config

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

var key32 = base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))

const hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestParse(t *testing.T) {
	t.Run("an empty mapping is a gateway with every default", func(t *testing.T) {
		g, err := Parse("gateway.yaml", []byte("{}"), env())
		if err != nil {
			t.Fatal(err)
		}
		want := &Gateway{
			Path: "gateway.yaml", Listen: "127.0.0.1:8080",
			Internal:  Internal{Listen: "127.0.0.1:8081"},
			Pod:       Pod{Endpoint: "127.0.0.1:8081", Heartbeat: 15 * time.Second, StaleAfter: 45 * time.Second},
			Store:     Store{Kind: "embedded", Path: "data/leases.db", Database: "mcp_lease_gateway"},
			Documents: Documents{Dir: "documents", MongoDB: DocumentDB{Collection: "documents"}, Secrets: "secrets"},
			Lease: Lease{ReapInterval: 30 * time.Second, ReconcileSafety: time.Minute, PendingTTL: 30 * time.Second,
				MaxTTL: 24 * time.Hour, MaxWait: time.Minute},
			Session:   Session{OpenWait: 2 * time.Second, ReopenFor: 24 * time.Hour, Idle: 30 * time.Minute, OnShutdown: "close"},
			Limits:    Limits{RequestBody: 32 << 20, PerPod: 10000, PerPrincipal: 1000, StdioPerTenant: 50, Waiters: 1000, Spool: 2 << 30},
			Telemetry: Telemetry{SampleRatio: 1},
			Warnings:  Problems{{File: "gateway.yaml", Key: "identity", What: "it names no credential, so every call is refused; add apiKeys, jwt or, on a loopback listener, anonymous"}},
		}
		if d := cmp.Diff(want, g); d != "" {
			t.Error(d)
		}
	})

	t.Run("the documented file is read with variables in lists and mappings", func(t *testing.T) {
		text := `
listen: 127.0.0.1:8080
tls: {cert: "", key: ""}
internal:
  listen: 127.0.0.1:8081
  tokens: [${VANCE_INTERNAL_TOKEN}]   # ${NOT_SET} in a comment is nobody's business
pod: {endpoint: 127.0.0.1:8081, heartbeat: 15s, staleAfter: 45s}
store:
  kind: embedded
  path: data/leases.db
  uri: ${MONGODB_URI:-}
  database: mcp_lease_gateway
documents:
  dir: documents
  mongodb: {uri: "", database: "", collection: documents}
  secrets: secrets
session:
  keys: [${SESSION_KEY}]
limits: {requestBody: 1MiB, waiters: ${WAITERS:-7}}
egress: {allow: [upstream.internal, "*.svc.local", 10.0.0.0/8]}
identity:
  anonymous: {tenant: dev, projects: ["*"], user: dev}
  apiKeys:
    - {name: brain, sha256: ` + hash + `, tenants: {"*": ["*"]}, userHeader: X-Vance-User, onLost: reopen}
    - {name: ops, sha256: ` + strings.Repeat("1", 64) + `, roles: [operator]}
tex:
  - {name: tex2pdf, preset: rbehzadan, upstream: "http://tex2pdf:8000", auth: {type: apiKey, headerName: X-API-Key, value: ${TEX_KEY}}, maxUpload: 60MiB}
`
		_, err := Parse("/etc/gw/gateway.yaml", []byte(text), env("VANCE_INTERNAL_TOKEN", "}: [a, b", "SESSION_KEY", key32, "TEX_KEY", "12345"))
		if err == nil || !strings.Contains(err.Error(), "internal.tokens[0]") {
			t.Fatalf("a short token was taken: %v", err)
		}
		g, err := Parse("/etc/gw/gateway.yaml", []byte(text), env("VANCE_INTERNAL_TOKEN", "}:[a,b*&!0123456789", "SESSION_KEY", key32, "TEX_KEY", "12345"))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"}:[a,b*&!0123456789"}, g.Internal.Tokens); d != "" {
			t.Error("what is in a variable changed the structure: " + d)
		}
		if g.Limits.Waiters != 7 || g.Limits.RequestBody != 1<<20 || g.Limits.PerPod != 10000 {
			t.Errorf("limits: %+v", g.Limits)
		}
		if g.Store.Path != "/etc/gw/data/leases.db" || g.Documents.Dir != "/etc/gw/documents" {
			t.Errorf("paths: %s, %s", g.Store.Path, g.Documents.Dir)
		}
		if got := g.Tex[0]; got.Auth.Value != "12345" || got.MaxUpload != 60<<20 || got.Mode != "job" || got.Poll.Path != "/tex2pdf/status/{job}" {
			t.Errorf("tex: %+v", got)
		}
		if g.Identity.APIKeys[0].OnLost != "reopen" || g.Identity.APIKeys[1].OnLost != "reopen" {
			t.Errorf("keys: %+v", g.Identity.APIKeys)
		}
	})

	t.Run("a mounted secret is read without its last line break, relative to the file", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte("0123456789abcdefgh\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := Parse(filepath.Join(dir, "gateway.yaml"), []byte("internal: {tokens: [ '${file:token}' ]}"), env())
		if err != nil {
			t.Fatal(err)
		}
		if g.Internal.Tokens[0] != "0123456789abcdefgh" {
			t.Errorf("got %q", g.Internal.Tokens[0])
		}
	})

	t.Run("the documents folder is not wanted where only a collection was named", func(t *testing.T) {
		g, err := Parse("gateway.yaml", []byte("documents: {mongodb: {uri: 'mongodb://db'}}"), env())
		if err != nil {
			t.Fatal(err)
		}
		if g.Documents.Dir != "" || g.Documents.MongoDB.Database != "mcp_lease_gateway" {
			t.Errorf("%+v", g.Documents)
		}
	})
}

func TestEveryPresetLoads(t *testing.T) {
	for _, name := range tex.Presets() {
		t.Run(name+" passes the checks that a described service must pass", func(t *testing.T) {
			g, err := Parse("gateway.yaml", []byte("tex: [{name: s, upstream: 'http://tex:8000/base', preset: "+name+"}]"), env())
			if err != nil {
				t.Fatal(err)
			}
			if s := g.Tex[0]; s.MaxUpload == 0 || s.HoldMax == 0 || s.Timeout == 0 || s.Unmatched != "reject" || s.Abandoned.Mode == "" || s.Busy.Status == 0 {
				t.Errorf("defaults are missing: %+v", s)
			}
		})
	}
}

func TestDescribedService(t *testing.T) {
	text := `
tex:
  - name: mine
    upstream: http://tex:8000
    mode: job
    submit:
      match: {methods: [POST], path: /tex2pdf}
      accepted: [200, 201, 202, 303]
      jobId: [{json: /job_id}, {header: Location, regex: '([^/]+)$'}]
      terminal: [{json: /status, in: [failed, error], outcome: error}]
    poll:
      match: {methods: [GET, HEAD], path: '/tex2pdf/status/{job}'}
      terminal: [{json: /status, in: [completed, done], outcome: ok}, {status: [404, 410], outcome: gone}]
    result: {match: {methods: [GET, HEAD], path: '/tex2pdf/download/{job}'}}
    abandoned: {mode: watch, every: 10s, max: 300s}
    busy: {status: 429, json: '{"x":1}'}
    lost: {status: 200, json: '{"job_id":"{job}"}'}
    maxUpload: 50MiB
    hold: {max: 700s}
    unmatched: reject
`
	g, err := Parse("gateway.yaml", []byte(text), env())
	if err != nil {
		t.Fatal(err)
	}
	s := g.Tex[0]
	if s.HoldMax != 700*time.Second || s.Submit[0].Path != "/tex2pdf" || s.Submit[0].JobID[1].Regex.String() != "([^/]+)$" ||
		s.Poll.Terminal[1].Status[1] != 410 || s.Lost.JSON != `{"job_id":"{job}"}` {
		t.Errorf("%+v", s)
	}
	text = strings.Replace(text, "    mode: job\n", "    mode: job\n    lease: pdf\n    optional: true\n", 1)
	text = strings.Replace(text, "    submit:\n      match: {", "    submit:\n    - match: {methods: [PUT], path: /put}\n      jobId: [{json: /id}]\n    - match: {", 1)
	if g, err = Parse("gateway.yaml", []byte(text), env()); err != nil {
		t.Fatal(err)
	}
	if s := g.Tex[0]; len(s.Submit) != 2 || s.Submit[0].Methods[0] != "PUT" || s.Submit[1].Path != "/tex2pdf" || s.Lease != "pdf" || !s.Optional {
		t.Errorf("two submits and a lease: %+v", s)
	}
}

func TestRefusals(t *testing.T) {
	anonymous := "identity: {anonymous: {tenant: dev, projects: ['*']}}\n"
	mongo := "store: {kind: mongodb, uri: 'mongodb://db'}\nsession: {keys: ['" + key32 + "']}\ninternal: {tokens: [0123456789abcdefg], listen: '0.0.0.0:8081'}\n"
	for _, tc := range []struct{ name, text, want string }{
		{"an unknown key names what is known", "lissten: x\n", "gateway.yaml:1: lissten: unknown key; known here are listen, tls"},
		{"an unknown nested key", "pod:\n  hartbeat: 3s\n", "gateway.yaml:2: pod.hartbeat: unknown key; known here are endpoint, heartbeat, staleAfter"},
		{"a number where a text is wanted", "store: {path: 12}\n", "store.path: a text is wanted, this is a number; put it in quotes"},
		{"a list where a mapping is wanted", "pod: []\n", "pod: a mapping of keys and values is wanted, this is a list"},
		{"a duration without unit", "pod: {heartbeat: 15}\n", "pod.heartbeat: a duration needs its unit"},
		{"a zero limit, which is never unlimited", "limits: {perPod: 0}\n", "limits.perPod: \"0\": at least 1 is wanted"},
		{"a size that is none", "limits: {spool: 2 giga}\n", "a size is wanted, such as 32MiB"},
		{"an unset variable", "store: {path: '${NOPE}'}\n", "the environment variable NOPE is not set"},
		{"a broken variable", "store: {path: '${a b}'}\n", "is not a variable"},
		{"a file that is not there", "store: {path: '${file:/nonexistent/x}'}\n", "the file of ${file:/nonexistent/x} cannot be read: no such file"},
		{"a variable as a key", "\"${A}\": 1\n", "a key must not hold a variable"},
		{"broken YAML names its line", "listen: a\n  b: [\n", "gateway.yaml:2: this is not YAML"},
		{"two documents", "listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2\n", "a second document begins here"},
		{"an alias", "a: &x 1\nb: *x\n", "anchors and aliases are not taken"},
		{"a merge key", "pod:\n  <<: {heartbeat: 3s}\n", "merge keys are not taken"},
		{"a key that stands twice", "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "gateway.yaml:2: listen: the key stands twice, first in line 1"},
		{"no mapping at all", "- a\n", "a mapping of keys and values is wanted, this is a list"},
		{"an empty file", "# nothing\n", "the text is empty"},
		{"a listener without a port", "listen: localhost\n", "listen: host:port is wanted"},
		{"both listeners on one port", "listen: 127.0.0.1:8081\n", "internal.listen: the port is that of listen"},
		{"a certificate without its key", "tls: {cert: a.pem}\n", "tls: cert and key belong together"},
		{"anonymous on every address", "listen: ':8080'\n" + anonymous, "identity.anonymous: callers without a credential are taken on a loopback listener only"},
		{"anonymous without projects", "identity: {anonymous: {tenant: dev}}\n", "identity.anonymous.projects: this key is required"},
		{"a heartbeat that must never be late", "pod: {heartbeat: 30s}\n", "pod.staleAfter: it must be at least twice pod.heartbeat (30s)"},
		{"mongodb without its uri", "store: {kind: mongodb}\n", "store.uri: store.kind mongodb needs the connection string"},
		{"mongodb without session keys", "store: {kind: mongodb}\n", "session.keys: pods that share a store need the same session keys"},
		{"mongodb without a token", "store: {kind: mongodb}\n", "internal.tokens: pods that share a store need the same token"},
		{"an unknown store", "store: {kind: redis}\n", `store.kind: "redis": one of embedded, mongodb is wanted`},
		{"no endpoint where the listener is every address", mongo, "pod.endpoint: internal.listen is every address of this host"},
		{"a loopback endpoint among other pods", mongo + "pod: {endpoint: '127.0.0.1:8081'}\n", "pod.endpoint: other pods cannot reach a loopback address"},
		{"an endpoint where nobody listens", "pod: {endpoint: '10.0.0.1:8081'}\n", "pod.endpoint: internal.listen (127.0.0.1:8081) is a loopback address"},
		{"handover on the embedded store", "session: {onShutdown: handover}\n", "session.onShutdown: handover leaves sessions to other pods"},
		{"a session key of the wrong size", "session: {keys: [aGVsbG8=]}\n", "session.keys[0]: 32 bytes in base64 are wanted"},
		{"a hash that is none", "identity: {apiKeys: [{name: a, sha256: abc, roles: [operator]}]}\n", "identity.apiKeys[0].sha256: 64 hexadecimal digits are wanted"},
		{"the hash of an empty key", "identity: {apiKeys: [{name: a, sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855, roles: [operator]}]}\n", "this is the hash of an empty key"},
		{"an unknown role", "identity: {apiKeys: [{name: a, sha256: " + hash + ", roles: [root]}]}\n", `identity.apiKeys[0].roles[0]: "root": one of operator, tenantAdmin is wanted`},
		{"a key that opens nothing", "identity: {apiKeys: [{name: a, sha256: " + hash + "}]}\n", "the key opens nothing"},
		{"an admin of nothing", "identity: {apiKeys: [{name: a, sha256: " + hash + ", roles: [tenantAdmin]}]}\n", "a tenantAdmin needs the tenants"},
		{"a user header with another meaning", "identity: {apiKeys: [{name: a, sha256: " + hash + ", tenants: {'*': ['*']}, userHeader: authorization}]}\n", "has another meaning; choose another one, such as X-Vance-User"},
		{"a user header that is none", "identity: {apiKeys: [{name: a, sha256: " + hash + ", tenants: {'*': ['*']}, userHeader: 'X User'}]}\n", "this is not a header name"},
		{"two keys of one name", "identity: {apiKeys: [{name: a, sha256: " + hash + ", roles: [operator]}, {name: a, sha256: " + strings.Repeat("a", 64) + ", roles: [operator]}]}\n", "identity.apiKeys[1].name: another key has this name"},
		{"a tenant with a path in it", "identity: {apiKeys: [{name: a, sha256: " + hash + ", tenants: {'../x': ['*']}}]}\n", "a name begins with a letter"},
		{"onLost", "identity: {apiKeys: [{name: a, sha256: " + hash + ", roles: [operator], onLost: retry}]}\n", `one of reopen, notFound is wanted`},
		{"a jwt without its audience", "identity: {jwt: {issuer: a, jwksURL: 'https://a/keys'}}\n", "identity.jwt.audience: this key is required"},
		{"a jwksURL that is none", "identity: {jwt: {issuer: a, audience: b, jwksURL: /keys}}\n", "identity.jwt.jwksURL: an absolute URL is wanted"},
		{"an origin with a path", "origins: ['https://a.example/x']\n", "origins[0]: an origin is scheme://host"},
		{"an egress entry that is none", "egress: {allow: ['http://x']}\n", "egress.allow"},
		{"an unknown preset", "tex: [{name: a, preset: word, upstream: 'http://t'}]\n", `tex[0].preset: "word" is not one of rbehzadan; how other services are described stands in examples/tex`},
		{"a service without a mode", "tex: [{name: a, upstream: 'http://t'}]\n", `tex[0].mode: "" is neither job nor sync`},
		{"a service with a user in its URL", "tex: [{name: a, preset: rbehzadan, upstream: 'http://u:p@t'}]\n", "tex[0].upstream: want an http or https base URL without user"},
		{"a service that forwards", "tex: [{name: a, preset: rbehzadan, upstream: 'http://t', auth: {type: forward}}]\n", "tex[0].auth.type: the gateway polls abandoned jobs with its own key"},
		{"a second submit without its id", "tex: [{name: a, mode: job, upstream: 'http://t', submit: [{match: {path: /a}, jobId: [{json: /id}]}, {match: {path: /b}}], poll: {match: {path: '/{job}'}, terminal: [{status: [404], outcome: gone}]}}]\n", "tex[0].submit[1].jobId: is missing"},
		{"a submit that is a text", "tex: [{name: a, mode: sync, upstream: 'http://t', submit: /a}]\n", "tex[0].submit: a list is wanted"},
		{"a lease that a setting may take off and none is said", "tex: [{name: a, preset: rbehzadan, upstream: 'http://t', optional: true}]\n", "tex[0].optional: it says that a setting may take off the lease"},
		{"a key without its header", "tex: [{name: a, preset: rbehzadan, upstream: 'http://t', auth: {type: apiKey, value: x}}]\n", "tex[0].auth.headerName: auth of type apiKey needs the name of its header"},
		{"a job service without polls", "tex: [{name: a, mode: job, upstream: 'http://t', submit: {match: {methods: [POST], path: /x}}}]\n", "tex[0].poll: a service in job mode needs a poll route"},
		{"a result that any client could fetch", "tex: [{name: a, preset: rbehzadan, upstream: 'http://t', result: {match: {path: /pdf}}}]\n", "tex[0].result.match.path: has no {job}"},
		{"a path that is none", "tex: [{name: a, preset: rbehzadan, upstream: 'http://t', submit: {match: {path: '/a{'}}}]\n", "has { without }"},
		{"a regular expression that is none", "tex: [{name: a, preset: rbehzadan, upstream: 'http://t', submit: {jobId: [{header: Location, regex: '('}]}}]\n", "this is not a regular expression"},
		{"a collector that is none", "telemetry: {otlpEndpoint: 'collector:4317'}\n", "telemetry.otlpEndpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("gateway.yaml", []byte(tc.text), env())
			if err == nil {
				t.Fatal("the file was taken")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant … %s …", err, tc.want)
			}
		})
	}

	t.Run("every problem is reported, in the order of the file", func(t *testing.T) {
		_, err := Parse("gateway.yaml", []byte("nope: 1\nlimits:\n  perPod: 0\n  waiters: x\nlisten: here\n"), env())
		ps, ok := err.(Problems)
		if !ok || len(ps) != 4 {
			t.Fatalf("got %v", err)
		}
		if ps[0].Line != 1 || ps[1].Line != 3 || ps[2].Line != 4 || ps[3].Line != 5 || ps[1].Key != "limits.perPod" {
			t.Errorf("got %+v", ps)
		}
	})

	t.Run("an unset variable is one problem and not two", func(t *testing.T) {
		_, err := Parse("gateway.yaml", []byte("internal: {tokens: [${A}]}\npod: {endpoint: ${B}}\nstore: {kind: mongodb, uri: ${C}}\nsession: {keys: [${D}]}\n"), env())
		if ps, _ := err.(Problems); len(ps) != 4 {
			t.Errorf("got %v", err)
		}
	})

	t.Run("what came out of a variable or is secret is never quoted", func(t *testing.T) {
		_, err := Parse("gateway.yaml", []byte("limits: {perPod: '${S}'}\ninternal: {tokens: [hunter2]}\nsession: {keys: [hunter2]}\nstore: {kind: '${S}'}\n"), env("S", "hunter2"))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	})

	t.Run("a file that cannot be read says so", func(t *testing.T) {
		_, err := Load(filepath.Join(t.TempDir(), "gateway.yaml"), env())
		if err == nil || !strings.Contains(err.Error(), "gateway.yaml: the file cannot be read: no such file or directory") {
			t.Errorf("got %v", err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"{}", "listen: :80\n", "tex: [{name: a, preset: rbehzadan, upstream: 'http://t'}]", "a: &b [*b]", "store: {path: '${A:-b}'}",
		"identity: {apiKeys: [{name: a, sha256: 00, tenants: {x: [y]}}]}", "? {a: b}\n: c\n", "<<: [1]\n", "\xef\xbb\xbfa: b", "tex: {a: 1}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		g, err := Parse("gateway.yaml", text, env("A", "x"))
		if (g == nil) == (err == nil) {
			t.Fatal("neither a gateway nor an error, or both")
		}
		if err == nil && (g.Limits.PerPod < 1 || g.Pod.StaleAfter < 2*g.Pod.Heartbeat) {
			t.Fatalf("an impossible gateway: %+v", g)
		}
	})
}

// TestAPipeOrDeviceIsNoConfiguration would not end where one were read.
func TestAPipeOrDeviceIsNoConfiguration(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "gateway.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, "/dev/zero", dir} {
		if _, err := Load(path, os.LookupEnv); err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := Parse(filepath.Join(dir, "other.yaml"), []byte("internal: {tokens: ['${file:gateway.yaml}']}\n"), os.LookupEnv)
	if err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
		t.Errorf("in a variable: %v", err)
	}
}
