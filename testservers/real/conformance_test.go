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

// everything starts go-sdk's conformance server with sessions and a pod in
// front of it, on a route with a lease. It returns both URLs.
func everything(t *testing.T) (direct, gateway string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "everything-server")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server").CombinedOutput()
	if err != nil {
		t.Fatalf("build the conformance server: %v\n%s", err, out)
	}
	port := freePort(t)
	start(t, port, exec.Command(bin, "-http", fmt.Sprintf("127.0.0.1:%d", port), "-stateless=false"))
	direct = fmt.Sprintf("http://127.0.0.1:%d/", port)
	p := pod.Start(t, pod.Config{Documents: map[string]string{
		"_vance/_tenant/_vance/config/lease/everything.yaml": "name: everything\nlevels: {user: 500, project: 500, tenant: 500, global: 500}\n",
		"_vance/_tenant/_vance/server-tools/everything.yaml": fmt.Sprintf(
			"name: everything\ntype: mcp_server\nparameters:\n  transport: http\n  url: %s\n  lease: everything\n", direct),
	}})
	return direct, p.URL + "/mcp/acme/thesis/everything"
}

var total = regexp.MustCompile(`Total: \d+ passed, \d+ failed`)

// conformance runs the suite and returns the checks that failed and its total.
func conformance(t *testing.T, url string) (failures []string, sum string) {
	t.Helper()
	dir, out := nodeDir(t), t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules/.bin/node"),
		filepath.Join(dir, "node_modules/.bin/conformance"), "server", "--url", url, "--requirements", "2025-11-25", "-o", out)
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
	direct, gateway := everything(t)
	wantFailures, wantSum := conformance(t, direct)
	gotFailures, gotSum := conformance(t, gateway)
	t.Logf("direct: %s; through the gateway: %s", wantSum, gotSum)
	if diff := cmp.Diff(wantFailures, gotFailures); diff != "" {
		t.Errorf("failures direct (-) and through the gateway (+):\n%s", diff)
	}
	if wantSum != gotSum {
		t.Errorf("through the gateway %q, direct %q", gotSum, wantSum)
	}
}

// TestAnswersAreThoseOfTheServerBehind compares messages, since a check that
// only looks for a text is content with an error's.
func TestAnswersAreThoseOfTheServerBehind(t *testing.T) {
	direct, gateway := everything(t)
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
	talk := func(url string) (answers []string) {
		post := func(session, body string) *http.Response {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
			if session != "" {
				req.Header.Set("Mcp-Session-Id", session)
				req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { res.Body.Close() })
			return res
		}
		read := func(res *http.Response) string {
			text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			var data [][]byte // event ids differ from run to run; the messages must not
			for line := range bytes.Lines(text) {
				if after, ok := bytes.CutPrefix(line, []byte("data: ")); ok && len(bytes.TrimSpace(after)) > 0 {
					data = append(data, after)
				}
			}
			return fmt.Sprintf("%d %s\n%s", res.StatusCode, res.Header.Get("Content-Type"), bytes.Join(data, nil))
		}
		opened := post("", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
		answers = append(answers, read(opened))
		session := opened.Header.Get("Mcp-Session-Id")
		answers = append(answers, read(post(session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)))
		for _, r := range requests {
			answers = append(answers, read(post(session, r)))
		}
		return answers
	}
	if diff := cmp.Diff(talk(direct), talk(gateway)); diff != "" {
		t.Errorf("answers direct (-) and through the gateway (+):\n%s", diff)
	}
}
