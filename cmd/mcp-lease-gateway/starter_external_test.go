//go:build external

package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// nobody is a user who is not root: Chromium keeps its sandbox, and the starter has
// no --no-sandbox.
const nobody = 65534

// asNobody runs the program in dir as a user who owns nothing but dir.
func asNobody(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(filepath.Join(dir, "mcp-lease-gateway"), args...)
	c.Dir = dir
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	if os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return c
}

// homeOfNobody is a folder with the program and Playwright in it, where that user
// reads them, wherever this tree is.
func homeOfNobody(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "mcp-lease-gateway-starter-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	modules, err := filepath.Abs("../../testservers/node/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	script := `set -eu
mkdir tmp node_modules
cp "$1" mcp-lease-gateway
for m in @playwright playwright playwright-core; do [ ! -e "$2/$m" ] || cp -aL "$2/$m" node_modules/; done
chown -R "$3:$3" .
chmod -R u=rwX,go=rX .
`
	c := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", process.Binary(t), modules, fmt.Sprint(nobody))
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func TestTheStartersBrowserIsDebiansChromium(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Fatal("chromium is missing: apt-get install chromium (make test does)")
	}
	dir := homeOfNobody(t)
	if out, err := asNobody(t, dir, "init", "gateway").CombinedOutput(); err != nil || strings.Contains(string(out), "Before the first call") {
		t.Fatalf("%v\n%s", err, out)
	}
	var addresses []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, l.Addr().String())
		_ = l.Close()
	}
	// As it was written, but for the ports, and for what npx would fetch.
	rewrite(t, filepath.Join(dir, "gateway/gateway.yaml"), "listen: 127.0.0.1:8080", "listen: "+addresses[0], "listen: 127.0.0.1:8081", "listen: "+addresses[1])
	rewrite(t, filepath.Join(dir, "gateway", starterServer), `npx, -y, "@playwright/mcp@latest"`, "node, "+dir+"/node_modules/@playwright/mcp/cli.js", "  env:", "  env:\n    TMPDIR: "+dir+"/tmp")
	if out, err := asNobody(t, dir, "check", "--config", "gateway/gateway.yaml").CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
		t.Fatalf("%v\n%s", err, out)
	}
	serve := asNobody(t, dir, "serve", "--config", "gateway/gateway.yaml")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	serve.Stdout, serve.Stderr = log, log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		_ = serve.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s", text)
		}
	})
	eventually(t, "the gateway is ready", func() bool {
		return asNobody(t, dir, "healthcheck", "--config", "gateway/gateway.yaml", "--timeout", "1s").Run() == nil
	})

	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<!doctype html><title>Leases</title><h1>Hello leases</h1>"))
	}))
	defer page.Close()
	url := "http://" + addresses[0] + "/mcp/dev/demo/browser"
	session := open(t, url)
	send(t.Context(), "POST", url, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	started := time.Now()
	a := send(t.Context(), "POST", url, session, toolCall("browser_navigate", fmt.Sprintf(`{"url":%q}`, page.URL)))
	if a.status != 200 || strings.Contains(a.body, `"isError":true`) || !strings.Contains(a.body, "Leases") {
		t.Errorf("after %s: %+v", time.Since(started), a)
	}
	if a := send(t.Context(), "DELETE", url, session, ""); a.status != 204 {
		t.Errorf("%+v", a)
	}
}

// rewrite replaces texts in a file, each of which must be there.
func rewrite(t *testing.T, path string, oldnew ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(string(text), oldnew[i]) {
			t.Fatalf("%s has no %q", path, oldnew[i])
		}
	}
	if err := os.WriteFile(path, []byte(strings.NewReplacer(oldnew...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
}
