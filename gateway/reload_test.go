package gateway_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// reloading is a Reloader whose file is what the test says.
func reloading(t *testing.T, path string, load func() (*config.Gateway, error)) (*gateway.Reloader, *output.Buffer, chan string) {
	t.Helper()
	log := &output.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	state, err := gateway.NewState(t.Context(), gatewayConfig(), true, nil, logger)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := make(chan string, 16)
	return &gateway.Reloader{
		Path: path, Load: load, Live: gateway.NewLive(state),
		Build: func(ctx context.Context, c *config.Gateway, previous *gateway.State) (*gateway.State, error) {
			return gateway.NewState(ctx, c, true, previous, logger)
		},
		Outcome: func(o string) { outcomes <- o },
		Log:     logger,
	}, log, outcomes
}

func TestLook(t *testing.T) {
	var next *config.Gateway
	var fails error
	r, log, outcomes := reloading(t, "gateway.yaml", func() (*config.Gateway, error) { return next, fails })
	next = gatewayConfig()
	r.Look(t.Context())
	for len(outcomes) > 0 {
		<-outcomes
	}
	t.Run("the same file again is no reload", func(t *testing.T) {
		next = gatewayConfig()
		r.Look(t.Context())
		if len(outcomes) != 0 {
			t.Error(<-outcomes)
		}
	})
	t.Run("limits count at once, and a listener from the next start on", func(t *testing.T) {
		next = gatewayConfig()
		next.Limits.PerPod, next.Listen = 7, "127.0.0.1:9"
		r.Look(t.Context())
		if got := <-outcomes; got != "ok" || r.Live.Limits().PerPod != 7 || !strings.Contains(log.String(), "keys=listen") {
			t.Errorf("%s %d %s", got, r.Live.Limits().PerPod, log.String())
		}
	})
	t.Run("a key is said as it stands in the file", func(t *testing.T) {
		next = gatewayConfig()
		next.Limits.PerPod, next.Listen, next.TLS.Cert, next.PublicURL = 7, "127.0.0.1:9", "tls.crt", "https://gw.example"
		r.Look(t.Context())
		if got := <-outcomes; got != "ok" || !strings.Contains(log.String(), `keys="tls, publicURL`) {
			t.Errorf("%s %s", got, log.String())
		}
	})
	t.Run("what is odd in a file is no key that needs a restart", func(t *testing.T) {
		said := strings.Count(log.String(), "keys=")
		next = gatewayConfig()
		next.Limits.PerPod, next.Listen, next.TLS.Cert, next.PublicURL = 7, "127.0.0.1:9", "tls.crt", "https://gw.example"
		next.Warnings = config.Problems{{File: "gateway.yaml", Line: 3, Key: "identity", What: "it names no credential"}}
		r.Look(t.Context())
		if got := <-outcomes; got != "ok" || strings.Count(log.String(), "keys=") != said {
			t.Errorf("%s %s", got, log.String())
		}
	})
	t.Run("an invalid file keeps the state and is said once", func(t *testing.T) {
		fails = errors.New("gateway.yaml:3: limits.perPod: too small")
		r.Look(t.Context())
		r.Look(t.Context())
		if got := <-outcomes; got != "invalid" || len(outcomes) != 0 || r.Live.Limits().PerPod != 7 {
			t.Errorf("%s, %d more, perPod %d", got, len(outcomes), r.Live.Limits().PerPod)
		}
		if n := strings.Count(log.String(), "gateway.yaml:3: limits.perPod"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
	t.Run("what cannot be built keeps the state", func(t *testing.T) {
		fails = nil
		next = gatewayConfig()
		next.Limits.PerPod, next.Egress.Allow = 9, []string{"10.0.0.0/99"}
		r.Look(t.Context())
		if got := <-outcomes; got != "invalid" || r.Live.Limits().PerPod != 7 {
			t.Errorf("%s, perPod %d", got, r.Live.Limits().PerPod)
		}
	})
}

// A mounted ConfigMap is a folder of links into a folder that is swapped.
func TestASwappedConfigMapIsSeen(t *testing.T) {
	dir := t.TempDir()
	mount := func(name, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "gateway.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(name, filepath.Join(dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("..one", "100")
	path := filepath.Join(dir, "gateway.yaml")
	if err := os.Symlink("..data/gateway.yaml", path); err != nil {
		t.Fatal(err)
	}
	looked := make(chan struct{}, 64)
	r, _, outcomes := reloading(t, path, func() (*config.Gateway, error) {
		text, err := os.ReadFile(path)
		c := gatewayConfig()
		c.Limits.PerPod = len(text)
		if string(text) == "100" {
			c.Limits.PerPod = 100
		}
		looked <- struct{}{}
		return c, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	<-looked // the watch stands before the first look
	mount("..two", "a longer text")
	select {
	case got := <-outcomes:
		if got != "ok" || r.Live.Limits().PerPod != len("a longer text") {
			t.Errorf("%s, perPod %d", got, r.Live.Limits().PerPod)
		}
	case <-time.After(10 * time.Second): // before the poll, which would see it too
		t.Error("the swap was not seen")
	}
	cancel()
	<-ended
}

// A client listens for hours; its key may be withdrawn within the first minute.
func TestAStreamEndsWithTheKeyThatOpenedIt(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	p.backend.hold = make(chan struct{})
	defer close(p.backend.hold)
	next := gatewayConfig()
	r := &gateway.Reloader{
		Path: "gateway.yaml", Load: func() (*config.Gateway, error) { return next, nil }, Live: p.live,
		Build: func(ctx context.Context, c *config.Gateway, previous *gateway.State) (*gateway.State, error) {
			return gateway.NewState(ctx, c, true, previous, slog.New(slog.DiscardHandler))
		},
		Outcome: func(string) {}, Log: slog.New(slog.DiscardHandler),
	}
	r.Look(t.Context())
	listen := func(tenant, method string, header ...string) <-chan error {
		req, err := http.NewRequestWithContext(t.Context(), method, p.url+"/mcp/"+tenant+"/p/browser", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		over := make(chan error, 1)
		go func() {
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				resp.Body.Close()
			}
			over <- err
		}()
		<-p.backend.reached
		return over
	}
	brain := []string{"Authorization", "Bearer brain-secret", "X-Vance-User", "u42"}
	withdrawn, others := listen("acme", "GET", brain...), listen("dev", "GET")
	call := listen("acme", "POST", brain...)

	next = gatewayConfig()
	next.Limits.PerPod = 99 // a change that is none of theirs
	r.Look(t.Context())
	next = gatewayConfig()
	next.Identity.APIKeys[0].UserHeader = "" // it speaks for users no more
	r.Look(t.Context())
	select {
	case <-withdrawn:
	case <-others:
		t.Fatal("the stream of somebody else has ended")
	case <-call:
		t.Fatal("a call under way was cut")
	case <-time.After(10 * time.Second):
		t.Fatal("the stream goes on")
	}
	select {
	case <-others:
		t.Error("the stream of somebody else has ended")
	case <-call:
		t.Error("a call under way was cut")
	default:
	}
}
