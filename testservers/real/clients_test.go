//go:build external

package real

import (
	"context"
	"encoding/json"
	"testing"

	markclient "github.com/mark3labs/mcp-go/client"
	markmcp "github.com/mark3labs/mcp-go/mcp"
	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"
)

// markClient is mcp-go's client.
type markClient struct {
	t *testing.T
	c *markclient.Client
}

func (m *markClient) open(url string) error {
	c, err := markclient.NewStreamableHttpClient(url)
	if err != nil {
		return err
	}
	// The client's life is the test's: Start's context bounds the session.
	ctx := context.WithoutCancel(m.t.Context())
	if err := c.Start(ctx); err != nil {
		return err
	}
	var init markmcp.InitializeRequest
	init.Params.ProtocolVersion = markmcp.LATEST_PROTOCOL_VERSION
	init.Params.ClientInfo = markmcp.Implementation{Name: "mcp-go", Version: "1"}
	if _, err := c.Initialize(ctx, init); err != nil {
		c.Close()
		return err
	}
	m.c = c
	return nil
}

func (m *markClient) call(tool string, args map[string]any) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	var req markmcp.CallToolRequest
	req.Params.Name, req.Params.Arguments = tool, args
	res, err := m.c.CallTool(ctx, req)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(res.Content)
	return string(text), err
}

func (m *markClient) end() error { return m.c.Close() }

// goClient is the official Go SDK's client.
type goClient struct {
	t *testing.T
	s *gomcp.ClientSession
}

func (g *goClient) open(url string) error {
	c := gomcp.NewClient(&gomcp.Implementation{Name: "go-sdk", Version: "1"}, nil)
	s, err := c.Connect(context.WithoutCancel(g.t.Context()), &gomcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		return err
	}
	g.s = s
	return nil
}

func (g *goClient) call(tool string, args map[string]any) (string, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	res, err := g.s.CallTool(ctx, &gomcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(res.Content)
	return string(text), err
}

func (g *goClient) end() error { return g.s.Close() }
