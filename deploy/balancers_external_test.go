//go:build external

package deploy

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

const balancedKey = "key-of-the-balancers-test"

// twoPods starts two gateways on one store with a test server behind them.
func twoPods(t *testing.T) (*browser.Server, []*process.Process) {
	t.Helper()
	uri := os.Getenv("MONGODB_URI")
	if uri == "" {
		t.Fatal("MONGODB_URI is not set: run this with .ci/with-mongo (make test does)")
	}
	up := browser.New(browser.Behavior{})
	srv := httptest.NewServer(up)
	t.Cleanup(func() { up.Close(); srv.Close() })
	conf := process.Config{
		Store:    fmt.Sprintf("kind: mongodb\nuri: %q\ndatabase: balancers_%d", uri, time.Now().UnixNano()),
		Identity: fmt.Sprintf("apiKeys:\n- {name: ada, sha256: %x, tenants: {acme: [\"*\"]}, user: ada}", sha256.Sum256([]byte(balancedKey))),
		Documents: map[string]string{
			"_vance/_tenant/_vance/server-tools/browser.yaml": fmt.Sprintf("name: browser\ntype: mcp_server\nparameters: {transport: http, url: %q, lease: browser}\n", srv.URL+"/mcp"),
			"_vance/_tenant/_vance/config/lease/browser.yaml": "name: browser\nlevels: {user: 8}\nttlSeconds: 60\nwaitMs: 0\n",
		},
	}
	return up, []*process.Process{process.Start(t, conf), process.Start(t, conf)}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// begin runs a balancer until the end of the test and waits until it has found a
// pod.
func begin(t *testing.T, address string, args ...string) {
	t.Helper()
	log := &strings.Builder{}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s is missing? apt-get install %s (make test does): %v", args[0], args[0], err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%v says\n%s", args, log)
		}
	})
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(20 * time.Second); ; {
		resp, err := http.Get("http://" + address + "/mcp/acme/thesis/browser")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusUnauthorized {
				return
			}
		}
		select {
		case <-ended:
			t.Fatalf("%v has ended", args)
		case <-deadline:
			t.Fatalf("%v finds no pod: %v", args, err)
		case <-tick.C:
		}
	}
}

// haproxy runs the balancer of the compose file on other addresses.
func haproxy(t *testing.T, pods []*process.Process) string {
	t.Helper()
	text, err := os.ReadFile("compose/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	conf := strings.NewReplacer("bind :8080", "bind "+address, " port 8081", "", "inter 2s", "inter 100ms").Replace(string(text))
	for i, p := range pods {
		name := fmt.Sprintf("server gateway-%d gateway-%d:8080", i+1, i+1)
		if !strings.Contains(conf, name) {
			t.Fatalf("haproxy.cfg has no %s", name)
		}
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.Internal, "http://"))
		conf = strings.Replace(conf, name, fmt.Sprintf("server gateway-%d %s port %s", i+1, strings.TrimPrefix(p.URL, "http://"), port), 1)
	}
	path := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	begin(t, address, "haproxy", "-db", "-f", path)
	return "http://" + address
}

// nginx runs what the page has.
func nginx(t *testing.T, pods []*process.Process) string {
	t.Helper()
	page, err := os.ReadFile("../docs/load-balancers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```nginx\n")
	conf, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("the page has no block for nginx")
	}
	address, dir := freeAddress(t), t.TempDir()
	conf = strings.Replace(conf, "listen 8080;", "listen "+address+";", 1)
	for i, p := range pods {
		conf = strings.Replace(conf, fmt.Sprintf("gateway-%d:8080", i+1), strings.TrimPrefix(p.URL, "http://"), 1)
	}
	paths := ""
	for _, k := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		paths += fmt.Sprintf("%s_temp_path %s/%s;\n", k, dir, k)
	}
	conf = fmt.Sprintf("daemon off; master_process off; pid %s/pid; error_log stderr;\nevents {}\nhttp {\naccess_log off;\n%s%s}\n", dir, paths, conf)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	begin(t, address, "nginx", "-p", dir, "-c", path, "-e", "stderr")
	return "http://" + address
}

// post sends a message; the caller closes the body.
func post(ctx context.Context, base, session, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/mcp/acme/thesis/browser", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + balancedKey, "Mcp-Session-Id": session} {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	return http.DefaultClient.Do(req)
}

func opened(t *testing.T, base string) string {
	t.Helper()
	resp, err := post(t.Context(), base, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},"clientInfo":{"name":"test","version":"1"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	session := resp.Header.Get("Mcp-Session-Id")
	if err != nil || session == "" {
		t.Fatalf("%v %s", err, text)
	}
	return session
}

var asked = regexp.MustCompile(`"id":"(ask-\d+)"`)

// askedInACall has the server ask the client in the middle of a call. The call ends
// only where the question comes through at once, and the answer comes to the server
// whichever pod it goes to.
func askedInACall(t *testing.T, base, session string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := post(ctx, base, session, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask","arguments":{"what":"roots"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if m := asked.FindStringSubmatch(lines.Text()); m != nil {
			answer, err := post(ctx, base, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"roots":[{"uri":"file:///told"}]}}`, m[1]))
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			continue
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		var message struct{ ID int }
		if ok && json.Unmarshal([]byte(data), &message) == nil && message.ID == 7 {
			if !strings.Contains(data, "file:///told") {
				t.Errorf("the call brought %s", data)
			}
			return
		}
	}
	t.Error("the stream ended without the call's result")
}

func TestBalancersLetStreamsThroughAndNeedNoAffinity(t *testing.T) {
	for name, balance := range map[string]func(*testing.T, []*process.Process) string{"haproxy": haproxy, "nginx": nginx} {
		t.Run(name, func(t *testing.T) {
			up, pods := twoPods(t)
			base := balance(t, pods)
			session := opened(t, base)
			// In turn: the pod that has not opened the session gets the call, the other
			// one the client's answer in the middle of it.
			for range 4 {
				askedInACall(t, base, session)
			}
			served := 0
			for _, p := range pods {
				resp, err := http.Get(p.Internal + "/metrics")
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(text), `server="browser"`) {
					served++
				}
			}
			if served != 2 {
				t.Errorf("the session was served by %d of 2 pods", served)
			}
			if s := up.Stats(); s.Opened != 1 || s.Live != 1 {
				t.Errorf("upstream %+v", s)
			}
		})
	}
}

func TestHAProxyAcceptsItsConfiguration(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "haproxy", "-c", "-f", "compose/haproxy.cfg").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
