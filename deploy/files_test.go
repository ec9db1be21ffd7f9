package deploy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/internal/telemetry"
)

// strict decodes one document and refuses keys that v does not have.
func strict(t *testing.T, text []byte, v any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

// checkDocuments resolves every lease and server of documents as a pod does.
func checkDocuments(t *testing.T, documents map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for path, text := range documents {
		name := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g, err := config.Parse("gateway.yaml", []byte("identity: {}\n"), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	vars := config.Variables(dir, os.LookupEnv)
	limits := definition.Limits{MaxTTL: g.Lease.MaxTTL, MaxWait: g.Lease.MaxWait}
	cascade := document.NewCascade(document.NewDir(dir))
	definitions := definition.NewCascaded(cascade, limits, vars)
	servers := server.NewCascaded(cascade, server.NewSecrets(filepath.Join(dir, "secrets")), limits, vars)
	for path := range documents {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		if strings.Contains(path, "/lease/") {
			if d, err := definitions.Resolve(context.Background(), "acme", "thesis", name); err != nil || d.Noop() {
				t.Errorf("%s: %v, %+v", path, err, d)
			}
			continue
		}
		if d, err := servers.Resolve(context.Background(), "acme", "thesis", name); err != nil || d.Lease == "" {
			t.Errorf("%s: %v, %+v", path, err, d)
		}
	}
}

// composeFile is what the compose file uses of the compose specification.
type composeFile struct {
	Name     string
	Gateway  composeService `yaml:"x-gateway"`
	Services map[string]composeService
	Networks map[string]struct{ Internal bool }
	Volumes  map[string]struct{}
}

type composeService struct {
	Image       string
	Build       *struct{ Context, Target string }
	EnvFile     []string `yaml:"env_file"`
	Environment map[string]string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Volumes     []string
	ReadOnly    bool `yaml:"read_only"`
	Tmpfs       []string
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	StopGrace   string   `yaml:"stop_grace_period"`
	Restart     string
	Networks    []string
	Ports       []string
	Command     []string
	WorkingDir  string `yaml:"working_dir"`
	Healthcheck *struct {
		Test              []string
		Interval, Timeout string
		StartPeriod       string `yaml:"start_period"`
		Retries           int
	}
}

func TestTheComposeFileHoldsTogether(t *testing.T) {
	text, err := os.ReadFile("compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c composeFile
	strict(t, text, &c)
	for name, s := range c.Services {
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(from, ".") {
				if _, err := os.Stat(filepath.Join("compose", from)); err != nil {
					t.Errorf("%s mounts %v", name, err)
				}
			} else if _, ok := c.Volumes[from]; !ok {
				t.Errorf("%s mounts the volume %s, which is not declared", name, from)
			}
		}
		for _, n := range s.Networks {
			if _, ok := c.Networks[n]; !ok {
				t.Errorf("%s is in the network %s, which is not declared", name, n)
			}
		}
		if s.Environment["POD_ENDPOINT"] != "" && (s.Healthcheck == nil || strings.Join(s.Healthcheck.Test, " ") != "CMD mcp-lease-gateway healthcheck --config /etc/mcp-lease-gateway/gateway.yaml") {
			t.Errorf("%s has the health check %+v", name, s.Healthcheck)
		}
		for d := range s.DependsOn {
			if on, ok := c.Services[d]; !ok || on.Healthcheck == nil {
				t.Errorf("%s waits for the health of %s", name, d)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") || strings.HasSuffix(p, ":8081") || strings.HasPrefix(name, "gateway") {
				t.Errorf("%s publishes %s", name, p)
			}
		}
		if s.Build != nil {
			dockerfile, err := os.ReadFile(filepath.Join("compose", s.Build.Context, "Dockerfile"))
			if err != nil || !bytes.Contains(dockerfile, []byte(" AS "+s.Build.Target+"\n")) {
				t.Errorf("%s builds %+v: %v", name, s.Build, err)
			}
		}
	}
	if _, err := os.Stat("../testservers/cmd/browser/main.go"); err != nil || !slices.Contains(c.Services["browser"].Command, "./testservers/cmd/browser") {
		t.Errorf("the test server: %v", err)
	}

	env := readEnv(t, "compose/example.env")
	endpoints := map[string]bool{}
	for name, s := range c.Services {
		endpoint := s.Environment["POD_ENDPOINT"]
		if endpoint == "" {
			continue
		}
		if host, _, _ := strings.Cut(endpoint, ":"); host != name || endpoints[endpoint] {
			t.Errorf("%s says that it is at %s", name, endpoint)
		}
		endpoints[endpoint] = true
		g := load(t, "compose/gateway.yaml", env, map[string]string{"POD_ENDPOINT": endpoint})
		if g.Store.Kind != "mongodb" || g.Store.URI != "mongodb://mongodb:27017/" {
			t.Errorf("store %+v", g.Store)
		}
	}
	if len(endpoints) != 2 {
		t.Errorf("%d pods", len(endpoints))
	}
	documents := map[string]string{}
	root := "compose/documents"
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(root, path)
		documents[rel] = string(text)
		return err
	})
	if err != nil || len(documents) == 0 {
		t.Fatal(err)
	}
	checkDocuments(t, documents)
}

func TestTheExampleKeysOpenWhatTheirCommentSays(t *testing.T) {
	g := load(t, "compose/gateway.yaml", readEnv(t, "compose/example.env"), map[string]string{"POD_ENDPOINT": "gateway-1:8081"})
	a, err := identity.New(t.Context(), identity.Options{Identity: g.Identity})
	if err != nil {
		t.Fatal(err)
	}
	if c := a.Key("user-example-key"); c == nil || c.TenantAdmin("demo") {
		t.Error("user-example-key")
	}
	if c := a.Key("admin-example-key"); c == nil || !c.TenantAdmin("demo") || c.TenantAdmin("acme") {
		t.Error("admin-example-key")
	}
}

func load(t *testing.T, path string, envs ...map[string]string) *config.Gateway {
	t.Helper()
	g, err := config.Load(path, func(k string) (string, bool) {
		for _, env := range envs {
			if v, ok := env[k]; ok {
				return v, true
			}
		}
		return "", false
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func readEnv(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	sc := bufio.NewScanner(bytes.NewReader(text))
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" && !strings.HasPrefix(line, "#") {
			k, v, ok := strings.Cut(line, "=")
			if !ok {
				t.Fatalf("%s: %q", path, line)
			}
			env[k] = v
		}
	}
	return env
}

func TestTheUnitGivesTheProgramTheTimeThatItNeeds(t *testing.T) {
	text, err := os.ReadFile("systemd/mcp-lease-gateway.service")
	if err != nil {
		t.Fatal(err)
	}
	// A unit that is killed in the middle of its stop would leave sessions open.
	for _, line := range []string{"KillSignal=SIGTERM", "KillMode=mixed", "TimeoutStopSec=50", "DynamicUser=yes"} {
		if !bytes.Contains(text, []byte("\n"+line+"\n")) {
			t.Errorf("the unit does not say %s", line)
		}
	}
}

// registered are the names of the series that the gateway has.
type registered map[string]bool

func (r registered) Register(c prometheus.Collector) error { r.MustRegister(c); return nil }
func (r registered) Unregister(prometheus.Collector) bool  { return false }

func (r registered) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		descs := make(chan *prometheus.Desc, 16)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			_, name, _ := strings.Cut(d.String(), `fqName: "`)
			name, _, _ = strings.Cut(name, `"`)
			r[name] = true
		}
	}
}

