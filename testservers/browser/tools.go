package browser

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// tools is the part that mcp-go serves.
func (s *Server) tools() *server.MCPServer {
	m := server.NewMCPServer("browser", "1.0.0", server.WithToolCapabilities(false), server.WithInstructions("A test server."))
	m.AddTool(mcp.NewTool("navigate", mcp.WithDescription("Go to a page"), mcp.WithString("url", mcp.Required())),
		s.inSession(func(_ context.Context, e *session, r mcp.CallToolRequest) (string, error) {
			e.page = r.GetString("url", "")
			return "at " + e.page, nil
		}))
	m.AddTool(mcp.NewTool("snapshot", mcp.WithDescription("What the page shows")),
		s.inSession(func(_ context.Context, e *session, _ mcp.CallToolRequest) (string, error) {
			if e.page == "" {
				return "", errNoPage
			}
			return "page " + e.page, nil
		}))
	m.AddTool(mcp.NewTool("close", mcp.WithDescription("Close the page")),
		s.inSession(func(_ context.Context, e *session, _ mcp.CallToolRequest) (string, error) {
			e.page = ""
			return "closed", nil
		}))
	m.AddTool(mcp.NewTool("slow", mcp.WithDescription("Answer late"), mcp.WithNumber("ms", mcp.Required())),
		func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if !pause(ctx, Millis(r.GetInt("ms", 0))) {
				return mcp.NewToolResultError("cancelled"), nil
			}
			return mcp.NewToolResultText("done"), nil
		})
	m.AddTool(mcp.NewTool("big", mcp.WithDescription("Answer with much text"), mcp.WithNumber("bytes", mcp.Required())),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(strings.Repeat("x", max(0, r.GetInt("bytes", 0)))), nil
		})
	m.AddTool(mcp.NewTool("whoami", mcp.WithDescription("The request's headers, as JSON")),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			b, err := json.Marshal(r.Header)
			return mcp.NewToolResultText(string(b)), err
		})
	// Listed here, answered by the front.
	for _, t := range []mcp.Tool{
		mcp.NewTool("progress", mcp.WithDescription("Report progress"), mcp.WithNumber("steps"), mcp.WithNumber("intervalMs")),
		mcp.NewTool("ask", mcp.WithDescription("Ask the client"), mcp.WithString("what"), mcp.WithString("via"), mcp.WithNumber("timeoutMs")),
		mcp.NewTool("exact", mcp.WithDescription("Answer with the argument, byte for byte"), mcp.WithObject("result")),
		mcp.NewTool("digest", mcp.WithDescription("Length and SHA-256 of the request's body")),
		mcp.NewTool("fault", mcp.WithDescription("Answer wrongly"), mcp.WithString("kind")),
	} {
		m.AddTool(t, func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultError("answered by the front"), nil
		})
	}
	return m
}

type toolError string

func (e toolError) Error() string { return string(e) }

const errNoPage toolError = "no page is open"

// inSession runs a tool on its session's state.
func (s *Server) inSession(tool func(context.Context, *session, mcp.CallToolRequest) (string, error)) server.ToolHandlerFunc {
	return func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		id := server.ClientSessionFromContext(ctx).SessionID()
		s.mu.Lock()
		defer s.mu.Unlock()
		e := s.sessions[id]
		if e == nil {
			return mcp.NewToolResultError("the session has ended"), nil
		}
		e.used = time.Now()
		text, err := tool(ctx, e, r)
		if err != nil {
			return mcp.NewToolResultError(err.Error()), nil
		}
		return mcp.NewToolResultText(text), nil
	}
}
