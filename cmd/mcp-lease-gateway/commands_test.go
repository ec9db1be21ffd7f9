package main

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
)

// command runs the program in this process.
func command(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = execute(t.Context(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
		out  string
		errs string
	}{
		{"no command is a wrong usage", nil, 2, "Available Commands", "name a command"},
		{"an unknown command is", []string{"server"}, 2, "", "unknown command"},
		{"an unknown flag is", []string{"serve", "--port", "1"}, 2, "", "unknown flag"},
		{"an argument too many is", []string{"check", "x"}, 2, "", "unknown command"},
		{"two folders are", []string{"init", "a", "b"}, 2, "", "at most 1"},
		{"a level of no log is", []string{"serve", "--log-level", "loud"}, 2, "", "--log-level is"},
		{"a format of no log is", []string{"serve", "--log-format", "xml"}, 2, "", "--log-format is"},
		{"help is asked for", []string{"serve", "--help"}, 0, "SIGTERM", ""},
		{"the version says where it runs", []string{"version"}, 0, "linux/", ""},
		{"a missing file fails", []string{"serve", "--config", "/nowhere/gateway.yaml"}, 1, "", "/nowhere/gateway.yaml: the file cannot be read"},
		{"a missing file is a problem of check", []string{"check", "--config", "/nowhere/gateway.yaml"}, 1, "/nowhere/gateway.yaml: the file cannot be read", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := command(t, c.args...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) {
				t.Errorf("exit code %d, want %d\nout: %s\nerr: %s", code, c.code, out, errs)
			}
		})
	}
}

func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "gateway")
	code, out, errs := command(t, "init", dir)
	if code != 0 || !strings.Contains(out, "serve --config "+filepath.Join(dir, "gateway.yaml")) {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	t.Run("what it writes is in order", func(t *testing.T) {
		code, out, errs := command(t, "check", "--config", filepath.Join(dir, "gateway.yaml"))
		// What this machine lacks for the server's program is no fault of the files.
		warnings := strings.Count(out, ": warning: ") - strings.Count(out, ": warning: parameters.command: ")
		if code != 0 || warnings > 0 || !strings.Contains(out, "gateway.yaml and 2 documents of your own (and ") {
			t.Errorf("%d %s %s", code, out, errs)
		}
	})
	t.Run("only its owner reads the file in which keys will stand", func(t *testing.T) {
		info, err := os.Stat(filepath.Join(dir, "gateway.yaml"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info.Mode(), err)
		}
	})
	t.Run("it replaces nothing", func(t *testing.T) {
		other := t.TempDir()
		mine := filepath.Join(other, "gateway.yaml")
		if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := command(t, "init", other)
		text, err := os.ReadFile(mine)
		if code != 1 || !strings.Contains(errs, "is there already") || err != nil || string(text) != "mine" {
			t.Errorf("%d %s %q %v", code, errs, text, err)
		}
		if entries, err := os.ReadDir(other); err != nil || len(entries) != 1 {
			t.Errorf("it wrote beside the file that was in the way: %v %v", entries, err)
		}
	})
}

func TestExamplesAreInOrder(t *testing.T) {
	for name, value := range map[string]string{
		"MONGODB_URI": "mongodb://127.0.0.1:27017/", "POD_IP": "10.0.0.7", "TEX_KEY": "secret",
		"SESSION_KEY": base64.StdEncoding.EncodeToString(make([]byte, 32)), "VANCE_INTERNAL_TOKEN": strings.Repeat("x", 64),
	} {
		t.Setenv(name, value)
	}
	checked := 0
	err := filepath.WalkDir("../../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "gateway.yaml" {
			return err
		}
		checked++
		code, out, errs := command(t, "check", "--config", path)
		if code != 0 || strings.Contains(out, "warning") {
			t.Errorf("%s: %d %s %s", path, code, out, errs)
		}
		return nil
	})
	if err != nil || checked == 0 {
		t.Errorf("%d examples, %v", checked, err)
	}
}

func TestCheckSaysFileLineAndKey(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "gateway.yaml")
	write("gateway.yaml", "listen: 127.0.0.1:8080\nlimits:\n  perPod: -1\n  unknown: 1\n")
	code, out, errs := command(t, "check", "--config", config)
	if !strings.Contains(errs, "2 problems in gateway.yaml; the documents were not looked at") {
		t.Errorf("%s", errs)
	}
	for _, want := range []string{config + ":3: limits.perPod", config + ":4: "} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("%d, %q is not in:\n%s", code, want, out)
		}
	}
	write("gateway.yaml", "identity:\n  anonymous: {tenant: dev, projects: [\"*\"]}\n")
	write("documents/acme/thesis/_vance/server-tools/shell.yaml", "name: shell\ntype: mcp_server\nenabled: true\nparameters:\n  transport: stdio\n  command: [sh]\n")
	write("documents/acme/_tenant/_vance/config/lease/browser.yaml", "name: browser\nlevels:\n  user: 0\n")
	secret := filepath.Join(t.TempDir(), "secret.yaml")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(dir, "documents/acme/thesis/_vance/server-tools")
	if err := os.Symlink(secret, filepath.Join(tools, "outside.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("circle.yaml", filepath.Join(tools, "circle.yaml")); err != nil {
		t.Fatal(err)
	}
	write("documents/acme/thesis/_vance/server-tools/long.yaml", strings.Repeat("#", 65<<10))
	code, out, _ = command(t, "check", "--config", config)
	for _, want := range []string{"server-tools/shell.yaml:6: parameters.command", "lease/browser.yaml:3: levels.user",
		"\n" + tools + "/outside.yaml: a symbolic link leads out", "\n" + tools + "/circle.yaml: symbolic links lead in a circle",
		"\n" + tools + "/long.yaml: the document is longer than 64 KiB"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("%d, %q is not in:\n%s", code, want, out)
		}
	}
}

