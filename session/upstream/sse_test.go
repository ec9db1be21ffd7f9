package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

func newSSE(t *testing.T, at *url.URL, allow ...string) *SSE {
	t.Helper()
	s := NewSSE(client(t, allow...), at, len(allow) > 0, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func sseRequest(ctx context.Context, method, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, "http://ignored.test/", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Authorization", "Bearer t")
	return req
}

// ask sends a request and reads its answer.
func ask(t *testing.T, s *SSE, method, body string) (status int, text string) {
	t.Helper()
	resp, err := s.RoundTrip(sseRequest(t.Context(), method, body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

const (
	sseInitialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"1"}}}`
	sseInitialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// A whole session with a server that nobody here wrote.
func TestASessionWithAnSSEServer(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "one"}}}, nil, err
	})
	ended := make(chan struct{})
	handler := mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil)
	s := newSSE(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			defer close(ended)
		}
		if r.Header.Get("Authorization") != "Bearer t" {
			t.Errorf("%s without the credential", r.Method)
		}
		handler.ServeHTTP(w, r)
	}))
	if status, text := ask(t, s, "POST", sseInitialize); status != 200 || !strings.Contains(text, `"protocolVersion"`) || strings.HasPrefix(text, "event") {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := ask(t, s, "POST", sseInitialized); status != 202 || text != "" {
		t.Errorf("%d %s", status, text)
	}
	if status, text := ask(t, s, "POST", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); status != 200 || !strings.Contains(text, `"count"`) {
		t.Errorf("%d %s", status, text)
	}
	status, text := ask(t, s, "POST", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count","arguments":{},"_meta":{"progressToken":"p"}}}`)
	if status != 200 || !strings.Contains(text, "notifications/progress") || strings.Index(text, "notifications/progress") > strings.Index(text, `"one"`) {
		t.Errorf("%d %s", status, text)
	}
	get, err := s.RoundTrip(sseRequest(t.Context(), "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	mcp.AddTool(server, &mcp.Tool{Name: "more"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	if ev, err := wire.NewEventReader(get.Body, 1<<20).Next(); err != nil || !strings.Contains(string(ev.Data), "list_changed") {
		t.Errorf("%s, %v", ev.Data, err)
	}
	if status, text := ask(t, s, "DELETE", ""); status != 204 {
		t.Errorf("%d %s", status, text)
	}
	<-ended // at the server
	<-s.Gone()
	if s.Err() != nil {
		t.Errorf("%v", s.Err())
	}
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if status, text := ask(t, s, method, sseInitialized); status != 404 || !Gone(400, []byte(text)) {
			t.Errorf("%s: %d %s", method, status, text)
		}
	}
}

// sseServer sends one text on its stream and keeps it open; messages are accepted
// with a status.
func sseServer(t *testing.T, text string, accept int) *url.URL {
	t.Helper()
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(accept)
			_, _ = io.WriteString(w, "Session not found")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.ReplaceAll(text, "HOST", r.Host))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	u.Path = "/sse"
	return u
}

func TestTheAddressForMessages(t *testing.T) {
	elsewhere := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s went to another place", r.Method) })
	for _, c := range []struct{ name, endpoint, says string }{
		{"a path", "/messages?sessionId=1", ""},
		{"relative to the stream's", "messages", ""},
		{"whole", "http://HOST/messages", ""},
		{"with blanks", "  /messages ", ""},
		{"at another host", elsewhere.String() + "/messages", "not at the host"},
		{"at another host without a scheme", "//" + elsewhere.Host + "/messages", "not at the host"},
		{"with another scheme", "https://HOST/messages", "not at the host"},
		{"with a user", "http://u:p@HOST/messages", "not at the host"},
		{"no address", "http://[::1", "not at the host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSSE(t, sseServer(t, ": hello\n\nevent: endpoint\ndata: "+c.endpoint+"\n\n", 202))
			_, err := s.open(sseRequest(t.Context(), "POST", sseInitialize))
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(Why(err), c.says)) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAnSSEServerThatIsNone(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		status int
		says   string
	}{
		{"refuses the credential", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who are you", http.StatusUnauthorized) }, 401, "who are you"},
		{"redirects", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, 302, ""},
		{"has no stream there", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, 0, "no event stream at this address"},
		{"ends at once", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/event-stream") }, 0, "the connection to it broke"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSSE(t, serve(t, c.answer))
			resp, err := s.RoundTrip(sseRequest(t.Context(), "POST", sseInitialize))
			if c.status == 0 {
				if err == nil || !strings.Contains(Why(err), c.says) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := io.ReadAll(resp.Body); resp.StatusCode != c.status || !strings.Contains(string(text), c.says) {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
		})
	}
	t.Run("is at an address that egress forbids", func(t *testing.T) {
		s := NewSSE(client(t), sseServer(t, "", 202), true, slog.New(slog.DiscardHandler))
		defer func() { _ = s.Close(t.Context()) }()
		if _, err := s.RoundTrip(sseRequest(t.Context(), "POST", sseInitialize)); err == nil || !strings.Contains(Why(err), "egress.allow") {
			t.Errorf("%v", err)
		}
	})
	t.Run("does not know the session", func(t *testing.T) {
		s := newSSE(t, sseServer(t, "event: endpoint\ndata: /m\n\n", 404))
		if status, text := ask(t, s, "POST", sseInitialized); status != 404 || text != "Session not found" {
			t.Errorf("%d %s", status, text)
		}
		if status, _ := ask(t, s, "POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`); status != 404 {
			t.Errorf("%d", status)
		}
	})
	t.Run("names no address in time", func(t *testing.T) {
		s := newSSE(t, sseServer(t, ": hello\n\n", 202))
		ctx, cancel := context.WithCancelCause(t.Context())
		late := errors.New("late")
		cancel(late)
		if _, err := s.RoundTrip(sseRequest(ctx, "POST", sseInitialize)); !errors.Is(err, late) {
			t.Errorf("%v", err)
		}
	})
}

func TestAnSSEStreamThatEnds(t *testing.T) {
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "event: endpoint\r\ndata: /m\r\n\r\nevent: ping\r\ndata: x\r\n\r\ndata: not a message\r\n\r\n")
		_, _ = fmt.Fprint(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"notifications/early\"}\n\n")
		w.(http.Flusher).Flush()
		<-end
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := newSSE(t, u)
	if status, text := ask(t, s, "POST", sseInitialized); status != 202 {
		t.Errorf("%d %s", status, text)
	}
	get, err := s.RoundTrip(sseRequest(t.Context(), "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	stream := bufio.NewReader(get.Body)
	if ev, err := wire.NewEventReader(stream, 1<<20).Next(); err != nil || !strings.Contains(string(ev.Data), "notifications/early") {
		t.Errorf("%s, %v", ev.Data, err)
	}
	got := make(chan int)
	go func() {
		status, _ := ask(t, s, "POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		got <- status
	}()
	close(end)
	if status := <-got; status != 404 {
		t.Errorf("what was in flight: %d", status)
	}
	<-s.Gone()
}
