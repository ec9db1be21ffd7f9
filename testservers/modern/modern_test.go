package modern

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mark3labs/mcp-go/mcp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestAnUnmodifiedClientUsesItWithoutASession(t *testing.T) {
	s := New()
	ts := httptest.NewServer(s)
	defer ts.Close()
	asked := 0
	c := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, &sdk.ClientOptions{
		ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			asked++
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"ok": true}}, nil
		},
	})
	cs, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: ts.URL + "/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cs.Close() }()
	call := func(tool string, args map[string]any) string {
		t.Helper()
		r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return r.Content[0].(*sdk.TextContent).Text
	}
	if got := call("echo", map[string]any{"text": "x"}); got != "x" {
		t.Errorf("echo: %q", got)
	}
	if got := call("whoami", nil); !strings.Contains(got, `"Mcp-Protocol-Version":["`+Version+`"]`) || strings.Contains(got, "Mcp-Session-Id") {
		t.Errorf("whoami: %s", got)
	}
	if got := call("progress", map[string]any{"steps": 2}); got != "done" {
		t.Errorf("progress: %q", got)
	}
	if got := call("ask", nil); got != "the client said accept" || asked != 1 {
		t.Errorf("ask: %q, asked %d times", got, asked)
	}
	if st := s.Stats(); st.Legacy != 0 || st.Calls != 5 {
		t.Errorf("%+v", st)
	}
}

func TestASessionVerbIsNotThere(t *testing.T) {
	ts := httptest.NewServer(New())
	defer ts.Close()
	for _, method := range []string{"GET", "DELETE"} {
		r, err := http.NewRequestWithContext(t.Context(), method, ts.URL+"/mcp", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(mcp.HeaderProtocolVersion, Version)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}

func TestClosingTheStreamCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, "POST", "/mcp", strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{"ms":3600000},"_meta":{"io.modelcontextprotocol/protocolVersion":"`+Version+`","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set(mcp.HeaderProtocolVersion, Version)
		r.Header.Set("Mcp-Method", "tools/call")
		r.Header.Set("Mcp-Name", "slow")
		w := httptest.NewRecorder()
		go s.ServeHTTP(w, r)
		synctest.Wait()
		if st := s.Stats(); st.Running != 1 {
			b, _ := io.ReadAll(w.Result().Body)
			t.Fatalf("%+v: %s", st, b)
		}
		cancel()
		synctest.Wait()
		if st := s.Stats(); st.Running != 0 || st.Cancelled != 1 {
			t.Errorf("%+v", st)
		}
	})
}
