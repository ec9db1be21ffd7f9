//go:build external

package real

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait; nothing here takes long when it works.
const patience = 60 * time.Second

// nodeDir holds the Node packages, installed by `make test`.
func nodeDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../node")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err != nil {
		t.Fatalf("the Node packages are missing: run `npm ci` in %s (make test does)", dir)
	}
	return dir
}

func chromium(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: apt-get install chromium (make test does)")
	}
	return path
}

// playwrightArgs runs Playwright's MCP server on Debian's Chromium.
func playwrightArgs(t *testing.T, more ...string) []string {
	return append([]string{
		filepath.Join(nodeDir(t), "node_modules/@playwright/mcp/cli.js"),
		"--headless", "--isolated", "--no-sandbox", "--executable-path", chromium(t),
	}, more...)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs a part until the end of the test and waits until it listens.
func start(t *testing.T, port int, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done
		if t.Failed() {
			t.Logf("log of %v:\n%s", cmd.Args, log.String())
		}
	})
	within(t, fmt.Sprintf("%s listens on %d", filepath.Base(cmd.Path), port), func() bool {
		select {
		case <-done:
			t.Fatalf("%v ended: %s", cmd.Args, log.String())
		default:
		}
		c, err := net.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(port)))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return cmd
}

// within polls until what holds.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// process is one process of the system; a pid alone can be used again.
type process struct {
	pid   int
	start string
	comm  string
}

// descendants lists the living processes below root, zombies excluded.
func descendants(root int) []process {
	parents, procs := map[int]int{}, map[int]process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		comm, rest, ok := bytes.Cut(stat, []byte(") "))
		f := strings.Fields(string(rest))
		if !ok || len(f) < 20 || f[0] == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(f[1])
		_, name, _ := strings.Cut(string(comm), "(")
		procs[pid] = process{pid: pid, start: f[19], comm: name}
	}
	var found []process
	for pid, p := range procs {
		for up := parents[pid]; up > 1; up = parents[up] {
			if up == root {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

func browsers(root int) []process {
	return slices.DeleteFunc(descendants(root), func(p process) bool { return !strings.Contains(p.comm, "chrom") })
}

// alive reports which of the processes still run, whoever their parent is now.
func alive(ps []process) []process {
	return slices.DeleteFunc(slices.Clone(ps), func(p process) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
		if err != nil {
			return true
		}
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		f := strings.Fields(string(rest))
		return len(f) < 20 || f[19] != p.start || f[0] == "Z"
	})
}

// client is an MCP client that a test drives.
type client interface {
	// open connects and initializes; the error is what the SDK told its user.
	open(url string) error
	// call returns the text of the result.
	call(tool string, args map[string]any) (string, error)
	// end terminates the session with a DELETE and closes the client.
	end() error
}

// script is an unmodified TypeScript SDK client in a Node process; driver.mjs says
// which lines it takes and answers.
type script struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func newScript(t *testing.T, client string) *script {
	t.Helper()
	cmd := exec.Command("node", "driver.mjs", client)
	cmd.Dir = nodeDir(t)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &script{cmd: cmd, in: in, out: bufio.NewReaderSize(out, 1<<20)}
	t.Cleanup(s.kill)
	return s
}

func (s *script) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

func (s *script) do(command map[string]any) (string, error) {
	command["as"] = "only"
	line, err := json.Marshal(command)
	if err != nil {
		return "", err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return "", err
	}
	answer, err := s.out.ReadBytes('\n')
	if err != nil {
		return "", err
	}
	var a struct {
		OK    struct{ Text string }
		Error string
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return "", err
	}
	if a.Error != "" {
		return "", errors.New(a.Error)
	}
	return a.OK.Text, nil
}

func (s *script) open(url string) error {
	_, err := s.do(map[string]any{"do": "open", "url": url})
	return err
}

func (s *script) call(tool string, args map[string]any) (string, error) {
	return s.do(map[string]any{"do": "call", "name": tool, "arguments": args})
}

func (s *script) end() error {
	_, err := s.do(map[string]any{"do": "close"})
	return err
}
