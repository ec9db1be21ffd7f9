//go:build external

package real

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

const leaseDocument = "_vance/_tenant/_vance/config/lease/browser.yaml"

func lease(ttlSeconds int) string {
	return fmt.Sprintf("name: browser\nlevels: {user: 1}\nttlSeconds: %d\nwaitMs: 200\n", ttlSeconds)
}

// page serves what the browsers visit.
func page(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>Leases</title><h1>Hello leases</h1>")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// overHTTP starts Playwright's server and a pod in front of it. It returns the
// pod and the process below which Chromium runs.
func overHTTP(t *testing.T, ttlSeconds int) (*pod.Process, int) {
	t.Helper()
	port := freePort(t)
	server := exec.Command("node", playwrightArgs(t, "--host", "127.0.0.1", "--port", fmt.Sprint(port))...)
	server.Dir = t.TempDir()
	start(t, port, server)
	p := pod.Start(t, pod.Config{Documents: map[string]string{
		leaseDocument: lease(ttlSeconds),
		"_vance/_tenant/_vance/server-tools/browser.yaml": fmt.Sprintf(
			"name: browser\ntype: mcp_server\nparameters:\n  transport: http\n  url: http://localhost:%d/mcp\n  lease: browser\n  onBusy: refuse\n", port),
	}})
	return p, server.Process.Pid
}

// overStdio starts a pod that runs Playwright's server as its child.
func overStdio(t *testing.T, ttlSeconds int) *pod.Process {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	command, err := json.Marshal(append([]string{node}, playwrightArgs(t)...)) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	return pod.Start(t, pod.Config{Documents: map[string]string{
		leaseDocument: lease(ttlSeconds),
		"_vance/_tenant/_vance/server-tools/browser.yaml": fmt.Sprintf(
			"name: browser\ntype: mcp_server\nparameters:\n  transport: stdio\n  command: %s\n  cwd: %s\n  lease: browser\n  onBusy: refuse\n",
			command, t.TempDir()),
	}})
}

func url(p *pod.Process) string { return p.URL + "/mcp/acme/thesis/browser" }

// visit opens a page and reads it.
func visit(t *testing.T, c client, page string) {
	t.Helper()
	if _, err := c.call("browser_navigate", map[string]any{"url": page}); err != nil {
		t.Fatalf("navigate: %v", err)
	}
	text, err := c.call("browser_snapshot", map[string]any{})
	if err != nil || !strings.Contains(text, "Hello leases") {
		t.Fatalf("snapshot: %v\n%s", err, text)
	}
}

func open(t *testing.T, c client, url string) {
	t.Helper()
	if err := c.open(url); err != nil {
		t.Fatalf("open: %v", err)
	}
}

// refused demands that the error is LEASE_BUSY as a person can read it.
func refused(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("a second session of the same user was opened")
	}
	t.Logf("refused: %v", err)
	for _, want := range []string{"LEASE_BUSY", "user", "1 of 1", "oldest"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not say %q: %v", want, err)
		}
	}
}

func gone(t *testing.T, root int, seen []process) {
	t.Helper()
	within(t, "no Chromium process is left", func() bool {
		return len(alive(seen)) == 0 && len(browsers(root)) == 0
	})
}

func running(t *testing.T, root int) []process {
	t.Helper()
	b := browsers(root)
	if len(b) == 0 {
		t.Fatal("no Chromium process runs; the test would prove nothing")
	}
	t.Logf("%d Chromium processes", len(b))
	return b
}

func TestBrowserSessionsHoldLeases(t *testing.T) {
	site := page(t)
	p, server := overHTTP(t, 120)
	clients := []struct {
		name string
		make func(t *testing.T) client
	}{
		{"the TypeScript SDK 1.x client", func(t *testing.T) client { return newScript(t, "sdk-v1") }},
		{"the TypeScript SDK 2.x client", func(t *testing.T) client { return newScript(t, "sdk-v2") }},
		{"the mcp-go client", func(t *testing.T) client { return &markClient{t: t} }},
		{"the go-sdk client", func(t *testing.T) client { return &goClient{t: t} }},
	}
	for _, kind := range clients {
		t.Run(kind.name, func(t *testing.T) {
			first := kind.make(t)
			open(t, first, url(p))
			visit(t, first, site)
			seen := running(t, server)
			refused(t, kind.make(t).open(url(p)))
			if err := first.end(); err != nil {
				t.Fatalf("end: %v", err)
			}
			gone(t, server, seen)
			again := kind.make(t)
			open(t, again, url(p))
			if err := again.end(); err != nil {
				t.Fatalf("end: %v", err)
			}
		})
	}
}

func TestBrowserEndsAfterItsClientDied(t *testing.T) {
	p, server := overHTTP(t, 3)
	c := newScript(t, "sdk-v1")
	open(t, c, url(p))
	visit(t, c, page(t))
	seen := running(t, server)
	c.kill()
	gone(t, server, seen)
}

func TestBrowserEndsAfterTheGatewayDied(t *testing.T) {
	p, server := overHTTP(t, 120)
	c := newScript(t, "sdk-v1")
	open(t, c, url(p))
	visit(t, c, page(t))
	seen := running(t, server)
	p.Kill()
	if len(alive(seen)) == 0 {
		t.Fatal("Chromium ended with the gateway; the test would prove nothing")
	}
	q := p.Restart(t)
	gone(t, server, seen)
	again := newScript(t, "sdk-v1")
	open(t, again, url(q))
	if err := again.end(); err != nil {
		t.Fatal(err)
	}
}

func TestStdioBrowserEnds(t *testing.T) {
	site := page(t)
	opened := func(t *testing.T, ttlSeconds int) (*pod.Process, *script, []process) {
		p := overStdio(t, ttlSeconds)
		c := newScript(t, "sdk-v1")
		open(t, c, url(p))
		visit(t, c, site)
		return p, c, running(t, p.Cmd.Process.Pid)
	}
	t.Run("with the DELETE of its client", func(t *testing.T) {
		p, c, seen := opened(t, 120)
		refused(t, newScript(t, "sdk-v2").open(url(p)))
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
		gone(t, p.Cmd.Process.Pid, seen)
	})
	t.Run("after its client died", func(t *testing.T) {
		p, c, seen := opened(t, 3)
		c.kill()
		gone(t, p.Cmd.Process.Pid, seen)
	})
	t.Run("when the gateway is killed", func(t *testing.T) {
		p, _, seen := opened(t, 120)
		p.Kill()
		gone(t, p.Cmd.Process.Pid, seen)
		q := p.Restart(t)
		again := newScript(t, "sdk-v1")
		open(t, again, url(q))
		if err := again.end(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("when the gateway is asked to end", func(t *testing.T) {
		p, _, seen := opened(t, 120)
		p.Terminate(t)
		gone(t, p.Cmd.Process.Pid, seen)
	})
}
