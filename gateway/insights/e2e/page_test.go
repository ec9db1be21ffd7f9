//go:build external

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

const (
	brainKey = "key-of-a-program-that-speaks-for-users"
	adminKey = "key-of-acmes-admin"
)

func sha(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

// client is one MCP client's session.
type client struct {
	url, user, id string
}

// send posts one message and returns status, session id and body.
func (c *client) send(t *testing.T, message string) (int, string, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + brainKey, "X-Vance-User": c.user, "Mcp-Session-Id": c.id,
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
		if v != "" {
			r.Header.Set(k, v)
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Mcp-Session-Id"), string(body)
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`

func open(t *testing.T, url, user string) (c *client, answer string) {
	t.Helper()
	c = &client{url: url, user: user}
	status, id, body := c.send(t, initialize)
	if status != http.StatusOK {
		t.Fatalf("initialize: %d %s", status, body)
	}
	c.id = id
	return c, body
}

func TestAnAdminSeesFiltersAndRevokesInARealBrowser(t *testing.T) {
	parts, err := filepath.Abs("../../../testservers/node")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(parts, "node_modules/playwright-core")); err != nil {
		t.Fatal("the Node packages are missing: make test installs them")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: make test installs it")
	}
	upstream := browser.New(browser.Behavior{})
	defer upstream.Close()
	srv := httptest.NewServer(upstream)
	defer srv.Close()

	server := func(lease string) string {
		return "type: mcp_server\nparameters:\n  transport: http\n  url: " + srv.URL + "/mcp\n  lease: " + lease + "\n  onBusy: refuse\n"
	}
	p := pod.Start(t, pod.Config{
		Documents: map[string]string{
			"_vance/_tenant/_vance/server-tools/browser.yaml":  server("browser"),
			"_vance/_tenant/_vance/server-tools/notebook.yaml": server("notebook"),
			"_vance/_tenant/_vance/config/lease/browser.yaml":  "name: browser\nlevels: {global: 40, tenant: 8, project: 4, user: 2}\nttlSeconds: 300\nwaitMs: 0\n",
			"_vance/_tenant/_vance/config/lease/notebook.yaml": "name: notebook\nlevels: {global: 20, tenant: 5, user: 1}\nttlSeconds: 900\nwaitMs: 0\n",
		},
		Identity: "apiKeys:\n- {name: brain, sha256: " + sha(brainKey) + ", tenants: {\"*\": [\"*\"]}, userHeader: X-Vance-User, onLost: notFound}\n" +
			"- {name: acme-admin, sha256: " + sha(adminKey) + ", tenants: {acme: [\"*\"]}, roles: [tenantAdmin]}\n",
	})
	at := func(project, server string) string { return p.URL + "/mcp/acme/" + project + "/" + server }
	var clients []*client
	for _, s := range [][3]string{{"thesis", "browser", "ada"}, {"thesis", "browser", "ada"}, {"thesis", "browser", "grace"}, {"thesis", "browser", "edsger"},
		{"website", "browser", "linus"}, {"lab", "notebook", "grace"}, {"lab", "notebook", "barbara"}} {
		c, body := open(t, at(s[0], s[1]), s[2])
		if c.id == "" {
			t.Fatalf("%v was refused: %s", s, body)
		}
		clients = append(clients, c)
	}
	other, _ := open(t, p.URL+"/mcp/umbrella/secret-project/browser", "mallory")
	for _, full := range [][3]string{{"website", "browser", "ada"}, {"thesis", "browser", "donald"}, {"lab", "notebook", "barbara"}} {
		if c, body := open(t, at(full[0], full[1]), full[2]); c.id != "" || !strings.Contains(body, "LEASE_BUSY") {
			t.Fatalf("%v was not refused: %s", full, body)
		}
	}
	// The slot of a session that has ended, and the record of who took it.
	gone, _ := open(t, at("website", "browser"), "donald")
	revokeByAPI(t, p, "donald")

	shots := t.TempDir()
	ending := clients[4]
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "page.mjs")
	cmd.Env = append(os.Environ(), "NODE_PARTS="+parts, "CHROMIUM="+chromium, "PAGE="+p.URL+"/insights/acme/leases", "KEY="+adminKey, "SHOTS="+shots,
		"TOTAL="+fmt.Sprint(len(clients)), "OF_ADA=2", "END_URL="+ending.url, "END_SESSION="+ending.id, "END_USER="+ending.user, "BRAIN="+brainKey)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	t.Log("\n" + out.String())
	if err != nil {
		t.Fatal(err)
	}

	// Two were revoked by the page, one ended by its client, one by the API: the
	// upstream has what is left, and another tenant's.
	deadline := time.After(30 * time.Second)
	for upstream.Stats().Live != len(clients)-3+1 {
		select {
		case <-deadline:
			t.Fatalf("the upstream has %d sessions, want %d", upstream.Stats().Live, len(clients)-3+1)
		case <-time.After(50 * time.Millisecond):
		}
	}
	lost := 0
	for _, c := range append(clients, gone) {
		status, _, body := c.send(t, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"snapshot","arguments":{}}}`)
		if status == http.StatusNotFound && strings.Contains(body, "LEASE_LOST") && strings.Contains(body, "revoke") {
			lost++
		}
	}
	if lost != 3 {
		t.Errorf("%d clients were told that their lease was revoked, want 3", lost)
	}
	if status, _, body := other.send(t, `{"jsonrpc":"2.0","id":2,"method":"ping"}`); status != http.StatusOK {
		t.Errorf("another tenant's session has ended: %d %s", status, body)
	}
	if name := os.Getenv("INSIGHTS_PNG"); name != "" {
		shot, err := os.ReadFile(filepath.Join(shots, "insights.png"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, shot, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// revokeByAPI takes a user's lease away as the tenant's admin.
func revokeByAPI(t *testing.T, p *pod.Process, user string) {
	t.Helper()
	call := func(method, path string) []byte {
		r, err := http.NewRequestWithContext(t.Context(), method, p.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+adminKey)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %d %v %s", method, path, res.StatusCode, err, body)
		}
		return body
	}
	var seen struct{ Holders []struct{ Token string } }
	if err := json.Unmarshal(call("GET", "/brain/acme/admin/leases?user="+user), &seen); err != nil || len(seen.Holders) != 1 {
		t.Fatalf("%v %+v", err, seen)
	}
	call("POST", "/brain/acme/admin/leases/"+seen.Holders[0].Token+"/revoke")
}
