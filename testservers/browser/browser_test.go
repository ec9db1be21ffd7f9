package browser

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func serve(t *testing.T, b Behavior) (*Server, string) {
	t.Helper()
	s := New(b)
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	t.Cleanup(s.Close)
	return s, ts.URL
}

// raw speaks HTTP, to see what is on the wire.
type raw struct {
	t       *testing.T
	url     string
	session string
	header  http.Header
}

func (c *raw) do(method, body string) *http.Response {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+"/mcp", strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for k, v := range c.header {
		r.Header[k] = v
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func (c *raw) open() {
	c.t.Helper()
	resp := c.do("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
	if resp.StatusCode != 200 {
		c.t.Fatalf("initialize: %s", resp.Status)
	}
	c.session = resp.Header.Get("Mcp-Session-Id")
}

func (c *raw) call(tool, arguments string) *http.Response {
	c.t.Helper()
	return c.do("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":"p"}}}`, tool, arguments))
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestASessionLivesFromInitializeToDelete(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, url string) (call func(tool string, args map[string]any) string, end func()){
		"of the mcp-go client": mcpGoClient, "of the go-sdk client": sdkClient,
	} {
		t.Run(name, func(t *testing.T) {
			s, url := serve(t, Behavior{})
			call, end := open(t, url+"/mcp")
			if got := call("snapshot", nil); got != "no page is open" {
				t.Errorf("snapshot: %q", got)
			}
			if got := call("navigate", map[string]any{"url": "http://x/"}); got != "at http://x/" {
				t.Errorf("navigate: %q", got)
			}
			if got := call("snapshot", nil); got != "page http://x/" {
				t.Errorf("snapshot: %q", got)
			}
			st := s.Stats()
			if st.Live != 1 || st.Opened != 1 || st.Calls != 3 || st.Sessions[0].Page != "http://x/" || st.Sessions[0].Client != "tester" {
				t.Errorf("%+v", st)
			}
			end()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if st, err := s.Wait(ctx, func(st Stats) bool { return st.Live == 0 && st.Deleted == 1 }); err != nil {
				t.Errorf("%+v", st)
			}
		})
	}
}

func mcpGoClient(t *testing.T, url string) (func(string, map[string]any) string, func()) {
	//lint:ignore SA1019 clients of the revisions with sessions listen so
	c, err := client.NewStreamableHttpClient(url, transport.WithContinuousListening())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := mcp.InitializeRequest{}
	r.Params.ProtocolVersion = "2025-11-25"
	r.Params.ClientInfo = mcp.Implementation{Name: "tester", Version: "1"}
	if _, err := c.Initialize(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return func(tool string, args map[string]any) string {
		r := mcp.CallToolRequest{}
		r.Params.Name, r.Params.Arguments = tool, args
		res, err := c.CallTool(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return res.Content[0].(mcp.TextContent).Text
	}, func() { _ = c.Close() }
}

func sdkClient(t *testing.T, url string) (func(string, map[string]any) string, func()) {
	c := sdk.NewClient(&sdk.Implementation{Name: "tester", Version: "1"}, nil)
	cs, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(tool string, args map[string]any) string {
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return res.Content[0].(*sdk.TextContent).Text
	}, func() { _ = cs.Close() }
}

func TestUnknownAndEndedSessionsAreGoneForEveryVerb(t *testing.T) {
	s, url := serve(t, Behavior{})
	c := &raw{t: t, url: url}
	c.open()
	if n := s.End(); n != 1 {
		t.Fatalf("%d sessions ended", n)
	}
	for _, id := range []string{c.session, "unknown"} {
		c.session = id
		for _, method := range []string{"POST", "GET", "DELETE"} {
			if got := c.do(method, `{"jsonrpc":"2.0","id":1,"method":"ping"}`).StatusCode; got != 404 {
				t.Errorf("%s with %s: %d", method, id, got)
			}
		}
	}
	c.session = ""
	if got := c.do("POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`).StatusCode; got != 400 {
		t.Errorf("without an id: %d", got)
	}
	s.Set(func(b *Behavior) { b.GoneStatus = 400 })
	c.session = "unknown"
	if resp := c.do("POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`); resp.StatusCode != 400 || !strings.Contains(body(t, resp), "No valid session ID") {
		t.Errorf("with the wild 400: %s", resp.Status)
	}
}

