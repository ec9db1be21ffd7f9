package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
)

// ChromePath is where Playwright looks for Google Chrome on Linux.
const ChromePath = "/opt/google/chrome/chrome"

// browserFlags tell Playwright which browser to take; without one of them it takes
// Google Chrome.
var browserFlags = []string{"--executable-path", "--browser", "--cdp-endpoint", "--endpoint", "--extension", "--config"}

// program warns of a child process that cannot work on this machine. It is no
// problem: the check may run elsewhere than the gateway.
func (r *run) program(f document.Found, c server.Checked) {
	const key = "parameters.command"
	d, line := c.Document, c.Line(key)
	if d.Transport != server.Stdio || len(d.Command) == 0 {
		return
	}
	if name := d.Command[0]; !runs(name, d.Cwd, d.Env["PATH"]) {
		r.warn(f.Name, line, key, "there is no program "+name+" on this machine (PATH), so no session of this server can be opened here")
	}
	if runtime.GOOS != "linux" || !slices.ContainsFunc(d.Command, func(a string) bool { return strings.Contains(a, "@playwright/mcp") }) {
		return
	}
	if _, err := os.Stat(ChromePath); err != nil && !hasFlag(d.Command, browserFlags...) {
		r.warn(f.Name, line, key, "Playwright takes Google Chrome, which is not on this machine: its first call will fail; for Debian's Chromium add --executable-path, /usr/bin/chromium")
	}
	if os.Geteuid() == 0 && !hasFlag(d.Command, "--no-sandbox", "--cdp-endpoint", "--endpoint", "--config") {
		r.warn(f.Name, line, key, "for root, who runs this check, Chrome does not start without --no-sandbox: run the gateway as another user")
	}
}

// runs reports whether a program can be found as the guard of a child finds it.
func runs(name, cwd, path string) bool {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(cwd, name)
		}
		_, err := exec.LookPath(name)
		return err == nil
	}
	if path == "" {
		_, err := exec.LookPath(name)
		return err == nil
	}
	return slices.ContainsFunc(filepath.SplitList(path), func(dir string) bool {
		_, err := exec.LookPath(filepath.Join(dir, name))
		return err == nil
	})
}

func hasFlag(args []string, flags ...string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name, _, _ := strings.Cut(a, "=")
		return slices.Contains(flags, name)
	})
}
