//go:build unix

// Package stdio is a test MCP server over stdio. Like a browser's launcher it
// starts a process that leaves its process group, its session and its parent,
// and it writes to standard error. The runner under test must find all of it.
//
// Tools: echo {text}, slow {ms}, big {bytes}, ask {what}, pids, environ, stderr
// {lines, text}, noise {text} (a line on standard output that is no message),
// exit {code}.
//
// A test runs it from its own binary: TestMain calls [MaybeRun] first, and
// [Command] is what to start.
package stdio

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// How this binary knows by its first argument what it is to be.
const (
	serverMark  = "mcp-stdio-test-server"
	launchMark  = "mcp-stdio-test-launcher"
	lingersMark = "mcp-stdio-test-lingerer"
)

// MaybeRun runs the server, or one of its processes, when the arguments say so,
// and does not return then.
func MaybeRun() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case serverMark:
		if err := Run(context.Background(), len(os.Args) > 2 && os.Args[2] == "stubborn"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			syscall.Exit(1)
		}
	case launchMark:
		launch(os.Args[2:])
	case lingersMark:
		if len(os.Args) > 2 {
			signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		}
		time.Sleep(time.Hour)
	default:
		return
	}
	syscall.Exit(0)
}

// Command is the server's command line. A stubborn one ignores SIGTERM and the
// end of its input, and so does its descendant.
func Command(stubborn bool) []string {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	args := []string{exe, serverMark}
	if stubborn {
		args = append(args, "stubborn")
	}
	return args
}

// launch starts the lingering process in a session of its own, prints its pid and
// ends, so that it is an orphan.
func launch(args []string) {
	exe, err := os.Executable()
	if err != nil {
		syscall.Exit(1)
	}
	c := exec.Command(exe, append([]string{lingersMark}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		syscall.Exit(1)
	}
	fmt.Println(c.Process.Pid)
}

// Pids is what the tool pids tells.
type Pids struct {
	Server     int `json:"server"`
	Descendant int `json:"descendant"` // left the group, the session and its parent
}

// Run serves on standard input and output until the input ends.
func Run(ctx context.Context, stubborn bool) error {
	var args []string
	if stubborn {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		args = append(args, "stubborn")
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, exe, append([]string{launchMark}, args...)...).Output()
	if err != nil {
		return fmt.Errorf("start the descendant: %w", err)
	}
	pids := Pids{Server: os.Getpid()}
	if pids.Descendant, err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "test server started, descendant", pids.Descendant)
	err = server.NewStdioServer(tools(pids)).Listen(ctx, os.Stdin, stdout)
	if stubborn {
		time.Sleep(time.Hour)
	}
	return err
}

// stdout is shared by mcp-go and the tool noise; each line is one Write.
var stdout = &lockedStdout{}

type lockedStdout struct{ mu sync.Mutex }

func (o *lockedStdout) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return os.Stdout.Write(b)
}

func tools(pids Pids) *server.MCPServer {
	m := server.NewMCPServer("stdio", "1.0.0", server.WithToolCapabilities(false))
	add := func(t mcp.Tool, run func(context.Context, mcp.CallToolRequest) (string, error)) {
		m.AddTool(t, func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			text, err := run(ctx, r)
			if err != nil {
				return mcp.NewToolResultError(err.Error()), nil
			}
			return mcp.NewToolResultText(text), nil
		})
	}
	add(mcp.NewTool("echo", mcp.WithString("text")), func(_ context.Context, r mcp.CallToolRequest) (string, error) {
		return r.GetString("text", ""), nil
	})
	add(mcp.NewTool("slow", mcp.WithNumber("ms")), func(ctx context.Context, r mcp.CallToolRequest) (string, error) {
		select {
		case <-time.After(time.Duration(r.GetInt("ms", 0)) * time.Millisecond):
			return "done", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	add(mcp.NewTool("big", mcp.WithNumber("bytes")), func(_ context.Context, r mcp.CallToolRequest) (string, error) {
		return strings.Repeat("x", max(0, r.GetInt("bytes", 0))), nil
	})
	add(mcp.NewTool("pids"), func(context.Context, mcp.CallToolRequest) (string, error) {
		b, err := json.Marshal(pids)
		return string(b), err
	})
	add(mcp.NewTool("environ"), func(context.Context, mcp.CallToolRequest) (string, error) {
		b, err := json.Marshal(os.Environ())
		return string(b), err
	})
	add(mcp.NewTool("stderr", mcp.WithNumber("lines"), mcp.WithString("text")), func(_ context.Context, r mcp.CallToolRequest) (string, error) {
		w := bufio.NewWriter(os.Stderr)
		for range r.GetInt("lines", 1) {
			fmt.Fprintln(w, r.GetString("text", "a line"))
		}
		return "written", w.Flush()
	})
	add(mcp.NewTool("noise", mcp.WithString("text")), func(_ context.Context, r mcp.CallToolRequest) (string, error) {
		_, err := stdout.Write([]byte(r.GetString("text", "npm WARN deprecated") + "\n"))
		return "made", err
	})
	add(mcp.NewTool("exit", mcp.WithNumber("code")), func(_ context.Context, r mcp.CallToolRequest) (string, error) {
		syscall.Exit(r.GetInt("code", 0))
		return "", nil
	})
	add(mcp.NewTool("ask", mcp.WithString("what")), func(ctx context.Context, r mcp.CallToolRequest) (string, error) {
		return ask(ctx, m, r.GetString("what", ""))
	})
	return m
}

// ask asks the client and returns its answer as JSON.
func ask(ctx context.Context, m *server.MCPServer, what string) (string, error) {
	var answer any
	var err error
	switch what {
	case "sampling":
		var r mcp.CreateMessageRequest
		r.Messages = []mcp.SamplingMessage{{Role: mcp.RoleUser, Content: mcp.NewTextContent("What is on the page?")}}
		r.MaxTokens = 100
		//lint:ignore SA1019 servers of the revisions with sampling ask so
		answer, err = m.RequestSampling(ctx, r)
	case "elicitation":
		var r mcp.ElicitationRequest
		r.Params.Message = "May I click?"
		r.Params.RequestedSchema = map[string]any{"type": "object", "properties": map[string]any{"ok": map[string]any{"type": "boolean"}}}
		answer, err = m.RequestElicitation(ctx, r)
	case "roots":
		answer, err = m.RequestRoots(ctx, mcp.ListRootsRequest{})
	default:
		err = fmt.Errorf("no such question: %s", what)
	}
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(answer)
	return string(b), err
}
