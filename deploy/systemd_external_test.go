//go:build external

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// systemd reads the unit as it would before a start, and judges how exposed the
// service is. It starts nothing.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("systemd-analyze is missing: apt-get install systemd (make test does)")
	}
	text, err := os.ReadFile("systemd/mcp-lease-gateway.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "mcp-lease-gateway.service")
	installed := strings.ReplaceAll(string(text), "/usr/local/bin/mcp-lease-gateway", process.Binary(t))
	if err := os.WriteFile(unit, []byte(installed), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", unit).CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	// A service without any restriction has 96. What is left is what stdio servers
	// need: the network, namespaces, memory that they execute.
	if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=yes", "--threshold=40", unit).CombinedOutput(); err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
}
