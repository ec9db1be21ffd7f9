// Package modern is a test MCP server without sessions, revision 2026-07-28 and
// no other.
//
// Tools: echo {text}, slow {ms} (closing the stream cancels it), progress {steps,
// intervalMs}, big {bytes}, ask (an input_required round trip with an
// elicitation), whoami (the request's headers).
//
//	/mcp     MCP, Streamable HTTP
//	/stats   GET: Stats
package modern

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// Version is the revision that the server speaks.
const Version = mcp.ProtocolVersion20260728

// Stats is what /stats shows.
type Stats struct {
	Calls     int64 `json:"calls"`     // begun
	Running   int64 `json:"running"`   // now
	Peak      int64 `json:"peak"`      // most at once
	Cancelled int64 `json:"cancelled"` // by a stream that was closed
	Legacy    int64 `json:"legacy"`    // requests that carried a session id
}

// Server is the test server.
type Server struct {
	mux                                     *http.ServeMux
	calls, running, peak, cancelled, legacy atomic.Int64
}

// New makes a server.
func New() *Server {
	s := &Server{mux: http.NewServeMux()}
	engine := server.NewStreamableHTTPServer(s.tools(),
		server.WithStateLess(true),
		server.WithStreamableHTTPProtocolVersions(Version),
		server.WithDisableLocalhostProtection(true),
		server.WithStreamableHTTPLogger(slog.New(slog.DiscardHandler)))
	s.mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(server.HeaderKeySessionID) != "" {
			s.legacy.Add(1)
		}
		engine.ServeHTTP(w, r)
	})
	s.mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Stats())
	})
	return s
}

// ServeHTTP serves /mcp and /stats.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Stats counts now.
func (s *Server) Stats() Stats {
	return Stats{Calls: s.calls.Load(), Running: s.running.Load(), Peak: s.peak.Load(), Cancelled: s.cancelled.Load(), Legacy: s.legacy.Load()}
}

func (s *Server) tools() *server.MCPServer {
	m := server.NewMCPServer("modern", "1.0.0", server.WithToolCapabilities(false))
	add := func(t mcp.Tool, run func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error)) {
		m.AddTool(t, func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			s.calls.Add(1)
			n := s.running.Add(1)
			for p := s.peak.Load(); n > p && !s.peak.CompareAndSwap(p, n); p = s.peak.Load() {
			}
			defer s.running.Add(-1)
			return run(ctx, r)
		})
	}
	pause := func(ctx context.Context, ms int) bool {
		t := time.NewTimer(time.Duration(ms) * time.Millisecond)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-ctx.Done():
			s.cancelled.Add(1)
			return false
		}
	}
	add(mcp.NewTool("echo", mcp.WithString("text")), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(r.GetString("text", "")), nil
	})
	add(mcp.NewTool("slow", mcp.WithNumber("ms")), func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if !pause(ctx, r.GetInt("ms", 0)) {
			return nil, ctx.Err()
		}
		return mcp.NewToolResultText("done"), nil
	})
	add(mcp.NewTool("big", mcp.WithNumber("bytes")), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(strings.Repeat("x", max(0, r.GetInt("bytes", 0)))), nil
	})
	add(mcp.NewTool("whoami"), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		b, err := json.Marshal(r.Header)
		return mcp.NewToolResultText(string(b)), err
	})
	add(mcp.NewTool("progress", mcp.WithNumber("steps"), mcp.WithNumber("intervalMs")), func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		steps := r.GetInt("steps", 1)
		for i := range steps {
			if r.Params.Meta != nil && r.Params.Meta.ProgressToken != nil {
				if err := m.SendNotificationToClient(ctx, "notifications/progress", map[string]any{
					"progressToken": r.Params.Meta.ProgressToken, "progress": i + 1, "total": steps,
				}); err != nil {
					return nil, err
				}
			}
			if !pause(ctx, r.GetInt("intervalMs", 0)) {
				return nil, ctx.Err()
			}
		}
		return mcp.NewToolResultText("done"), nil
	})
	add(mcp.NewTool("ask"), func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if answer := server.ElicitationResponse(r.Params.InputResponses, "click"); answer != nil {
			return mcp.NewToolResultText("the client said " + string(answer.Action)), nil
		}
		return server.NewInputRequestBuilder("asked").Elicit("click", mcp.ElicitationParams{
			Message:         "May I click?",
			RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"ok": map[string]any{"type": "boolean"}}},
		}).ToolResult(), nil
	})
	return m
}
