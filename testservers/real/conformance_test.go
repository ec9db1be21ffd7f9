//go:build external

package real

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// A revision of the suite, and how a server of it is put behind the gateway.
type era struct {
	requirements string
	stateless    bool
	route        string // of the server's document
}

var (
	withSessions = era{requirements: "2025-11-25", route: "  lease: everything\n"}
	// A server without a lease is passed through.
	withoutSessions = era{requirements: "2026-07-28", stateless: true}
)

// everything starts go-sdk's conformance server and a pod in front of it. It
// returns both URLs.
func (e era) everything(t *testing.T) (direct, gateway string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "everything-server")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server").CombinedOutput()
	if err != nil {
		t.Fatalf("build the conformance server: %v\n%s", err, out)
	}
	port := freePort(t)
	start(t, port, exec.Command(bin, "-http", fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("-stateless=%v", e.stateless)))
	direct = fmt.Sprintf("http://127.0.0.1:%d/", port)
	p := pod.Start(t, pod.Config{Documents: map[string]string{
		"_vance/_tenant/_vance/config/lease/everything.yaml": "name: everything\nlevels: {user: 500, project: 500, tenant: 500, global: 500}\n",
		"_vance/_tenant/_vance/server-tools/everything.yaml": fmt.Sprintf(
			"name: everything\ntype: mcp_server\nparameters:\n  transport: http\n  url: %s\n%s", direct, e.route),
	}})
	return direct, p.URL + "/mcp/acme/thesis/everything"
}

var total = regexp.MustCompile(`Total: \d+ passed, \d+ failed`)

// conformance runs the suite and returns the checks that failed and its total.
func (e era) conformance(t *testing.T, url string) (failures []string, sum string) {
	t.Helper()
	dir, out := nodeDir(t), t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules/.bin/node"),
		filepath.Join(dir, "node_modules/.bin/conformance"), "server", "--url", url, "--requirements", e.requirements, "-o", out)
	cmd.Dir = t.TempDir()
	printed, _ := cmd.CombinedOutput() // its exit code is 1 for failures, which are counted below
	sum = total.FindString(string(printed))
	if sum == "" {
		t.Fatalf("the conformance suite printed no total:\n%s", printed)
	}
	files, err := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	if err != nil || len(files) < 30 {
		t.Fatalf("the conformance suite wrote %d results (%v):\n%s", len(files), err, printed)
	}
	stamp := regexp.MustCompile(`-\d{4}-\d\d-\d\dT.*$`)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var checks []struct{ ID, Status, ErrorMessage string }
		if err := json.Unmarshal(text, &checks); err != nil {
			t.Fatal(err)
		}
		scenario := stamp.ReplaceAllString(filepath.Base(filepath.Dir(f)), "")
		for _, c := range checks {
			if c.Status == "FAILURE" {
				failures = append(failures, scenario+"/"+c.ID)
				t.Logf("%s: %s/%s: %s", url, scenario, c.ID, c.ErrorMessage)
			}
		}
	}
	sort.Strings(failures)
	return failures, sum
}

func TestConformanceIsThatOfTheServerBehind(t *testing.T) {
	for name, e := range map[string]era{"with sessions and a lease": withSessions, "without sessions": withoutSessions} {
		t.Run(name, func(t *testing.T) {
			direct, gateway := e.everything(t)
			wantFailures, wantSum := e.conformance(t, direct)
			gotFailures, gotSum := e.conformance(t, gateway)
			t.Logf("direct: %s; through the gateway: %s", wantSum, gotSum)
			if diff := cmp.Diff(wantFailures, gotFailures); diff != "" {
				t.Errorf("failures direct (-) and through the gateway (+):\n%s", diff)
			}
			if wantSum != gotSum {
				t.Errorf("through the gateway %q, direct %q", gotSum, wantSum)
			}
		})
	}
}

