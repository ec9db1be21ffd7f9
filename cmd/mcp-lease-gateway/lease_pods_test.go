//go:build external

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// operate runs the built program's lease command as an operator does.
func operate(t *testing.T, p *process.Process, args ...string) (code int, out, errs string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), process.Binary(t), append([]string{"lease", "--config", filepath.Join(p.Dir, "gateway.yaml")}, args...)...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), o.String(), e.String()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, o.String(), e.String()
}

const initializeMessage = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// nobodyLives waits until the upstream has no session.
func nobodyLives(t *testing.T, upstream *browser.Server) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for upstream.Stats().Live != 0 {
		select {
		case <-deadline:
			t.Fatalf("%d sessions live on", upstream.Stats().Live)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// openSession opens an MCP session and returns its id.
func openSession(t *testing.T, p *process.Process) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/mcp/acme/thesis/browser", strings.NewReader(initializeMessage))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, _ := io.ReadAll(res.Body)
	id := res.Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatalf("%d %s", res.StatusCode, body)
	}
	return id
}

func TestAnOperatorOnRealPods(t *testing.T) {
	for _, kind := range []string{"embedded", "mongodb"} {
		t.Run("with the "+kind+" store", func(t *testing.T) {
			upstream := browser.New(browser.Behavior{})
			defer upstream.Close()
			srv := httptest.NewServer(upstream)
			defer srv.Close()
			c := process.Config{Documents: map[string]string{
				"_vance/_tenant/_vance/server-tools/browser.yaml": "type: mcp_server\nparameters: {transport: http, url: \"" + srv.URL + "/mcp\", lease: browser}\n",
				"_vance/_tenant/_vance/config/lease/browser.yaml": "name: browser\nlevels: {global: 9, user: 2}\nwaitMs: 0\n",
				"acme/thesis/_vance/config/lease/browser.yaml":    "name: browser\nlevels: {global: 99, user: 1}\n",
			}}
			if kind == "mongodb" {
				uri, database := mongo.Database(t)
				c.Store = "kind: mongodb\nuri: " + uri + "\ndatabase: " + database
			}
			p := process.Start(t, c)
			openSession(t, p)

			code, out, errs := operate(t, p, "list", "-o", "json")
			var page view.HolderPage
			if err := json.Unmarshal([]byte(out), &page); err != nil || code != 0 || len(page.Holders) != 1 || page.Holders[0].User != "ada" {
				t.Fatalf("%d %v %s %s", code, err, out, errs)
			}
			token := page.Holders[0].Token
			if code, out, errs := operate(t, p, "counters"); code != 0 || !strings.Contains(out, "acme/ada") || !strings.Contains(out, "global") {
				t.Errorf("%d %s %s", code, out, errs)
			}
			if code, out, errs := operate(t, p, "definition", "browser", "--tenant", "acme", "--project", "thesis"); code != 0 || !strings.Contains(out, "99") || !strings.Contains(out, "project") {
				t.Errorf("%d %s %s", code, out, errs)
			}
			if code, out, errs := operate(t, p, "revoke", token, "--yes"); code != 0 {
				t.Fatalf("%d %s %s", code, out, errs)
			}
			// The dispatcher ends the session at the upstream; a sweep only makes sure.
			if code, out, errs := operate(t, p, "sweep"); code != 0 {
				t.Errorf("%d %s %s", code, out, errs)
			}
			nobodyLives(t, upstream)
			if code, out, _ := operate(t, p, "list", "--revoked"); code != 0 || !strings.Contains(out, token) {
				t.Errorf("%d %s", code, out)
			}
			if code, out, errs := operate(t, p, "reconcile"); code != 0 {
				t.Errorf("%d %s %s", code, out, errs)
			}

			openSession(t, p)
			if kind == "embedded" {
				if code, _, errs := operate(t, p, "revoke-pod", "any", "--yes", "--force"); code != 4 || !strings.Contains(errs, "process") {
					t.Errorf("beside a running pod: %d %s", code, errs)
				}
			}
			p.Kill()
			if kind == "mongodb" { // read directly, so with every pod down
				if code, out, errs := operate(t, p, "list"); code != 0 || !strings.Contains(out, "ada") {
					t.Errorf("%d %s %s", code, out, errs)
				}
			} else if code, _, errs := operate(t, p, "list"); code != 4 {
				t.Errorf("%d %s", code, errs)
			}
			podID := page.Holders[0].Pod
			code, out, errs = operate(t, p, "revoke-pod", podID, "--yes", "--force")
			if code != 0 || !strings.Contains(out, "revoked 1 lease(s)") || !strings.Contains(out, "no handler has run") {
				t.Errorf("%d %s %s", code, out, errs)
			}
			// What nobody ended is ended by the pod that comes up.
			p = p.Restart(t)
			nobodyLives(t, upstream)
			eventually(t, "what was revoked by force is counted by the pod that ended it", func() bool {
				return seriesOf(t, p, `vance_lease_reap_total{reason="revoke"}`) == 1
			})
		})
	}
}
