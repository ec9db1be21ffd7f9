//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The first argument of this program's own helpers.
const (
	asLean   = "as-lean-upstream"
	asProxy  = "as-plain-proxy"
	asPooled = "as-pooled-proxy"
)

// patience bounds every start and end.
const patience = 30 * time.Second

// target is something that is called.
type target struct {
	name string
	addr string // host:port
	path string
	pid  int
}

// stage is the three processes.
type stage struct {
	dir                  string
	children             []*exec.Cmd
	direct, plain, lease target
	pooled               target // the plain proxy with a pool of buffers
	internal             string // the gateway's internal listener
	log                  *os.File
}

func setUp(ctx context.Context, gateway string) (_ *stage, err error) {
	if gateway, err = filepath.Abs(gateway); err != nil {
		return nil, err
	}
	if _, err := os.Stat(gateway); err != nil {
		return nil, fmt.Errorf("the gateway's program: %w (make build makes it)", err)
	}
	st := &stage{}
	defer func() {
		if err != nil {
			st.tearDown()
		}
	}()
	if st.dir, err = os.MkdirTemp("", "mcp-lease-gateway-bench-"); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if st.direct, err = st.helper("upstream", self, asLean, "-"); err != nil {
		return nil, err
	}
	if st.plain, err = st.helper("plain proxy", self, asProxy, "http://"+st.direct.addr); err != nil {
		return nil, err
	}
	if st.pooled, err = st.helper("with a pool", self, asPooled, "http://"+st.direct.addr); err != nil {
		return nil, err
	}
	st.lease, err = st.gateway(ctx, gateway)
	return st, err
}

// another starts a second gateway on a store of its own. It collects garbage
// early, so that what its heap holds is what it needs.
func (st *stage) another(ctx context.Context, gateway string) (*stage, error) {
	gateway, err := filepath.Abs(gateway)
	if err != nil {
		return nil, err
	}
	next := &stage{direct: st.direct}
	if next.dir, err = os.MkdirTemp("", "mcp-lease-gateway-bench-"); err != nil {
		return nil, err
	}
	if next.lease, err = next.gateway(ctx, gateway, "GOGC=10"); err != nil {
		next.tearDown()
		return nil, err
	}
	return next, nil
}

// helper starts this program as something else and reads where it listens.
func (st *stage) helper(name, self string, args ...string) (target, error) {
	c := exec.Command(self, args...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return target{}, err
	}
	if err := st.start(c); err != nil {
		return target{}, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return target{}, fmt.Errorf("%s: %w", name, err)
	}
	u, err := url.Parse(strings.TrimPrefix(strings.TrimSpace(line), "listening on "))
	if err != nil {
		return target{}, fmt.Errorf("%s: %w", name, err)
	}
	return target{name: name, addr: u.Host, path: u.Path, pid: c.Process.Pid}, nil
}

func (st *stage) start(c *exec.Cmd) error {
	if err := c.Start(); err != nil {
		return err
	}
	st.children = append(st.children, c)
	return nil
}

// What the gateway is run with: a route whose lease has caps on all four levels,
// none of which is ever reached.
const (
	serverDocument = "name: lean\ntype: mcp_server\nparameters:\n  transport: http\n  url: http://%s/mcp\n  lease: bench\n"
	leaseDocument  = "name: bench\nlevels: {global: 100000, tenant: 100000, project: 100000, user: 100000}\nttlSeconds: 3600\nwaitMs: 1000\n"
	gatewayYAML    = `listen: %s
internal: {listen: %s, tokens: [bench-token-of-this-run]}
pod: {endpoint: %s}
store: {kind: embedded, path: leases.db}
documents: {dir: documents}
limits: {perPod: 150000, perPrincipal: 50000}
identity:
  anonymous: {tenant: dev, projects: ["*"], user: dev}
`
)

func (st *stage) gateway(ctx context.Context, program string, env ...string) (target, error) {
	listen, err := freeAddr()
	if err != nil {
		return target{}, err
	}
	if st.internal, err = freeAddr(); err != nil {
		return target{}, err
	}
	config := filepath.Join(st.dir, "documents", "_vance", "_tenant", "_vance")
	for path, text := range map[string]string{
		filepath.Join(st.dir, "gateway.yaml"):                  fmt.Sprintf(gatewayYAML, listen, st.internal, st.internal),
		filepath.Join(config, "server-tools", "lean.yaml"):     fmt.Sprintf(serverDocument, st.direct.addr),
		filepath.Join(config, "config", "lease", "bench.yaml"): leaseDocument,
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return target{}, err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return target{}, err
		}
	}
	if st.log, err = os.Create(filepath.Join(st.dir, "gateway.log")); err != nil {
		return target{}, err
	}
	c := exec.Command(program, "serve", "--config", "gateway.yaml")
	c.Dir, c.Stdout, c.Stderr, c.Env = st.dir, st.log, st.log, append(os.Environ(), env...)
	if err := st.start(c); err != nil {
		return target{}, err
	}
	if err := st.ready(ctx); err != nil {
		log, _ := os.ReadFile(st.log.Name())
		return target{}, fmt.Errorf("the gateway does not become ready: %w\n%s", err, bytes.TrimSpace(log))
	}
	return target{name: "gateway", addr: listen, path: "/mcp/dev/bench/lean", pid: c.Process.Pid}, nil
}

func (st *stage) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+st.internal+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (st *stage) tearDown() {
	for i := len(st.children) - 1; i >= 0; i-- { // the gateway before its upstream
		c := st.children[i]
		_ = c.Process.Signal(syscall.SIGTERM)
		t := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		t.Stop()
	}
	if st.log != nil {
		_ = st.log.Close()
	}
	if st.dir != "" {
		_ = os.RemoveAll(st.dir)
	}
}

// freeAddr is an address that was free a moment ago: the configuration cannot
// carry a listener.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

func mustParse(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return u
}
