//go:build external

package imagetest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
)

// patience bounds what a container does.
const patience = 60 * time.Second

// stage is a folder with the built images, and a network of its own, so that the
// ports of README.md are free.
type stage struct {
	*testing.T
	images string
	dir    string // where the lines of README.md are run
	env    []string
}

// newStage builds the images. From then on the test's goroutine is in the other
// network: what it starts and listens on is there.
func newStage(t *testing.T) *stage {
	t.Helper()
	for _, program := range []string{"buildah", "crun", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is missing: apt-get install %s (make test does)", program, program)
		}
	}
	images, err := os.MkdirTemp("/var/tmp", "mcp-lease-gateway-images-")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{T: t, images: images, dir: t.TempDir()}
	// The folders above a mounted one must let the container's user pass.
	for dir := s.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(images, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(images) })
	if out, err := exec.CommandContext(t.Context(), "../../.ci/image", images).CombinedOutput(); err != nil {
		t.Fatalf(".ci/image: %v\n%s", err, out)
	}
	s.installDocker()
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	return s
}

// leave takes the goroutine, and what it starts, into a network and a mount
// namespace of their own. crun refuses a machine that has both versions of control
// groups, so here there is the second alone.
func leave() error {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
		return err
	}
	return loopbackUp()
}

func (s *stage) installDocker() {
	s.Helper()
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	bin := filepath.Join(s.dir, "path")
	if err := os.Mkdir(bin, 0o755); err != nil {
		s.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s \"$@\"\n", imagesVariable, s.images, self)
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(script), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(s.images, "gateway/rootfs/usr/local/bin"), filepath.Join(s.dir, "bin")); err != nil {
		s.Fatal(err)
	}
	s.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// shell runs a line of README.md where that says.
func (s *stage) shell(line string) (string, error) {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-euc", line)
	c.Dir, c.Env = s.dir, s.env
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.String(), err
}

func (s *stage) must(line string) string {
	s.Helper()
	out, err := s.shell(line)
	if err != nil {
		s.Fatalf("%s: %v\n%s\n%s", line, err, out, s.logs())
	}
	return out
}

func (s *stage) logs() string {
	var b strings.Builder
	found, _ := filepath.Glob(filepath.Join(s.images, "container-*", "log"))
	for _, f := range found {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "%s:\n%s", f, text)
	}
	return b.String()
}

// block are the commands of the code block of README.md below a line.
func block(t *testing.T, below string) []string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), below)
	_, rest, opens := strings.Cut(rest, "\n```\n")
	code, _, closes := strings.Cut(rest, "\n```\n")
	if !ok || !opens || !closes {
		t.Fatalf("README.md has no block below %q", below)
	}
	return strings.Split(strings.ReplaceAll(code, "\\\n", ""), "\n")
}

// healthy waits until the image's own health check succeeds.
func (s *stage) healthy(name, image string) {
	s.Helper()
	conf, err := readImage(filepath.Join(s.images, image))
	if err != nil {
		s.Fatal(err)
	}
	test := conf.Docker.Config.Healthcheck.Test
	if len(test) < 2 || test[0] != "CMD" {
		s.Fatalf("the image's health check is %q", test)
	}
	line := "docker exec " + name + " " + strings.Join(test[1:], " ")
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(100 * time.Millisecond); ; <-tick.C {
		out, err := s.shell(line)
		if err == nil {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s is not healthy: %s\n%s", name, out, s.logs())
		}
	}
}

// session opens a session with curl, calls nothing, and closes it.
const session = `
url=http://127.0.0.1:8080/mcp/dev/demo/browser
post() { curl -sS -m 30 -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H "Authorization: Bearer $KEY" "$@"; }
id=$(post -D - -o /dev/null "$url" -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}' |
  tr -d '\r' | sed -n 's/^Mcp-Session-Id: //Ip')
test -n "$id"
docker exec mcp-lease-gateway mcp-lease-gateway lease list --config /etc/mcp-lease-gateway/gateway.yaml
post -o /dev/null -w 'closed with %{http_code}\n' -X DELETE "$url" -H "Mcp-Session-Id: $id"
`

func (s *stage) key(init string) string {
	s.Helper()
	m := regexp.MustCompile(`Bearer ([0-9a-f]{64})`).FindStringSubmatch(init)
	if m == nil {
		s.Fatalf("init has shown no key:\n%s", init)
	}
	return m[1]
}

// stop is `docker stop`: the image's signal, and the container must end by itself.
func (s *stage) stop(name string) {
	s.Helper()
	root := filepath.Join(s.images, "crun")
	s.must("crun --root " + root + " kill " + name + " TERM")
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		if out, err := s.shell("crun --root " + root + " state " + name); err != nil || strings.Contains(out, `"status": "stopped"`) {
			tick.Stop()
			break
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s has not stopped\n%s", name, s.logs())
		}
	}
	if log := s.logs(); !strings.Contains(log, `"stopped"`) {
		s.Errorf("%s did not end in order:\n%s", name, log)
	}
}

