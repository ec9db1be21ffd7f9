package main

import (
	"bufio"
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
	"syscall"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// upstream is the browser-like server behind the real gateway's process.
func upstream(t *testing.T) (*browser.Server, string) {
	t.Helper()
	s := browser.New(browser.Behavior{})
	srv := httptest.NewServer(s)
	t.Cleanup(func() { s.Close(); srv.Close() })
	return s, srv.URL + "/mcp"
}

const (
	serverPath = "_vance/_tenant/_vance/server-tools/browser.yaml"
	leasePath  = "_vance/_tenant/_vance/config/lease/browser.yaml"
)

func documentsFor(url, levels string) map[string]string {
	return map[string]string{
		serverPath: fmt.Sprintf("name: browser\ntype: mcp_server\nenabled: true\nparameters: {transport: http, url: %q, lease: browser, onBusy: refuse}\n", url),
		leasePath:  fmt.Sprintf("name: browser\nlevels: {%s}\nttlSeconds: 600\nwaitMs: 0\n", levels),
	}
}

// answer is what a request to the gateway has brought.
type answer struct {
	status  int
	session string
	code    string // error.data.code
	message string
	body    string
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

func toolCall(name, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, name, arguments)
}

func send(ctx context.Context, method, url, session, body string, headers ...string) answer {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{body: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	a := answer{status: resp.StatusCode, session: resp.Header.Get("Mcp-Session-Id"), body: string(text)}
	lines := bufio.NewScanner(strings.NewReader(a.body))
	for lines.Scan() {
		var m struct {
			Error struct {
				Message string
				Data    struct{ Code string }
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &m) == nil && m.Error.Message != "" {
			a.code, a.message = m.Error.Data.Code, m.Error.Message
		}
	}
	return a
}

// open opens a session that must be opened.
func open(t *testing.T, url string, headers ...string) string {
	t.Helper()
	a := send(t.Context(), "POST", url, "", initialize, headers...)
	if a.session == "" {
		t.Fatalf("the session was not opened: %+v", a)
	}
	return a.session
}

// eventually waits for what another process does, which sends no event here.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

func TestKill9AndRestartOnTheEmbeddedStore(t *testing.T) {
	t.Parallel()
	up, url := upstream(t)
	p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
	session := open(t, p.URL+"/mcp/acme/thesis/browser")
	if a := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", "", initialize); a.code != "LEASE_BUSY" || a.status != 200 {
		t.Fatalf("a second session of the user: %+v", a)
	}
	p.Kill()
	p = p.Restart(t)
	eventually(t, "the dead process's lease is reaped and its session ended upstream", func() bool { return up.Stats().Live == 0 })
	if a := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", session, toolCall("snapshot", "{}")); a.status != 200 ||
		!strings.Contains(a.body, "LEASE_LOST: the gateway process that held the lease has ended") || !strings.Contains(a.body, `"isError":true`) {
		t.Errorf("a call on the lost session: %+v", a)
	}
	if a := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", session, toolCall("snapshot", "{}")); !strings.Contains(a.body, "no page is open") || up.Stats().Live != 1 {
		t.Errorf("the next call: %+v", a)
	}
}

func TestTerminate(t *testing.T) {
	t.Parallel()
	t.Run("ends sessions, gives leases back and exits with 0", func(t *testing.T) {
		t.Parallel()
		up, url := upstream(t)
		p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
		open(t, p.URL+"/mcp/acme/thesis/browser")
		p.Terminate(t)
		if s := up.Stats(); s.Live != 0 || s.DeleteRequests != 1 {
			t.Errorf("upstream %+v", s)
		}
		p = p.Restart(t)
		open(t, p.URL+"/mcp/acme/thesis/browser") // at once: nothing had to be reaped
	})
	t.Run("and its clients go on after the restart", func(t *testing.T) {
		t.Parallel()
		up, url := upstream(t)
		p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
		session := open(t, p.URL+"/mcp/acme/thesis/browser")
		p.Terminate(t)
		p = p.Restart(t)
		if a := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", session, toolCall("snapshot", "{}")); a.status != 200 ||
			!strings.Contains(a.body, "LEASE_LOST: the gateway was stopped and has closed the session") || !strings.Contains(a.body, `"isError":true`) {
			t.Errorf("the first call: %+v", a)
		}
		if a := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", session, toolCall("snapshot", "{}")); !strings.Contains(a.body, "no page is open") || up.Stats().Live != 1 {
			t.Errorf("the next call: %+v", a)
		}
	})
	t.Run("waits for a call under way", func(t *testing.T) {
		t.Parallel()
		up, url := upstream(t)
		p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
		session := open(t, p.URL+"/mcp/acme/thesis/browser")
		called := make(chan answer, 1)
		go func() {
			called <- send(context.WithoutCancel(t.Context()), "POST", p.URL+"/mcp/acme/thesis/browser", session, toolCall("slow", `{"ms":1500}`))
		}()
		if _, err := up.Wait(t.Context(), func(s browser.Stats) bool { return s.Calls == 1 }); err != nil {
			t.Fatal(err)
		}
		p.Terminate(t)
		if a := <-called; a.status != 200 || a.message != "" {
			t.Errorf("the call: %+v", a)
		}
	})
	t.Run("does not wait after a second signal", func(t *testing.T) {
		t.Parallel()
		up, url := upstream(t)
		p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
		session := open(t, p.URL+"/mcp/acme/thesis/browser")
		go send(context.WithoutCancel(t.Context()), "POST", p.URL+"/mcp/acme/thesis/browser", session, toolCall("slow", `{"ms":600000}`))
		if _, err := up.Wait(t.Context(), func(s browser.Stats) bool { return s.Calls == 1 }); err != nil {
			t.Fatal(err)
		}
		if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pod is not ready while it stops", func() bool {
			return send(t.Context(), "GET", p.Internal+"/readyz", "", "").status == 503
		})
		started := time.Now()
		p.Terminate(t)
		if took := time.Since(started); took > drainTime-time.Second {
			t.Errorf("it took %s after the second signal", took)
		}
		eventually(t, "the session is ended upstream", func() bool { return up.Stats().Live == 0 })
	})
}

