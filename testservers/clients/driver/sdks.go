package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"

	mark "github.com/mark3labs/mcp-go/client"
	markmcp "github.com/mark3labs/mcp-go/mcp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// counted is a session and the progress events of its latest call.
type counted struct {
	session session
	events  atomic.Int64
}

func (c *counted) progressed()  { c.events.Add(1) }
func (c *counted) reset()       { c.events.Store(0) }
func (c *counted) count() int64 { return c.events.Load() }

// markSession is mcp-go's client.
type markSession struct{ c *mark.Client }

// accept is an elicitation's handler that always says yes.
type accept struct{}

func (accept) Elicit(context.Context, markmcp.ElicitationRequest) (*markmcp.ElicitationResult, error) {
	return &markmcp.ElicitationResult{ElicitationResponse: markmcp.ElicitationResponse{
		Action: markmcp.ElicitationResponseActionAccept, Content: map[string]any{"ok": true}}}, nil
}

func openMCPGo(ctx context.Context, url, _ string, progressed func()) (session, error) {
	transport, err := mark.NewStreamableHttpClient(url)
	if err != nil {
		return nil, err
	}
	c := mark.NewClient(transport.GetTransport(), mark.WithElicitationHandler(accept{}))
	c.OnNotification(func(n markmcp.JSONRPCNotification) {
		if n.Method == "notifications/progress" {
			progressed()
		}
	})
	if err := c.Start(context.WithoutCancel(ctx)); err != nil { // its life is the client's
		return nil, err
	}
	var init markmcp.InitializeRequest
	init.Params.ProtocolVersion = markmcp.LATEST_PROTOCOL_VERSION
	init.Params.ClientInfo = markmcp.Implementation{Name: "mcp-go", Version: "1"}
	if _, err := c.Initialize(ctx, init); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return markSession{c}, nil
}

func (m markSession) list(ctx context.Context) ([]string, error) {
	res, err := m.c.ListTools(ctx, markmcp.ListToolsRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range res.Tools {
		names = append(names, t.Name)
	}
	return names, nil
}

func (m markSession) call(ctx context.Context, tool string, args map[string]any, progress bool) (string, bool, error) {
	var req markmcp.CallToolRequest
	req.Params.Name, req.Params.Arguments = tool, args
	if progress {
		req.Params.Meta = &markmcp.Meta{ProgressToken: "p"}
	}
	res, err := m.c.CallTool(ctx, req)
	if err != nil {
		return "", false, err
	}
	return textOf(res.Content), res.IsError, nil
}

func (m markSession) close() error { return m.c.Close() }

// goSession is the official SDK's client.
type goSession struct{ s *mcp.ClientSession }

func openGoSDK(ctx context.Context, url, _ string, progressed func()) (session, error) {
	c := mcp.NewClient(&mcp.Implementation{Name: "go-sdk", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"ok": true}}, nil
		},
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { progressed() },
	})
	// The context of Connect bounds the session.
	s, err := c.Connect(context.WithoutCancel(ctx), &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		return nil, err
	}
	return goSession{s}, nil
}

func (g goSession) list(ctx context.Context) ([]string, error) {
	res, err := g.s.ListTools(ctx, nil)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range res.Tools {
		names = append(names, t.Name)
	}
	return names, nil
}

func (g goSession) call(ctx context.Context, tool string, args map[string]any, progress bool) (string, bool, error) {
	p := &mcp.CallToolParams{Name: tool, Arguments: args}
	if progress {
		p.SetProgressToken("p")
	}
	res, err := g.s.CallTool(ctx, p)
	if err != nil {
		return "", false, err
	}
	return textOf(res.Content), res.IsError, nil
}

func (g goSession) close() error { return g.s.Close() }

// textOf is the texts of a result, through the wire's form that both SDKs share.
func textOf(content any) string {
	b, err := json.Marshal(content)
	if err != nil {
		return err.Error()
	}
	var parts []struct{ Text string }
	if err := json.Unmarshal(b, &parts); err != nil {
		return string(b)
	}
	var texts []string
	for _, p := range parts {
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n")
}
