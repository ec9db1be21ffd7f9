//go:build external

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// twoPods starts two real pods on one database, each with its own copy of the
// documents.
func twoPods(t *testing.T, documents map[string]string, session string) (a, b *process.Process) {
	t.Helper()
	uri, database := mongo.Database(t)
	c := process.Config{Documents: documents, Store: fmt.Sprintf("kind: mongodb\nuri: %s\ndatabase: %s", uri, database), Session: session}
	a = process.Start(t, c)
	b = process.Start(t, c)
	return a, b
}

func TestTwoPods(t *testing.T) {
	t.Parallel()
	const path = "/mcp/acme/thesis/browser"
	t.Run("a session over HTTP goes on at the other pod, and the cap is one for both", func(t *testing.T) {
		t.Parallel()
		up, url := upstream(t)
		a, b := twoPods(t, documentsFor(url, "user: 1"), "")
		session := open(t, a.URL+path)
		if got := send(t.Context(), "POST", b.URL+path, "", initialize); got.code != "LEASE_BUSY" {
			t.Errorf("a second session at the other pod: %+v", got)
		}
		if got := send(t.Context(), "POST", b.URL+path, session, toolCall("navigate", `{"url":"http://x.test/"}`)); got.status != 200 || !strings.Contains(got.body, "x.test") {
			t.Errorf("a call at the other pod: %+v", got)
		}
		a.Kill()
		if got := send(t.Context(), "POST", b.URL+path, session, toolCall("snapshot", "{}")); got.status != 200 || got.message != "" {
			t.Errorf("a call after the first pod was killed: %+v", got)
		}
		if got := send(t.Context(), "DELETE", b.URL+path, session, ""); got.status/100 != 2 || up.Stats().Live != 0 {
			t.Errorf("the end at the other pod: %+v, upstream %+v", got, up.Stats())
		}
	})
	t.Run("a rolling restart with handover ends no session", func(t *testing.T) {
		t.Parallel()
		up, url := upstream(t)
		a, b := twoPods(t, documentsFor(url, "user: 1"), "openWait: 1s\nonShutdown: handover")
		session := open(t, a.URL+path)
		a.Terminate(t)
		if got := send(t.Context(), "POST", b.URL+path, session, toolCall("navigate", `{"url":"http://x.test/"}`)); got.status != 200 || got.message != "" {
			t.Errorf("a call after the first pod has left: %+v", got)
		}
		if s := up.Stats(); s.Live != 1 || s.DeleteRequests != 0 {
			t.Errorf("upstream %+v", s)
		}
	})
	t.Run("a request for a child process reaches the pod that has it", func(t *testing.T) {
		t.Parallel()
		program := filepath.Join(t.TempDir(), "stdio")
		if out, err := exec.Command("go", "build", "-o", program, "github.com/vancetope/mcp-lease-gateway/testservers/cmd/stdio").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		documents := map[string]string{
			serverPath: fmt.Sprintf("name: browser\ntype: mcp_server\nenabled: true\nparameters: {transport: stdio, command: [%q], lease: browser}\n", program),
			leasePath:  "name: browser\nlevels: {user: 1}\nttlSeconds: 600\nwaitMs: 0\n",
		}
		a, b := twoPods(t, documents, "")
		session := open(t, a.URL+path)
		list := `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`
		if got := send(t.Context(), "POST", b.URL+path, session, list); got.status != 200 || !strings.Contains(got.body, `"tools"`) {
			t.Errorf("a request at the other pod: %+v", got)
		}
		// The way of an operator: a pod without the session tells the one that has it.
		out, err := exec.Command(process.Binary(t), "lease", "list", "--config", filepath.Join(b.Dir, "gateway.yaml"), "-o", "json").CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"mcp"`) {
			t.Fatalf("%v\n%s", err, out)
		}
		_, rest, _ := strings.Cut(string(out), `"token": "`)
		token, _, _ := strings.Cut(rest, `"`)
		out, err = exec.Command(process.Binary(t), "lease", "revoke", token, "--yes", "--config", filepath.Join(b.Dir, "gateway.yaml")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		eventually(t, "the child's pod has ended it", func() bool {
			return strings.Contains(send(t.Context(), "POST", a.URL+path, session, toolCall("echo", "{}")).body, lease.CodeLost)
		})
		eventually(t, "no process of the server is left", func() bool { return !running(program) })
	})
}

// running reports whether a process runs a program.
func running(program string) bool {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return true
	}
	for _, link := range links {
		if exe, err := os.Readlink(link); err == nil && exe == program {
			return true
		}
	}
	return false
}