func TestASecondProcessOnTheSameStoreIsRefused(t *testing.T) {
	t.Parallel()
	_, url := upstream(t)
	p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
	out, err := exec.Command(process.Binary(t), "serve", "--config", filepath.Join(p.Dir, "gateway.yaml")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "leases.db") || strings.Contains(string(out), "address already in use") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	up, url := upstream(t)
	key := func(name, secret string) string {
		return fmt.Sprintf("- {name: %s, sha256: %x, tenants: {acme: [\"*\"]}, user: %s}", name, sha256.Sum256([]byte(secret)), name)
	}
	p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1"), Identity: "apiKeys:\n" + key("old", "old-secret")})
	file := filepath.Join(p.Dir, "gateway.yaml")
	mcp := p.URL + "/mcp/acme/thesis/browser"
	old, fresh := "Authorization: Bearer old-secret", "Authorization: Bearer new-secret"
	session := open(t, mcp, old)
	if a := send(t.Context(), "POST", mcp, "", initialize, fresh); a.status != 401 {
		t.Fatalf("an unknown key: %+v", a)
	}
	rewrite := func(was, is string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), was, is, 1)
		if changed == string(text) {
			t.Fatalf("%q is not in the file", was)
		}
		// As an editor does it: another file takes the name.
		if err := os.WriteFile(file+".new", []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	metric := func(line string) bool {
		return strings.Contains(send(t.Context(), "GET", p.Internal+"/metrics", "", "").body, line+"\n")
	}

	rewrite("{name: old, ", "{name: old, onLost: sometimes, ")
	eventually(t, "an invalid file is counted", func() bool { return metric(`vance_gateway_reload_total{outcome="invalid"} 1`) })
	// The log is written after the count.
	eventually(t, "the log says it", func() bool { return strings.Contains(p.Log(), "stays in force") })
	if a := send(t.Context(), "POST", mcp, session, toolCall("snapshot", "{}"), old); a.status != 200 {
		t.Errorf("the state before is not in force: %+v", a)
	}

	rewrite("{name: old, onLost: sometimes, ", "{name: old, ")
	rewrite("sha256: "+fmt.Sprintf("%x", sha256.Sum256([]byte("old-secret"))), "sha256: "+fmt.Sprintf("%x", sha256.Sum256([]byte("new-secret"))))
	eventually(t, "the new key counts", func() bool {
		return send(t.Context(), "POST", mcp, session, toolCall("snapshot", "{}"), fresh).status == 200
	})
	if a := send(t.Context(), "POST", mcp, session, toolCall("snapshot", "{}"), old); a.status != 401 {
		t.Errorf("the key that was withdrawn: %+v", a)
	}
	if !metric(`vance_gateway_reload_total{outcome="ok"} 1`) {
		t.Error("the reload is not counted")
	}

	// A document that changes counts for the next session.
	if a := send(t.Context(), "POST", mcp, "", initialize, fresh); a.code != "LEASE_BUSY" {
		t.Fatalf("a second session at a cap of 1: %+v", a)
	}
	path := filepath.Join(p.Dir, "documents", leasePath)
	if err := os.WriteFile(path, []byte("name: browser\nlevels: {user: 2}\nwaitMs: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cap of 2 counts", func() bool { return send(t.Context(), "POST", mcp, "", initialize, fresh).session != "" })
	if s := up.Stats(); s.Live != 2 {
		t.Errorf("upstream %+v", s)
	}
}
