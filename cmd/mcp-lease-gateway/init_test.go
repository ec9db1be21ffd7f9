package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config/check"
)

// initialized runs init for a kind under a strict umask, as many servers have one.
func initialized(t *testing.T, kind string) (dir, out string) {
	t.Helper()
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	dir = filepath.Join(t.TempDir(), "gateway")
	code, out, errs := command(t, "init", "--for", kind, dir)
	if code != 0 {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	return dir, out
}

func modes(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		name, _ := filepath.Rel(dir, path)
		out[name] = fmt.Sprintf("%o", info.Mode().Perm())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestInitForGivesFilesToWhoMustReadThem(t *testing.T) {
	for kind, want := range map[string]map[string]string{
		"local":      {"gateway.yaml": "600", starterLease: "640"},
		"systemd":    {".": "755", "gateway.yaml": "644", "credentials": "700", "credentials/session.key": "600", "credentials/internal.token": "600", "documents": "755", starterLease: "644", starterServer: "644"},
		"docker":     {".": "755", "gateway.yaml": "644", "environment": "600", "documents/_vance": "755", starterServer: "644"},
		"kubernetes": {"secret.yaml": "600", "values.yaml": "644"},
	} {
		dir, _ := initialized(t, kind)
		got := modes(t, dir)
		for name, mode := range want {
			if got[name] != mode {
				t.Errorf("%s: %s is %s, want %s", kind, name, got[name], mode)
			}
		}
	}
}

func TestInitLeavesNoPlaceholder(t *testing.T) {
	for kind := range starterKinds {
		dir, out := initialized(t, kind)
		for name := range modes(t, dir) {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if left := regexp.MustCompile(`@[A-Z_0-9]+@`).FindString(out + string(text)); left != "" && err == nil {
				t.Errorf("%s: %s has %s", kind, name, left)
			}
		}
	}
}

func TestInitForSomethingElse(t *testing.T) {
	if code, _, errs := command(t, "init", "--for", "windows", t.TempDir()); code != codeUsage || !strings.Contains(errs, "docker, kubernetes, local, systemd") {
		t.Errorf("%d %s", code, errs)
	}
}

// shownKey is the key that init has shown, whose hash the file must have.
func shownKey(t *testing.T, out, file string) {
	t.Helper()
	m := regexp.MustCompile(`Authorization: Bearer ([0-9a-f]{64})\n`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no key in\n%s", out)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), fmt.Sprintf("sha256: %x\n", sha256.Sum256([]byte(m[1])))) || strings.Contains(string(text), m[1]) {
		t.Errorf("%v\n%s", err, text)
	}
}

func inOrder(t *testing.T, dir string) {
	t.Helper()
	code, out, errs := command(t, "check", "--config", filepath.Join(dir, "gateway.yaml"))
	if code != 0 || !strings.Contains(out, "2 documents of your own") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

func TestInitForDocker(t *testing.T) {
	dir, out := initialized(t, "docker")
	shownKey(t, out, filepath.Join(dir, "gateway.yaml"))
	env, err := os.Open(filepath.Join(dir, "environment"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = env.Close() }()
	for lines := bufio.NewScanner(env); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(name, "#") {
			t.Setenv(name, value)
		}
	}
	inOrder(t, dir)
}

func TestInitForSystemd(t *testing.T) {
	dir, out := initialized(t, "systemd")
	shownKey(t, out, filepath.Join(dir, "gateway.yaml"))
	unit, err := os.ReadFile(filepath.Join(dir, "mcp-lease-gateway.service"))
	if err != nil {
		t.Fatal(err)
	}
	deployed, err := os.ReadFile("../../deploy/systemd/mcp-lease-gateway.service")
	if err != nil || string(deployed) != string(unit) {
		t.Errorf("deploy/systemd has another unit than init writes: %v", err)
	}
	// What systemd does before the start.
	config := filepath.Join(dir, "gateway.yaml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.NewReplacer("/etc/mcp-lease-gateway", dir)
	for _, m := range regexp.MustCompile(`(?m)^LoadCredential=([a-z.]+):/etc/mcp-lease-gateway/(\S+)$`).FindAllStringSubmatch(string(unit), -1) {
		if !strings.Contains(string(text), "${file:/run/credentials/mcp-lease-gateway.service/"+m[1]+"}") {
			t.Errorf("gateway.yaml does not use the credential %s", m[1])
		}
		text = []byte(strings.ReplaceAll(string(text), "/run/credentials/mcp-lease-gateway.service/"+m[1], filepath.Join(dir, m[2])))
	}
	if err := os.WriteFile(config, []byte(moved.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	inOrder(t, dir)
}

func TestInitForKubernetes(t *testing.T) {
	dir, out := initialized(t, "kubernetes")
	shownKey(t, out, filepath.Join(dir, "values.yaml"))
	var values struct {
		ExistingSecret string `yaml:"existingSecret"`
		Documents      map[string]string
	}
	var secret struct {
		Metadata   struct{ Name string }
		StringData map[string]string `yaml:"stringData"`
	}
	for name, v := range map[string]any{"values.yaml": &values, "secret.yaml": &secret} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, v); err != nil {
			t.Fatal(err)
		}
	}
	if values.ExistingSecret != secret.Metadata.Name || len(secret.StringData) != 3 || len(secret.StringData["SESSION_KEY"]) != 44 || len(values.Documents) != 2 {
		t.Errorf("%+v %+v", values, secret)
	}
}

// The server's Chromium is this machine's, where Google Chrome is not there.
func TestInitNamesTheBrowserThatIsThere(t *testing.T) {
	bin := t.TempDir()
	chromium := filepath.Join(bin, "chromium")
	if err := os.WriteFile(chromium, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	dir, out := initialized(t, "local")
	text, err := os.ReadFile(filepath.Join(dir, starterServer))
	if err != nil {
		t.Fatal(err)
	}
	_, chromeErr := os.Stat(check.ChromePath)
	if strings.Contains(string(text), "--executable-path, "+chromium+"]") != (chromeErr != nil) {
		t.Errorf("%s", text)
	}
	if !strings.Contains(out, "npx is not on PATH") {
		t.Errorf("%s", out)
	}
	t.Setenv("PATH", t.TempDir())
	if _, out := initialized(t, "local"); strings.Contains(out, "neither Google Chrome nor Chromium") != (chromeErr != nil) {
		t.Errorf("%s", out)
	}
}
