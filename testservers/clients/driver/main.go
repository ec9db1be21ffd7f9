// Command driver drives one client written in Go for a test;
// testservers/node/driver.mjs says which lines it takes and answers.
//
//	driver mcp-go|go-sdk|brain
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// patience bounds every request of every client.
const patience = 30 * time.Second

// kind is a client.
type kind struct {
	module                string // whose version is told
	elicitation, progress bool
	open                  func(ctx context.Context, url, token string, progressed func()) (session, error)
}

// session is a client's session.
type session interface {
	list(ctx context.Context) ([]string, error)
	call(ctx context.Context, tool string, args map[string]any, progress bool) (text string, isError bool, err error)
	close() error
}

var kinds = map[string]kind{
	"mcp-go": {module: "github.com/mark3labs/mcp-go", elicitation: true, progress: true, open: openMCPGo},
	"go-sdk": {module: "github.com/modelcontextprotocol/go-sdk", elicitation: true, progress: true, open: openGoSDK},
	"brain":  {open: openBrain},
}

// command is a line that the driver takes.
type command struct {
	Do        string         `json:"do"`
	As        string         `json:"as"`
	URL       string         `json:"url"`
	Token     string         `json:"token"` // a bearer token, for clients that have one
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
	Progress  bool           `json:"progress"`
}

func main() {
	if len(os.Args) != 2 || kinds[os.Args[1]].open == nil {
		fmt.Fprintln(os.Stderr, "driver: want mcp-go, go-sdk or brain")
		os.Exit(2)
	}
	d := driver{kind: kinds[os.Args[1]], sessions: map[string]*counted{}}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		answer := map[string]any{}
		var c command
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			answer["error"] = err.Error()
		} else if ok, err := d.act(c); err != nil {
			answer["error"] = err.Error()
		} else {
			answer["ok"] = ok
		}
		line, err := json.Marshal(answer)
		if err != nil {
			panic(err) // texts and numbers only
		}
		fmt.Printf("%s\n", line)
	}
}

type driver struct {
	kind     kind
	sessions map[string]*counted
}

func (d *driver) act(c command) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch c.Do {
	case "state":
		return map[string]any{"version": version(d.kind.module), "elicitation": d.kind.elicitation, "events": d.kind.progress}, nil
	case "open":
		s := &counted{}
		var err error
		if s.session, err = d.kind.open(ctx, c.URL, c.Token, s.progressed); err != nil {
			return nil, err
		}
		d.sessions[c.As] = s
		return map[string]any{}, nil
	}
	s := d.sessions[c.As]
	if s == nil {
		return nil, fmt.Errorf("no session %q is open", c.As)
	}
	switch c.Do {
	case "list":
		tools, err := s.session.list(ctx)
		return map[string]any{"tools": tools}, err
	case "call":
		s.reset()
		text, isError, err := s.session.call(ctx, c.Name, c.Arguments, c.Progress)
		return map[string]any{"text": text, "isError": isError, "progress": s.count()}, err
	case "close":
		delete(d.sessions, c.As)
		return map[string]any{}, s.session.close()
	}
	return nil, fmt.Errorf("no such command: %s", c.Do)
}

// version is the one of a module in this program.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return strings.TrimPrefix(d.Version, "v")
		}
	}
	return ""
}
