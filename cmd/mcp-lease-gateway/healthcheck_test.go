package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	_, url := upstream(t)
	p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1")})
	config := filepath.Join(p.Dir, "gateway.yaml")
	if code, out, errs := command(t, "healthcheck", "--config", config); code != 0 || out != "ready\n" {
		t.Errorf("a gateway that is ready: %d %s %s", code, out, errs)
	}
	p.Terminate(t)
	if code, _, errs := command(t, "healthcheck", "--config", config); code != 1 || !strings.Contains(errs, "does not answer") {
		t.Errorf("one that has stopped: %d %s", code, errs)
	}
}

func TestHealthcheckOfAGatewayThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	config := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(config, []byte("internal: {listen: \""+l.Addr().String()+"\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := command(t, "healthcheck", "--config", config, "--timeout", "50ms"); code != 1 || !strings.Contains(errs, "has not answered in time") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestReachable(t *testing.T) {
	for listen, want := range map[string]string{
		"0.0.0.0:8081": "127.0.0.1:8081", "[::]:8081": "[::1]:8081", ":8081": "localhost:8081",
		"127.0.0.1:8081": "127.0.0.1:8081", "10.0.0.7:8081": "10.0.0.7:8081", "[fd00::7]:8081": "[fd00::7]:8081", "inside:8081": "inside:8081",
	} {
		if got, err := reachable(listen); got != want || err != nil {
			t.Errorf("%s: %s, %v", listen, got, err)
		}
	}
}
