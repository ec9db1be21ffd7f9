//go:build external

package clients

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/testservers/output"
	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// served is a server that nobody here wrote, over HTTP and, where it has it, as a
// child of the gateway over stdio.
type served struct {
	id, title string
	http      func(t *testing.T, port int) *exec.Cmd
	path      string // of its URL
	stdio     func(t *testing.T) *exec.Cmd
	lease     bool
	asks      []command // what is asked of it, besides its tools
}

func tool(name string, progress bool, args map[string]any) command {
	return command{Do: "call", Name: name, Arguments: args, Progress: progress}
}

// goServer builds go-sdk's conformance server once for each test process.
var goServer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mcp-lease-gateway-everything-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "everything-server")
	out, err := exec.Command("go", "build", "-o", path, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the conformance server: %w\n%s", err, out)
	}
	return path, nil
})

func goEverything(stateless bool) func(t *testing.T, port int) *exec.Cmd {
	return func(t *testing.T, port int) *exec.Cmd {
		path, err := goServer()
		if err != nil {
			t.Fatal(err)
		}
		return exec.Command(path, "-http", fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("-stateless=%v", stateless))
	}
}

var (
	everythingAsks = []command{
		tool("echo", false, map[string]any{"message": "hello"}),
		tool("get-sum", false, map[string]any{"a": 2, "b": 3}),
		tool("trigger-long-running-operation", true, map[string]any{"duration": 0.6, "steps": 3}),
		tool("trigger-elicitation-request", false, map[string]any{}),
	}
	fastmcpAsks = []command{
		tool("echo", false, map[string]any{"text": "hello ünïcode"}),
		tool("steps", true, map[string]any{"count": 3}),
	}
	goAsks = []command{
		tool("test_simple_text", false, map[string]any{}),
		tool("test_multiple_content_types", false, map[string]any{}),
		tool("test_error_handling", false, map[string]any{}),
		tool("test_tool_with_progress", true, map[string]any{}),
	}
)

func servers(t *testing.T) []served {
	node := part(t, "../node/node_modules/.bin/node")
	everything := part(t, "../node/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
	python, program := part(t, "python/.venv-2/bin/python"), part(t, "python/server.py")
	return []served{
		{
			id: "everything", title: "server-everything", path: "/mcp", lease: true, asks: everythingAsks,
			http: func(_ *testing.T, port int) *exec.Cmd {
				cmd := exec.Command(node, everything, "streamableHttp")
				cmd.Env = append(cmd.Environ(), fmt.Sprintf("PORT=%d", port))
				return cmd
			},
			stdio: func(*testing.T) *exec.Cmd { return exec.Command(node, everything, "stdio") },
		},
		{
			id: "fastmcp", title: "FastMCP", path: "/mcp", lease: true, asks: fastmcpAsks,
			http:  func(_ *testing.T, port int) *exec.Cmd { return exec.Command(python, program, fmt.Sprint(port)) },
			stdio: func(*testing.T) *exec.Cmd { return exec.Command(python, program) },
		},
		{id: "go-sdk", title: "go-sdk with sessions", path: "/", lease: true, asks: goAsks, http: goEverything(false)},
		{id: "go-sdk-stateless", title: "go-sdk without sessions", path: "/", asks: goAsks, http: goEverything(true)},
	}
}

// serve runs a server until the end of the test and returns its URL.
func serve(t *testing.T, s served) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	var log output.Buffer
	cmd := s.http(t, port)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	if !eventually(patience, func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatalf("%s does not listen:\n%s", s.title, log.String())
	}
	return fmt.Sprintf("http://127.0.0.1:%d%s", port, s.path)
}

// talk is all that a client reads of a server.
func talk(d *driver, asks []command, url string) (read []string) {
	as := url
	if _, err := d.do(command{Do: "open", As: as, URL: url}); err != nil {
		return []string{"open: " + err.Error()}
	}
	list, err := d.do(command{Do: "list", As: as})
	slices.Sort(list.Tools)
	read = append(read, fmt.Sprintf("list: %v %v", list.Tools, err))
	for _, c := range asks {
		c.As = as
		a, err := d.do(c)
		// Some clients show the last event after the result, so one is enough.
		read = append(read, fmt.Sprintf("%s: %q isError=%v progress=%v %v", c.Name, a.Text, a.IsError, a.Progress > 0, err))
	}
	if _, err := d.do(command{Do: "close", As: as}); err != nil {
		read = append(read, "close: "+err.Error())
	}
	return read
}

// TestRealServers compares what real clients read of real servers, direct and
// through the gateway, over HTTP and of a child over stdio.
func TestRealServers(t *testing.T) {
	all := servers(t)
	docs := map[string]string{}
	direct := map[string]string{}
	for _, s := range all {
		url := serve(t, s)
		direct[s.id] = url
		lease := ""
		if s.lease {
			lease = "  lease: " + s.id + "\n"
			docs["_vance/_tenant/_vance/config/lease/"+s.id+".yaml"] = "name: " + s.id + "\nlevels: {user: 50}\n"
		}
		docs["_vance/_tenant/_vance/server-tools/"+s.id+".yaml"] = fmt.Sprintf(
			"name: %s\ntype: mcp_server\nparameters:\n  transport: http\n  url: %s\n%s", s.id, strings.Replace(url, "127.0.0.1", "localhost", 1), lease)
		if s.stdio == nil {
			continue
		}
		argv, err := json.Marshal(s.stdio(t).Args) // JSON is YAML
		if err != nil {
			t.Fatal(err)
		}
		docs["_vance/_tenant/_vance/server-tools/"+s.id+"-stdio.yaml"] = fmt.Sprintf(
			"name: %s-stdio\ntype: mcp_server\nparameters:\n  transport: stdio\n  command: %s\n%s", s.id, argv, lease)
	}
	p := pod.Start(t, pod.Config{Documents: docs})
	through := func(server string) string { return p.URL + "/mcp/acme/thesis/" + server }

	for _, c := range subjects {
		if !slices.Contains([]string{"sdk-v1", "sdk-v2-auto", "go-sdk", "python-v2", "java-v2"}, c.id) {
			continue
		}
		d := start(t, c.language, c.driverName())
		t.Run(c.id, func(t *testing.T) {
			t.Parallel()
			for _, s := range all {
				want := talk(d, s.asks, direct[s.id])
				if len(want) < 2 {
					t.Errorf("%s, direct: %s", s.title, want)
				}
				t.Run(s.id+" over HTTP", func(t *testing.T) {
					if diff := cmp.Diff(want, talk(d, s.asks, through(s.id))); diff != "" {
						t.Errorf("direct (-) and through the gateway (+):\n%s", diff)
					}
				})
				if s.stdio == nil || !slices.Contains([]string{"sdk-v1", "go-sdk"}, c.id) {
					continue // what the child answers is not the client's
				}
				t.Run(s.id+" over stdio", func(t *testing.T) {
					if diff := cmp.Diff(want, talk(d, s.asks, through(s.id+"-stdio"))); diff != "" {
						t.Errorf("direct over HTTP (-) and the gateway's child (+):\n%s", diff)
					}
				})
			}
		})
	}
}
