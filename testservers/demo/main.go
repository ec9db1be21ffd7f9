//go:build unix

// Command demo is `make run`: it starts a browser-like test server and the real
// gateway in front of it, shows a lease at work, and then leaves both running
// for a client of your own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
)

func main() {
	gateway := flag.String("gateway", "bin/mcp-lease-gateway", "the gateway's program")
	child := flag.String("stdio", "bin/testserver-stdio", "the test server over stdio")
	listen := flag.String("listen", "127.0.0.1:8080", "the gateway's address for clients")
	internal := flag.String("internal", "127.0.0.1:8081", "the gateway's internal address")
	once := flag.Bool("once", false, "end after the show")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *gateway, *child, *listen, *internal, *once); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, gateway, child, listen, internal string, once bool) (err error) {
	dir, err := os.MkdirTemp("", "mcp-lease-gateway-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	for _, address := range []*string{&listen, &internal} {
		if *address, err = untaken(*address); err != nil {
			return err
		}
	}
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: browser.New(browser.Behavior{}), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(upstream) }()
	defer func() { _ = srv.Close() }()

	child, err = filepath.Abs(child)
	if err != nil {
		return err
	}
	if err := writeConfig(dir, listen, internal, "http://"+upstream.Addr().String()+"/mcp", child); err != nil {
		return err
	}
	fmt.Printf("A browser-like MCP server is at http://%s/mcp.\n", upstream.Addr())
	fmt.Printf("The gateway starts in front of it, with its store and documents in %s.\n", dir)
	p, err := start(gateway, filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "gateway.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.ready(ctx, "http://"+internal+"/readyz"); err != nil {
		return unlessStopped(ctx, err)
	}
	if err := show(ctx, "http://"+listen+"/mcp/dev/demo/browser"); err != nil {
		return unlessStopped(ctx, err)
	}
	if once {
		return nil
	}
	fmt.Printf(`
The gateway goes on serving; Ctrl-C ends it. Point a client at
  http://%[1]s/mcp/dev/demo/browser   over HTTP, with the lease "browser": one session for each user
  http://%[1]s/mcp/dev/demo/process   a child process for each session
and look at
  http://%[2]s/metrics
  bin/mcp-lease-gateway lease list --config %[3]s
`, listen, internal, filepath.Join(dir, "gateway.yaml"))
	select {
	case <-ctx.Done():
		return nil
	case <-p.done:
		return p.failed()
	}
}

// untaken is address, or one beside it where somebody listens there already.
func untaken(address string) (string, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		host, _, splitErr := net.SplitHostPort(address)
		if splitErr != nil {
			return "", splitErr
		}
		if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
			fmt.Printf("%s is taken by another program; the gateway takes %s instead.\n", address, l.Addr())
		}
	}
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// unlessStopped is nil where the person at the keyboard wanted the end.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func writeConfig(dir, listen, internal, url, child string) error {
	const system = "documents/_vance/_tenant/_vance/"
	for name, text := range map[string]string{
		"gateway.yaml": fmt.Sprintf(`listen: %s
internal: {listen: %q}
store: {kind: embedded, path: data/leases.db}
documents: {dir: documents}
session: {openWait: 1s}
identity:
  anonymous: {tenant: dev, projects: ["*"], user: ada}
`, listen, internal),
		system + "server-tools/browser.yaml": fmt.Sprintf(`name: browser
type: mcp_server
enabled: true
parameters: {transport: http, url: %q, lease: browser, onBusy: refuse}
`, url),
		system + "server-tools/process.yaml": fmt.Sprintf(`name: process
type: mcp_server
enabled: true
parameters: {transport: stdio, command: [%q], lease: none}
`, child),
		system + "config/lease/browser.yaml": `name: browser
levels: {global: 4, user: 1}
ttlSeconds: 300
waitMs: 1000
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// process is the running gateway.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // set when done is closed
}

func start(program, config, log string) (*process, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.Command(program, "serve", "--config", config)
	cmd.Stdout, cmd.Stderr = f, f
	// A group of its own: Ctrl-C reaches this program alone, which then asks the
	// gateway to end, once.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the gateway: %w", err)
	}
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.done) }()
	return p, nil
}

// ready waits until the gateway says that it is.
func (p *process) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("the gateway is not ready"), p.said())
		case <-p.done:
			return p.failed()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *process) failed() error {
	return errors.Join(fmt.Errorf("the gateway has ended: %w", p.err), p.said())
}

func (p *process) said() error {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	return errors.New(string(text))
}

// stop asks the gateway to end and waits.
func (p *process) stop() error {
	select {
	case <-p.done:
		return nil // told already
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-p.done
	if p.err != nil {
		return p.failed()
	}
	return nil
}
