package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// saidOfCommand is what the check warns of a system document's command.
func saidOfCommand(t *testing.T, parameters string) string {
	t.Helper()
	problems, warnings := look(t, quiet, map[string]string{
		"documents/_vance/_tenant/_vance/server-tools/browser.yaml": "type: mcp_server\nparameters:\n  transport: stdio\n  lease: none\n" + parameters,
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return strings.Join(warnings, "\n")
}

func TestAProgramThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "tool")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		parameters string
		warns      bool
	}{
		"on PATH":                        {"  command: [sh]\n", false},
		"not on PATH":                    {"  command: [no-such-program]\n", true},
		"by its path":                    {"  command: [" + tool + "]\n", false},
		"a path that leads nowhere":      {"  command: [" + tool + "x]\n", true},
		"below the folder":               {"  command: [./tool]\n  cwd: " + dir + "\n", false},
		"on the PATH of the environment": {"  command: [tool]\n  env: {PATH: " + dir + "}\n", false},
		"not on that PATH":               {"  command: [sh]\n  env: {PATH: " + dir + "}\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			got := saidOfCommand(t, c.parameters)
			if strings.Contains(got, ":5: parameters.command: there is no program") != c.warns {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestABrowserThatPlaywrightDoesNotFind(t *testing.T) {
	_, chrome := os.Stat(ChromePath)
	for name, c := range map[string]struct {
		args         string
		browser, box bool // warns of the browser, of the sandbox
	}{
		"nothing is said":             {"", chrome != nil, os.Geteuid() == 0},
		"Chromium by its path":        {", --executable-path, /usr/bin/chromium", false, os.Geteuid() == 0},
		"the same with =":             {", --executable-path=/usr/bin/chromium", false, os.Geteuid() == 0},
		"without the sandbox":         {", --no-sandbox", chrome != nil, false},
		"a browser that runs already": {", --cdp-endpoint, 'http://localhost:9222'", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := saidOfCommand(t, "  command: [sh, '@playwright/mcp@latest'"+c.args+"]\n")
			if strings.Contains(got, "add --executable-path") != c.browser || strings.Contains(got, "without --no-sandbox") != c.box {
				t.Errorf("%s", got)
			}
		})
	}
	if got := saidOfCommand(t, "  command: [sh, another-server]\n"); got != "" {
		t.Errorf("of a server that is none of Playwright's: %s", got)
	}
}