// TestATenantsDocumentCannotSteerTheTerminal: messages quote the keys of documents.
func TestATenantsDocumentCannotSteerTheTerminal(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"gateway.yaml": "identity:\n  anonymous: {tenant: dev, projects: [\"*\"]}\n",
		"documents/acme/thesis/_vance/config/lease/browser.yaml":   "name: browser\n\"\\e[2J\\u202e\\u009b\\nall is well\": 1\n",
		"documents/acme/thesis/_vance/server-tools/browser.yaml":   "type: mcp_server\nparameters: {url: \"http://a.example/\", \"\\e[2J\\nall is well\": 1}\n",
		"documents/acme/thesis/_vance/server-tools/x\x1b[2Jy.yaml": "type: mcp_server\n",
		"token": "internal-token-of-this-test",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write([]byte(`{"error":{"code":"INVALID_DEFINITION","message":"browser.yaml:2: \u001b[2J\u202e\u009b: unknown key"}}`))
	}))
	defer pod.Close()
	for name, args := range map[string][]string{
		"check":      {"check", "--config", filepath.Join(dir, "gateway.yaml")},
		"definition": {"lease", "definition", "browser", "--tenant", "acme", "--project", "thesis", "--endpoint", pod.URL, "--token-file", filepath.Join(dir, "token")},
	} {
		code, out, errs := command(t, args...)
		if code != 1 || !strings.Contains(out+errs, "unknown key") || strings.ContainsAny(out+errs, "\x1b\u202e\u009b") || strings.Contains(out+errs, "\nall is well") {
			t.Errorf("%s: %d %q %q", name, code, out, errs)
		}
	}
}

func TestOwnSecrets(t *testing.T) {
	gateway := func(dir string) *config.Gateway {
		return &config.Gateway{Path: "gateway.yaml", Store: config.Store{Kind: "embedded", Path: filepath.Join(dir, "data", "leases.db")}}
	}
	t.Run("are made once, for their owner only, and found again", func(t *testing.T) {
		dir := t.TempDir()
		first, second := gateway(dir), gateway(dir)
		if token, err := internalToken(first); token != "" || err != nil {
			t.Errorf("a token before there is one: %q %v", token, err)
		}
		made, err := ownSecrets(first)
		if err != nil || len(made) != 2 {
			t.Fatalf("%v %v", made, err)
		}
		for _, file := range made {
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v %v", file, info, err)
			}
		}
		made, err = ownSecrets(second)
		if err != nil || len(made) != 0 {
			t.Fatalf("again: %v %v", made, err)
		}
		if !bytes.Equal(first.Session.Keys[0], second.Session.Keys[0]) || first.Internal.Tokens[0] != second.Internal.Tokens[0] {
			t.Error("they are others the second time")
		}
		if token, err := internalToken(gateway(dir)); token != first.Internal.Tokens[0] || err != nil {
			t.Errorf("the commands find %q %v", token, err)
		}
	})
	t.Run("those of gateway.yaml count", func(t *testing.T) {
		dir := t.TempDir()
		g := gateway(dir)
		g.Session.Keys, g.Internal.Tokens = [][]byte{make([]byte, seal.KeySize)}, []string{"configured"}
		if made, err := ownSecrets(g); err != nil || len(made) != 0 || g.Internal.Tokens[0] != "configured" {
			t.Errorf("%v %v", made, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
			t.Error("a folder was made for nothing")
		}
	})
	t.Run("a broken key is said and not replaced", func(t *testing.T) {
		g := gateway(t.TempDir())
		if err := writeNew(secretPath(g, sessionKeyFile), "half a key"); err != nil {
			t.Fatal(err)
		}
		if _, err := ownSecrets(g); err == nil || !strings.Contains(err.Error(), "does not hold a session key") {
			t.Error(err)
		}
	})
	t.Run("pods that share a store are not given any", func(t *testing.T) {
		g := gateway(t.TempDir())
		g.Store.Kind = "mongodb"
		if _, err := ownSecrets(g); err == nil || !strings.Contains(err.Error(), "session.keys is not set") {
			t.Error(err)
		}
	})
}

func TestPodIDsAreNeverTheSame(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		id := string(newPodID())
		if seen[id] || strings.ContainsAny(id, "|/ ") {
			t.Fatalf("%q", id)
		}
		seen[id] = true
	}
}
