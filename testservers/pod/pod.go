// Package pod runs the real gateway as a process of its own, so that tests can
// kill it, stop it and start it again as an operator or a crash would. It knows
// the gateway's configuration and URLs and nothing of its insides.
package pod

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// Token is the internal token of every pod that this package starts.
const Token = "internal-token-of-the-tests"

// patience bounds every wait of this package.
const patience = 60 * time.Second

// Config describes a pod. Sections left empty take small defaults that suit
// tests on loopback.
type Config struct {
	// Dir holds the configuration, the documents and the embedded store. Empty
	// means a fresh folder; an earlier pod's Dir continues its store.
	Dir string
	// Documents maps "<tenant>/<project>/<path>" to a text.
	Documents map[string]string
	// Collection is the YAML of documents.mongodb; it wins over Documents.
	Collection string
	// Secrets maps "<tenant>/<project>/<name>" to a text.
	Secrets map[string]string
	// Store, Lease, Session and Identity are the YAML below these keys. Every pod
	// has the same session key where Session names none.
	Store    string
	Lease    string
	Session  string
	Identity string
	// More is YAML for further top-level keys.
	More string
	// Env is added to the process's environment.
	Env []string

	listen, internal string // empty means free ports
}

// Process is a running gateway.
type Process struct {
	Dir      string
	URL      string // http://127.0.0.1:port of the client listener
	Internal string // http://127.0.0.1:port of the internal listener
	Cmd      *exec.Cmd
	cfg      Config
	log      *output.Buffer
	done     chan struct{}
}

var build = sync.OnceValues(func() (string, error) {
	if given := os.Getenv("GATEWAY_BINARY"); given != "" {
		return given, nil
	}
	dir, err := os.MkdirTemp("", "mcp-lease-gateway-bin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "mcp-lease-gateway")
	out, err := exec.Command("go", "build", "-o", path, "github.com/vancetope/mcp-lease-gateway/cmd/mcp-lease-gateway").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the gateway: %w\n%s", err, out)
	}
	return path, nil
})

// Binary returns the gateway's program: GATEWAY_BINARY where it is set, else
// one that is built once for each test process.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Start starts a pod and waits until it is ready. It is killed at the end of
// the test where it still runs.
func Start(t testing.TB, c Config) *Process {
	t.Helper()
	p := Launch(t, c)
	p.WaitReady(t)
	return p
}

// Launch starts a pod without waiting for it.
func Launch(t testing.TB, c Config) *Process {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	listen, internal := c.listen, c.internal
	if listen == "" {
		listen, internal = freeAddrs(t)
	}
	write(t, filepath.Join(c.Dir, "gateway.yaml"), c.yaml(listen, internal))
	for path, text := range c.Documents {
		write(t, filepath.Join(c.Dir, "documents", path), text)
	}
	for path, text := range c.Secrets {
		write(t, filepath.Join(c.Dir, "secrets", path), text)
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "documents"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := &Process{
		Dir: c.Dir, URL: "http://" + listen, Internal: "http://" + internal,
		cfg: c, log: &output.Buffer{}, done: make(chan struct{}),
	}
	p.Cmd = exec.Command(Binary(t), "serve", "--config", filepath.Join(c.Dir, "gateway.yaml"))
	p.Cmd.Dir = c.Dir
	p.Cmd.Env = append(os.Environ(), c.Env...)
	p.Cmd.Stdout, p.Cmd.Stderr = p.log, p.log
	p.Cmd.WaitDelay = 5 * time.Second
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.Cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill()
		for _, sign := range []string{"WARNING: DATA RACE", "\npanic: ", "goroutine 1 [running]", "a request failed inside the gateway"} {
			if strings.Contains(p.Log(), sign) {
				t.Errorf("the pod's log says %q", sign)
			}
		}
		if key, line := doubled(p.Log()); key != "" {
			t.Errorf("the key %s stands twice in the log's line %s", key, line)
		}
		if t.Failed() {
			t.Logf("end of the log of the pod in %s:\n%s", p.Dir, lastLines(p.Log(), 60))
		}
	})
	return p
}

func (c Config) yaml(listen, internal string) string {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	block := func(s string) string {
		return strings.ReplaceAll("\n"+strings.Trim(s, "\n"), "\n", "\n  ")
	}
	collection := strings.ReplaceAll(block(or(c.Collection, `uri: ""`)), "\n", "\n  ")
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	return fmt.Sprintf("listen: %s\ninternal:\n  listen: %s\n  tokens: [%s]\npod:\n  endpoint: %s\n  heartbeat: 1s\n  staleAfter: 4s\nstore:%s\ndocuments:\n  dir: documents\n  secrets: secrets\n  mongodb:%s\nlease:%s\nsession:%s\nidentity:%s\n%s\n",
		listen, internal, Token, internal,
		block(or(c.Store, "kind: embedded\npath: leases.db")),
		collection,
		block(or(c.Lease, "reapInterval: 1s\nreconcileSafety: 4s\npendingTTL: 5s")),
		block(withKeys(or(c.Session, "openWait: 1s"), key)),
		block(or(c.Identity, "anonymous: {tenant: acme, projects: [\"*\"], user: ada}")),
		c.More)
}

// withKeys adds a session key where session names none.
func withKeys(session, key string) string {
	if strings.Contains(session, "keys:") {
		return session
	}
	return session + "\nkeys: [" + key + "]"
}

// WaitReady waits until /readyz answers 200.
func (p *Process) WaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Internal+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-p.done:
			t.Fatalf("the gateway ended before it was ready:\n%s", p.Log())
		case <-ctx.Done():
			t.Fatalf("the gateway was not ready in %s:\n%s", patience, p.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the process as a crash does and waits until it is gone.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

// Terminate asks the process to end, waits, and reports its exit error.
func (p *Process) Terminate(t testing.TB) {
	t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.Cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the gateway ended with exit code %d:\n%s", code, p.Log())
	}
}

func (p *Process) signal(s syscall.Signal) {
	p.Cmd.Process.Signal(s)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.Cmd.Process.Kill()
		<-p.done
	}
}

// Freeze stops the process as SIGSTOP does; Thaw lets it go on.
func (p *Process) Freeze() error { return p.Cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw continues a frozen process.
func (p *Process) Thaw() error { return p.Cmd.Process.Signal(syscall.SIGCONT) }

// Restart starts a new process on the folder of one that has ended. Its
// listeners have new ports.
func (p *Process) Restart(t testing.TB) *Process {
	t.Helper()
	c := p.cfg
	c.Dir = p.Dir
	return Start(t, c)
}

// RestartInPlace is Restart on the same ports, for clients that stay on their URL.
func (p *Process) RestartInPlace(t testing.TB) *Process {
	t.Helper()
	c := p.cfg
	c.Dir = p.Dir
	c.listen, c.internal = strings.TrimPrefix(p.URL, "http://"), strings.TrimPrefix(p.Internal, "http://")
	return Start(t, c)
}

// Log returns what the process has printed so far.
func (p *Process) Log() string { return p.log.String() }

// lastLines returns the last n lines of a log, without the audit's refusals: a
// test with many clients has thousands of those, and they hide all else.
func lastLines(log string, n int) string {
	var lines []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `"kind":"refused"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// freeAddrs returns two loopback addresses that were free a moment ago. A process
// cannot be handed a listener in its configuration, so this is the best there
// is; the kernel gives the same port to nobody else for a while.
func freeAddrs(t testing.TB) (client, internal string) {
	t.Helper()
	var addrs [2]string
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // both are open at once, so they differ
		addrs[i] = l.Addr().String()
	}
	return addrs[0], addrs[1]
}