// TestAnswersAreThoseOfTheServerBehind compares messages, since a check that
// only looks for a text is content with an error's.
func TestAnswersAreThoseOfTheServerBehind(t *testing.T) {
	requests := []string{
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":"a b","method":"tools/call","params":{"name":"test_simple_text","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"test_image_content","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"test_error_handling","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"no such tool"}}`,
		`{"jsonrpc":"2.0","id":6,"method":"no/such/method"}`,
		`{"jsonrpc":"2.0","id":7,"method":"resources/list","params":{}}`,
		`{"jsonrpc":"2.0","id":8,"method":"prompts/list"}`,
		`{"jsonrpc":"2.0","id":9,"method":"ping"}`,
	}
	same(t, withSessions, func(t *testing.T, url string) (answers []string) {
		opened := post(t, url, nil, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
		answers = append(answers, read(t, opened))
		headers := map[string]string{"Mcp-Session-Id": opened.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version": "2025-11-25"}
		for _, r := range append([]string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`}, requests...) {
			answers = append(answers, read(t, post(t, url, headers, r)))
		}
		return answers
	})
}

// TestAnswersWithoutSessionsAreThoseOfTheServerBehind does so for requests that
// carry all that the server must know.
func TestAnswersWithoutSessionsAreThoseOfTheServerBehind(t *testing.T) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"}}`
	requests := []struct{ method, name, body string }{
		{"server/discover", "", `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + meta + `}}`},
		{"tools/list", "", `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/list","params":{` + meta + `}}`},
		{"tools/call", "test_simple_text", `{"jsonrpc":"2.0","id":"a b","method":"tools/call","params":{"name":"test_simple_text","arguments":{},` + meta + `}}`},
		{"tools/call", "test_image_content", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"test_image_content","arguments":{},` + meta + `}}`},
		{"tools/call", "test_error_handling", `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"test_error_handling","arguments":{},` + meta + `}}`},
		{"tools/call", "no such tool", `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"no such tool",` + meta + `}}`},
		{"no/such/method", "", `{"jsonrpc":"2.0","id":6,"method":"no/such/method","params":{` + meta + `}}`},
		{"resources/list", "", `{"jsonrpc":"2.0","id":7,"method":"resources/list","params":{` + meta + `}}`},
		{"ping", "", `{"jsonrpc":"2.0","id":8,"method":"ping","params":{` + meta + `}}`},
		{"tools/list", "", `{"jsonrpc":"2.0","id":9,"method":"tools/list","params":{}}`},
		{"tools/call", "another name", `{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"test_simple_text","arguments":{},` + meta + `}}`},
	}
	same(t, withoutSessions, func(t *testing.T, url string) (answers []string) {
		for _, r := range requests {
			headers := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": r.method}
			if r.name != "" {
				headers["Mcp-Name"] = r.name
			}
			answers = append(answers, r.method+" "+r.name+": "+read(t, post(t, url, headers, r.body)))
		}
		return answers
	})
}

// same demands that a talk goes alike direct and through the gateway.
func same(t *testing.T, e era, talk func(t *testing.T, url string) []string) {
	t.Helper()
	direct, gateway := e.everything(t)
	want := talk(t, direct)
	if diff := cmp.Diff(want, talk(t, gateway)); diff != "" {
		t.Errorf("answers direct (-) and through the gateway (+):\n%s", diff)
	}
}

func post(t *testing.T, url string, headers map[string]string, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// read is the status, the type and the messages of an answer. Event ids differ
// from run to run; the messages must not.
func read(t *testing.T, res *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	kind := res.Header.Get("Content-Type")
	if !strings.HasPrefix(kind, "text/event-stream") {
		return fmt.Sprintf("%d %s\n%s", res.StatusCode, kind, text)
	}
	var data [][]byte
	for line := range bytes.Lines(text) {
		if after, ok := bytes.CutPrefix(line, []byte("data: ")); ok && len(bytes.TrimSpace(after)) > 0 {
			data = append(data, after)
		}
	}
	return fmt.Sprintf("%d %s\n%s", res.StatusCode, kind, bytes.Join(data, nil))
}