func TestEveryVerbNeedsTheCredential(t *testing.T) {
	for name, a := range map[string]Auth{"bearer": Bearer("t0ken"), "basic": Basic("u", "p"), "key": APIKey("X-Key", "k")} {
		t.Run(name, func(t *testing.T) {
			s, url := serve(t, Behavior{Auth: a})
			c := &raw{t: t, url: url, header: http.Header{a.Header: {a.Value}}}
			c.open()
			c.header = nil
			for _, method := range []string{"POST", "GET", "DELETE"} {
				if got := c.do(method, `{}`).StatusCode; got != 401 {
					t.Errorf("%s: %d", method, got)
				}
			}
			if st := s.Stats(); st.Live != 1 || st.Unauthorized != 3 || st.UnauthorizedDeletes != 1 {
				t.Errorf("%+v", st)
			}
			c.header = http.Header{a.Header: {a.Value}}
			if got := c.do("DELETE", "").StatusCode; got != 200 {
				t.Errorf("DELETE with the credential: %d", got)
			}
			if st := s.Stats(); st.Live != 0 || st.Deleted != 1 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// events reads n SSE data lines.
func events(t *testing.T, r *bufio.Reader, n int) []string {
	t.Helper()
	var got []string
	for len(got) < n {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			got = append(got, strings.TrimSpace(data))
		}
	}
	return got
}

func TestTheServerAsksTheClient(t *testing.T) {
	_, url := serve(t, Behavior{})
	c := &raw{t: t, url: url}
	c.open()
	stream := bufio.NewReader(c.do("GET", "").Body)
	for what, method := range map[string]string{"sampling": "sampling/createMessage", "elicitation": "elicitation/create", "roots": "roots/list", "ping": "ping"} {
		for _, via := range []string{"post", "get"} {
			t.Run(what+" via "+via, func(t *testing.T) {
				called := make(chan *http.Response, 1)
				go func() { called <- c.call("ask", fmt.Sprintf(`{"what":%q,"via":%q}`, what, via)) }()
				asked := stream
				var resp *http.Response
				if via == "post" {
					resp = <-called
					asked = bufio.NewReader(resp.Body)
				}
				var q struct{ ID, Method string }
				if err := json.Unmarshal([]byte(events(t, asked, 1)[0]), &q); err != nil || q.Method != method {
					t.Fatalf("%+v %v", q, err)
				}
				answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"echo":"%s"}}`, q.ID, what)
				if got := c.do("POST", answer).StatusCode; got != 202 {
					t.Fatalf("the answer: %d", got)
				}
				var result string
				if via == "post" {
					result = events(t, asked, 1)[0]
				} else {
					result = body(t, <-called)
				}
				if !strings.Contains(result, `\"echo\":\"`+what) {
					t.Errorf("result %s", result)
				}
			})
		}
	}
}

func TestASilentClientIsDropped(t *testing.T) {
	s, url := serve(t, Behavior{PingEvery: 1, PingTimeout: 20})
	c := &raw{t: t, url: url}
	c.open()
	stream := c.do("GET", "")
	if _, err := io.ReadAll(stream.Body); err != nil { // ends with the session
		t.Fatal(err)
	}
	if st := s.Stats(); st.Live != 0 || st.Ended != 1 || st.Pings != 1 || st.Pongs != 0 {
		t.Errorf("%+v", st)
	}
}

func TestProgressExactAndDigest(t *testing.T) {
	_, url := serve(t, Behavior{})
	c := &raw{t: t, url: url}
	c.open()
	got := events(t, bufio.NewReader(c.call("progress", `{"steps":3,"intervalMs":1}`).Body), 4)
	if !strings.Contains(got[2], `"progressToken":"p","progress":3`) || !strings.Contains(got[3], "3 steps") {
		t.Errorf("%q", got)
	}
	const odd = `{"big":12345678901234567890,"f":1.0,"z":1,"a":{"é":"\u00e9"}}`
	if got := body(t, c.call("exact", `{"result":`+odd+`}`)); got != `{"jsonrpc":"2.0","id":7,"result":`+odd+`}` {
		t.Errorf("%s", got)
	}
	const in = `{"jsonrpc":"2.0", "id": 1, "method":"tools/call","params":{"name":"digest"}}`
	if got, want := body(t, c.do("POST", in)), fmt.Sprintf("%d %x", len(in), sha256.Sum256([]byte(in))); !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestFaults(t *testing.T) {
	s, url := serve(t, Behavior{})
	c := &raw{t: t, url: url}
	c.open()
	for kind, want := range map[string]string{
		"endOfStream": "about to die", "garbage": "}{", "eventGarbage": "data: }{", "html": "<!doctype", "empty": "",
		"wrongID": "somebody else", "redirect": "", "status:503": "ordered", "rpcError": "12345678901234567890",
	} {
		t.Run(kind, func(t *testing.T) {
			if got := body(t, c.call("fault", fmt.Sprintf(`{"kind":%q}`, kind))); !strings.Contains(got, want) {
				t.Errorf("%q", got)
			}
		})
	}
	for _, kind := range []string{"dieInStream", "truncated"} {
		t.Run(kind, func(t *testing.T) {
			if b, err := io.ReadAll(c.call("fault", fmt.Sprintf(`{"kind":%q}`, kind)).Body); err == nil {
				t.Errorf("read to the end: %q", b)
			}
		})
	}
	t.Run("by control, for a verb", func(t *testing.T) {
		resp, err := http.Post(url+"/control", "application/json", strings.NewReader(`{"behavior":{"faults":{"DELETE":"status:500"}}}`))
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
		if got := c.do("DELETE", "").StatusCode; got != 500 {
			t.Errorf("DELETE: %d", got)
		}
		if s.Stats().Live != 1 {
			t.Error("the session has ended")
		}
	})
	t.Run("control refuses what it does not know", func(t *testing.T) {
		resp, err := http.Post(url+"/control", "application/json", strings.NewReader(`{"behavior":{"faultz":{}}}`))
		if err != nil || resp.StatusCode != 400 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
	})
}

func TestStatsWaitForACount(t *testing.T) {
	s, url := serve(t, Behavior{})
	c := &raw{t: t, url: url}
	c.open()
	waited := make(chan Stats, 1)
	go func() {
		resp, err := http.Get(url + "/stats?live=0")
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		var st Stats
		_ = json.NewDecoder(resp.Body).Decode(&st)
		waited <- st
	}()
	s.End()
	if st := <-waited; st.Live != 0 || st.Ended != 1 {
		t.Errorf("%+v", st)
	}
	if resp, err := http.Get(url + "/stats?live=5&timeout=1ms"); err != nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Error(resp, err)
	} else {
		_ = resp.Body.Close()
	}
}
