//go:build external

package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

func TestPromtoolAcceptsTheRulesAndTheyFireAsTheyShould(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Fatal("promtool is missing: apt-get install prometheus (make test does)")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// A query that does not parse is seen by nobody but the person at the dashboard.
func TestPromtoolParsesTheDashboardsQueries(t *testing.T) {
	text, err := os.ReadFile("grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []panel }
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$pod", ".*", "$resource", ".*")
	type record struct{ Record, Expr string }
	var records []record
	for _, p := range d.Panels {
		for i, q := range p.Targets {
			records = append(records, record{fmt.Sprintf("panel:%d:%d", p.ID, i), filled.Replace(q.Expr)})
		}
	}
	file, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": records}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", path).CombinedOutput(); err != nil || len(records) < 20 {
		t.Errorf("%d queries: %v\n%s", len(records), err, out)
	}
}

func TestPromtoolAcceptsTheComposeFilesPrometheus(t *testing.T) {
	text, err := os.ReadFile("compose/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs("prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "/etc/prometheus/rules.yaml", rules)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "config", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
