//go:build unix

package stdio_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	runner "github.com/vancetope/mcp-lease-gateway/session/stdio"
	"github.com/vancetope/mcp-lease-gateway/testservers/stdio"
)

func TestMain(m *testing.M) {
	runner.MaybeRunGuard()
	stdio.MaybeRun()
	os.Exit(m.Run())
}

// client speaks to the server through the gateway's runner.
type client struct {
	t *testing.T
	p *runner.Process
	n int
}

func open(t *testing.T, stubborn bool) *client {
	t.Helper()
	p, err := runner.Start(t.Context(), runner.Command{Args: stdio.Command(stubborn), Env: map[string]string{"EXTRA": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, p: p}
	t.Cleanup(c.kill)
	c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"roots":{},"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	if got := c.next(); !strings.Contains(got, `"serverInfo"`) {
		t.Fatalf("initialize: %s", got)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

func (c *client) kill() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.p.Close(ctx); err != nil {
		c.t.Error(err)
	}
}

func (c *client) send(line string) {
	c.t.Helper()
	if err := c.p.Send(c.t.Context(), []byte(line)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) next() string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	b, err := c.p.Next(ctx)
	if err != nil {
		c.t.Fatalf("%v (%v)", err, c.p.Err())
	}
	return string(b)
}

func (c *client) begin(tool, arguments string) {
	c.t.Helper()
	c.n++
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, c.n, tool, arguments))
}

func (c *client) text(message string) string {
	c.t.Helper()
	var m struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(message), &m); err != nil || len(m.Result.Content) == 0 {
		c.t.Fatalf("%.200s: %v", message, err)
	}
	return m.Result.Content[0].Text
}

func (c *client) call(tool, arguments string) string {
	c.t.Helper()
	c.begin(tool, arguments)
	return c.text(c.next())
}

func TestTools(t *testing.T) {
	c := open(t, false)
	if got := c.call("echo", `{"text":"grüß"}`); got != "grüß" {
		t.Errorf("echo: %q", got)
	}
	if got := c.call("slow", `{"ms":1}`); got != "done" {
		t.Errorf("slow: %q", got)
	}
	if got := c.call("big", `{"bytes":5000000}`); len(got) != 5_000_000 {
		t.Errorf("big: %d bytes", len(got))
	}
	if got := c.call("stderr", `{"lines":1000}`); got != "written" {
		t.Errorf("stderr: %q", got)
	}
	if got := c.call("environ", `{}`); !strings.Contains(got, "EXTRA=1") || strings.Contains(got, "GOFLAGS") {
		t.Errorf("environ: %s", got)
	}
	c.begin("noise", `{"text":"no message"}`)
	if got := c.next(); got != "no message" {
		t.Errorf("noise: %q", got)
	}
	c.next()
}

func TestTheServerAsksTheClient(t *testing.T) {
	c := open(t, false)
	for what, answer := range map[string]string{
		"sampling":    `{"role":"assistant","content":{"type":"text","text":"a page"},"model":"m"}`,
		"elicitation": `{"action":"accept","content":{"ok":true}}`,
		"roots":       `{"roots":[{"uri":"file:///x"}]}`,
	} {
		t.Run(what, func(t *testing.T) {
			c.begin("ask", fmt.Sprintf(`{"what":%q}`, what))
			var q struct{ ID json.RawMessage }
			if err := json.Unmarshal([]byte(c.next()), &q); err != nil {
				t.Fatal(err)
			}
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, answer))
			if got := c.text(c.next()); !strings.Contains(got, "page") && !strings.Contains(got, "accept") && !strings.Contains(got, "file:///x") {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestNothingIsLeftOfIt(t *testing.T) {
	for name, end := range map[string]func(c *client) error{
		"after a graceful close": func(c *client) error { return c.p.Close(c.t.Context()) },
		"after a kill":           func(c *client) error { c.kill(); return nil },
		"after it ended itself": func(c *client) error {
			c.begin("exit", `{"code":3}`)
			<-c.p.Done()
			var exit *runner.ExitError
			if !errors.As(c.p.Err(), &exit) || exit.Code != 3 {
				return fmt.Errorf("ended with %v", c.p.Err())
			}
			return nil
		},
	} {
		for _, stubborn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stubborn %v", name, stubborn), func(t *testing.T) {
				t.Parallel()
				c := open(t, stubborn)
				var pids stdio.Pids
				if err := json.Unmarshal([]byte(c.call("pids", `{}`)), &pids); err != nil {
					t.Fatal(err)
				}
				for _, pid := range []int{pids.Server, pids.Descendant} {
					if err := syscall.Kill(pid, 0); err != nil {
						t.Fatalf("process %d does not run: %v", pid, err)
					}
				}
				if err := end(c); err != nil {
					t.Fatal(err)
				}
				for _, pid := range []int{pids.Server, pids.Descendant} {
					if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
						t.Errorf("process %d is still there (%v)", pid, err)
					}
				}
			})
		}
	}
}
