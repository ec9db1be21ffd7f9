//go:build external && unix

package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// demo runs `make run`'s program where both of its ports are taken, and returns the
// URL that it says.
func demo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, pkg := range map[string]string{"demo": ".", "stdio": "../cmd/stdio"} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, name), pkg).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	var taken []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		taken = append(taken, l.Addr().String())
	}
	cmd := exec.Command(filepath.Join(dir, "demo"), "-gateway", pod.Binary(t), "-stdio", filepath.Join(dir, "stdio"), "-listen", taken[0], "-internal", taken[1])
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	})
	var said strings.Builder
	url := regexp.MustCompile(`^  (http://\S+/mcp/dev/demo/browser)   over HTTP`)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if m := url.FindStringSubmatch(lines.Text()); m != nil {
			for _, address := range taken {
				if !strings.Contains(said.String(), address+" is taken by another program; the gateway takes 127.0.0.1:") {
					t.Errorf("nothing is said of %s:\n%s", address, said.String())
				}
			}
			go func() { _, _ = io.Copy(io.Discard, out) }() // what it says afterwards must not fill the pipe
			return m[1]
		}
	}
	t.Fatalf("it ended without a URL:\n%s", said.String())
	return ""
}

func TestTheReadmesCurlWorksInEveryShell(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n**curl**")
	_, rest, opens := strings.Cut(rest, "\n```\n")
	block, _, closes := strings.Cut(rest, "\n```\n")
	const fixed = "URL=http://127.0.0.1:8080/mcp/dev/demo/browser\n"
	if !ok || !opens || !closes || !strings.Contains(block, fixed) {
		t.Fatalf("README.md has no such block:\n%s", block)
	}
	block = strings.Replace(block, fixed, "URL="+demo(t)+"\n", 1)
	for _, shell := range []string{"sh", "bash", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Fatalf("%s is missing: apt-get install %s (make test does)", shell, shell)
			}
			c := exec.CommandContext(t.Context(), shell)
			c.Stdin = strings.NewReader(block) // line by line, as one pastes it
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "at https://example.com/") || !strings.Contains(string(out), " 204 ") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