var (
	series    = regexp.MustCompile(`\bvance_[a-z_]+`)
	histogram = regexp.MustCompile(`_(bucket|count|sum)$`)
	ours      = sync.OnceValue(func() registered {
		r := registered{}
		telemetry.New(r)
		telemetry.CountAudit(r, nil)
		return r
	})
)

// known checks the series in a text against those that the gateway registers.
func known(t *testing.T, name, text string) {
	t.Helper()
	found := series.FindAllString(text, -1)
	for _, s := range found {
		if !ours()[s] && !ours()[histogram.ReplaceAllString(s, "")] {
			t.Errorf("%s uses %s, which the gateway does not have", name, s)
		}
	}
	if len(found) == 0 && !strings.Contains(text, "up{") && !strings.Contains(text, "process_") {
		t.Errorf("%s names no series", name)
	}
}

// panel is what is looked at of a panel of Grafana; a row has none of the rest.
type panel struct {
	ID                       int
	Title, Type, Description string
	GridPos                  struct{ X, Y, W, H int } `json:"gridPos"`
	Targets                  []struct{ RefID, Expr string }
}

func TestTheDashboardUsesSeriesThatThereAre(t *testing.T) {
	text, err := os.ReadFile("grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title string
		Templating struct {
			List []struct{ Name, Query string }
		}
		Annotations struct {
			List []struct{ Name, Expr string }
		}
		Panels []panel
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	variables := map[string]bool{}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	for _, name := range []string{"datasource", "job", "pod", "resource"} {
		if !variables[name] {
			t.Errorf("there is no variable %s", name)
		}
	}
	if len(d.Annotations.List) == 0 {
		t.Error("no annotations")
	}
	rows := 0
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			rows++
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s has no description or no query", p.Title)
		}
		for _, q := range p.Targets {
			known(t, p.Title, q.Expr)
			if !strings.Contains(q.Expr, `job=~"$job"`) || !strings.Contains(q.Expr, `instance=~"$pod"`) {
				t.Errorf("%s is not narrowed by job and pod: %s", p.Title, q.Expr)
			}
		}
	}
	if rows < 3 || d.Panels[0].Type != "row" {
		t.Errorf("%d rows", rows)
	}
}

// rules is a Prometheus rule file.
type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

// tried are the alerts that rules_test.yaml expects to fire, and to be silent.
func tried(t *testing.T) (firing, silent map[string]bool) {
	t.Helper()
	text, err := os.ReadFile("prometheus/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []yaml.Node `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	firing, silent = map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, a := range test.AlertRuleTest {
			if len(a.ExpAlerts) == 0 {
				silent[a.Alertname] = true
			} else {
				firing[a.Alertname] = true
			}
		}
	}
	return firing, silent
}

func TestEveryAlertIsExplainedAndTried(t *testing.T) {
	text, err := os.ReadFile("prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r rules
	strict(t, text, &r)
	guide, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	firing, silent := tried(t)
	for _, rule := range r.Groups[0].Rules {
		known(t, rule.Alert, rule.Expr)
		runbook := "https://github.com/vancetope/mcp-lease-gateway/blob/main/docs/operations.md#" + strings.ToLower(rule.Alert)
		if rule.Annotations["summary"] == "" || rule.Annotations["runbook_url"] != runbook {
			t.Errorf("%s: %v", rule.Alert, rule.Annotations)
		}
		_, section, ok := strings.Cut(string(guide), "\n### "+rule.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		for _, part := range []string{"**Means**", "**Look**", "**Act**"} {
			if !ok || !strings.Contains(section, part) {
				t.Errorf("docs/operations.md does not say %s of %s", part, rule.Alert)
			}
		}
		if !firing[rule.Alert] || !silent[rule.Alert] {
			t.Errorf("rules_test.yaml has %s firing: %t, silent: %t", rule.Alert, firing[rule.Alert], silent[rule.Alert])
		}
	}
}