func TestTheImagesRunAsTheReadmeSays(t *testing.T) {
	s := newStage(t)
	s.Cleanup(func() {
		if s.Failed() {
			s.Log(s.logs())
		}
	})
	s.filesAreAsTheyMustBe()

	// The browser server of this machine.
	upstream := browser.New(browser.Behavior{})
	l, err := net.Listen("tcp", "127.0.0.1:8931")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: upstream, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { upstream.Close(); _ = srv.Close() })

	var said string
	lines := block(t, "\n**In a container**")
	for i, line := range lines {
		if strings.HasPrefix(line, "docker exec") {
			s.healthy("mcp-lease-gateway", "gateway")
		}
		out := s.must(line)
		if strings.Contains(line, " init ") {
			said = out
		}
		if i == len(lines)-1 && !strings.HasPrefix(line, "docker exec") {
			t.Fatalf("the block does not end with a look at the leases: %s", line)
		}
	}
	out := s.must("KEY=" + s.key(said) + session)
	if !strings.Contains(out, "browser") || !strings.Contains(out, "closed with 204") {
		t.Errorf("the session:\n%s", out)
	}
	if stats := upstream.Stats(); stats.Opened != 1 || stats.Live != 0 {
		t.Errorf("upstream %+v", stats)
	}
	s.stop("mcp-lease-gateway")
	s.withNode(said)
}

// filesAreAsTheyMustBe looks at what the image's user finds.
func (s *stage) filesAreAsTheyMustBe() {
	s.Helper()
	for path, want := range map[string]string{
		"gateway/rootfs/tmp":                                  "drwxrwxrwt root",
		"gateway/rootfs/var":                                  "drwxr-xr-x root",
		"gateway/rootfs/var/lib/mcp-lease-gateway":            "drwxr-xr-x user",
		"gateway/rootfs/usr/local/bin/mcp-lease-gateway":      "-rwxr-xr-x root",
		"gateway/rootfs/etc/ssl/certs/ca-certificates.crt":    "-rw-r--r-- root",
		"gateway-node/rootfs/tmp":                             "drwxrwxrwt root",
		"gateway-node/rootfs/usr/local/bin/mcp-lease-gateway": "-rwxr-xr-x root",
		"gateway-node/rootfs/var/lib/mcp-lease-gateway":       "drwxr-xr-x user",
	} {
		info, err := os.Stat(filepath.Join(s.images, path))
		if err != nil {
			s.Error(err)
			continue
		}
		owner := map[uint32]string{0: "root", 65532: "user"}[info.Sys().(*syscall.Stat_t).Uid]
		mode := info.Mode().Perm().String()
		if info.IsDir() {
			mode = "d" + mode[1:]
		}
		if info.Mode()&os.ModeSticky != 0 {
			mode = mode[:9] + "t"
		}
		if got := mode + " " + owner; got != want {
			s.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// A server over stdio that only opens sessions.
const nodeServer = `import readline from 'node:readline'
readline.createInterface({ input: process.stdin }).on('line', line => {
  const m = JSON.parse(line)
  if (m.method === 'initialize') {
    const result = { protocolVersion: m.params.protocolVersion, capabilities: {}, serverInfo: { name: 'node', version: process.version } }
    console.log(JSON.stringify({ jsonrpc: '2.0', id: m.id, result }))
  }
})
`

// withNode runs the other image in the same way, with a child process of Node.
func (s *stage) withNode(said string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "gateway/server.mjs"), []byte(nodeServer), 0o644); err != nil {
		s.Fatal(err)
	}
	document := "name: browser\ntype: mcp_server\nparameters: {transport: stdio, command: [node, /etc/mcp-lease-gateway/server.mjs], lease: browser}\n"
	if err := os.WriteFile(filepath.Join(s.dir, "gateway/documents/_vance/_tenant/_vance/server-tools/browser.yaml"), []byte(document), 0o644); err != nil {
		s.Fatal(err)
	}
	s.must("rm -rf " + s.images + "/container-* " + s.images + "/volume-* " + s.images + "/tag-* ; crun --root " + s.images + "/crun delete -f mcp-lease-gateway")
	for _, line := range block(s.T, "\n**In a container**") {
		switch {
		case strings.HasPrefix(line, "docker build"):
			s.must(strings.Replace(line, "--target gateway", "--target gateway-node", 1))
		case strings.HasPrefix(line, "docker run"):
			s.must(line)
		}
	}
	s.healthy("mcp-lease-gateway", "gateway-node")
	if out := s.must("docker exec mcp-lease-gateway npx --version"); !regexp.MustCompile(`^\d+\.`).MatchString(out) {
		s.Errorf("npx says %s", out)
	}
	if out := s.must("KEY=" + s.key(said) + session); !strings.Contains(out, "closed with 204") {
		s.Errorf("the session with Node:\n%s", out)
	}
	s.stop("mcp-lease-gateway")
}
