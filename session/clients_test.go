package session

import (
	"context"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	mcpclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vancetope/mcp-lease-gateway/config/server"
)

// realServer puts an mcp-go server behind the rig.
func realServer(t *testing.T, r *rig) {
	t.Helper()
	s := mcpserver.NewMCPServer("box", "1", mcpserver.WithToolCapabilities(true))
	s.AddTool(mcp.NewTool("greet"), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText("hello"), nil
	})
	up := httptest.NewServer(mcpserver.NewStreamableHTTPServer(s))
	t.Cleanup(func() {
		up.CloseClientConnections()
		up.Close()
	})
	u, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.docs.change(func(d *server.Document) { d.URL = u })
}

// Both clients try 2026-07-28 first and must fall back to a session.
func TestRealClientsHoldALease(t *testing.T) {
	t.Run("mcp-go", func(t *testing.T) {
		r := newRig(t)
		realServer(t, r)
		c, err := mcpclient.NewStreamableHttpClient(r.http.URL + "/browser")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Initialize(t.Context(), mcp.InitializeRequest{}); err != nil {
			t.Fatal(err)
		}
		res, err := c.CallTool(t.Context(), mcp.CallToolRequest{Params: mcp.CallToolParams{Name: "greet"}})
		if err != nil || r.engine.held() != 1 {
			t.Fatalf("%v, %v, %d leases", res, err, r.engine.held())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		r.engine.until(t, "the lease is back", func() bool { return r.engine.held() == 0 })
	})
	t.Run("go-sdk", func(t *testing.T) {
		r := newRig(t)
		realServer(t, r)
		c := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, nil)
		s, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: r.http.URL + "/browser"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "greet"})
		if err != nil || res.Content[0].(*sdk.TextContent).Text != "hello" || r.engine.held() != 1 {
			t.Fatalf("%v, %v, %d leases", res, err, r.engine.held())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		r.engine.until(t, "the lease is back", func() bool { return r.engine.held() == 0 })
	})
	t.Run("a busy lease is told in words", func(t *testing.T) {
		r := newRig(t)
		realServer(t, r)
		r.setCap(1)
		r.fill()
		c := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, nil)
		_, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: r.http.URL + "/browser"}, nil)
		if err == nil || !strings.Contains(err.Error(), "LEASE_BUSY: the user limit of browser is reached") {
			t.Errorf("%v", err)
		}
	})
}
