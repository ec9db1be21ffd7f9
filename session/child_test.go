package session

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
)

// runTestChild is a stdio MCP server in the test binary.
func runTestChild() int {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(out, format+"\n", args...)
		_ = out.Flush()
	}
	mode := os.Getenv("SESSION_TEST_CHILD")
	asking := ""
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Name string `json:"name"`
				Meta struct {
					ProgressToken json.RawMessage `json:"progressToken"`
				} `json:"_meta"`
			} `json:"params"`
			Result json.RawMessage `json:"result"`
		}
		if json.Unmarshal([]byte(line), &m) != nil {
			continue
		}
		if n := 0.0; mode == "rounds" && json.Unmarshal(m.ID, &n) == nil { // as programs in JavaScript do
			m.ID, _ = json.Marshal(n)
		}
		switch {
		case m.Method == "initialize":
			switch mode {
			case "refuse":
				say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"no"}}`, m.ID)
				continue
			case "die":
				return 3
			case "mute":
				continue
			case "wait": // until its file is there
				for {
					if _, err := os.Stat(os.Getenv("SESSION_TEST_FILE")); err == nil {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
			say("this is not JSON")
			say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"early":true}}`)
			version := "2025-06-18"
			if mode == "batch" {
				version = batchRevision
			}
			say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"n":1.0}}`, m.ID, version)
		case m.Method == "tools/call" && m.Params.Name == "progress":
			say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1.0}}`, m.Params.Meta.ProgressToken)
			say(`{"jsonrpc":"2.0","id":%s,"result":{"done":1.0}}`, m.ID)
		case m.Method == "tools/call" && m.Params.Name == "works": // for longer than the silence that its test allows
			for range 10 {
				time.Sleep(100 * time.Millisecond)
				say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1.0}}`, m.Params.Meta.ProgressToken)
			}
			say(`{"jsonrpc":"2.0","id":%s,"result":{"done":1.0}}`, m.ID)
		case m.Method == "tools/call" && m.Params.Name == "ask":
			asking = string(m.ID)
			say(`{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{}}`)
		case m.Method == "tools/call" && m.Params.Name == "die":
			return 3
		case m.Method == "tools/call" && m.Params.Name == "never":
		case m.Method == "tools/call" && m.Params.Name == "tell":
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
			say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		case m.Method == "" && m.Result != nil && asking != "":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"answered":%s}}`, asking, m.Result)
			asking = ""
		case m.ID != nil:
			say(`{"jsonrpc":"2.0","id":%s,"result":{"echo":%q}}`, m.ID, strings.TrimSpace(line))
		}
	}
}

func stdioRig(t *testing.T, mode string, edit ...func(*rig)) *rig {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	edit = append([]func(*rig){func(r *rig) {
		d := r.docs.doc
		d.Transport, d.URL, d.Command, d.Env = "stdio", nil, []string{self}, map[string]string{"SESSION_TEST_CHILD": mode}
		d.InitTimeout = 20 * time.Second
	}}, edit...)
	return newRig(t, edit...)
}

// ended waits until the session's child is gone.
func (r *rig) childless() {
	r.t.Helper()
	r.engine.until(r.t, "no lease is held", func() bool { return r.engine.held() == 0 })
	<-r.proxy.traffic.wait()
	r.proxy.table.mu.RLock()
	defer r.proxy.table.mu.RUnlock()
	if n := r.proxy.table.stdio["acme"]; n != 0 {
		r.t.Errorf("%d children are booked", n)
	}
}

// startsSlowly shortens the time after which a start is slow.
func (r *rig) startsSlowly() {
	r.proxy.start = func(ctx context.Context, c stdio.Command) (bridge, error) {
		p, err := stdio.Start(ctx, c)
		if err != nil {
			return nil, err
		}
		return stdio.NewBridge(p, stdio.BridgeOptions{SlowStart: 10 * time.Millisecond}), nil
	}
}

func TestStdioSessions(t *testing.T) {
	r := stdioRig(t, "plain")
	a := r.do("POST", "", initBody)
	id := a.header.Get("Mcp-Session-Id")
	if a.status != 200 || id == "" || a.body != `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","n":1.0}}` {
		t.Fatalf("%+v", a)
	}
	if h := only(r); !h.PodBound || h.Payload["endpoint"] != "stdio" {
		t.Errorf("%+v", h)
	}
	t.Run("answer a call with JSON", func(t *testing.T) {
		a := r.do("POST", id, "{\"jsonrpc\":\"2.0\",\n\"id\":1.50,\"method\":\"tools/call\",\"params\":{\"name\":\"x\"}}")
		if a.status != 200 || a.header.Get("Content-Type") != "application/json" || !strings.Contains(a.body, `"id":1.50`) {
			t.Errorf("%+v", a)
		}
	})
	t.Run("stream progress on the call that it belongs to", func(t *testing.T) {
		a := r.do("POST", id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"progress","_meta":{"progressToken":"t"}}}`)
		want := "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"t\",\"progress\":1.0}}\n\n" +
			"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"done\":1.0}}\n\n"
		if a.header.Get("Content-Type") != "text/event-stream" || a.body != want {
			t.Errorf("%+v", a)
		}
	})
	t.Run("leave progress out for a client that takes no events", func(t *testing.T) {
		a := r.do("POST", id, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"progress","_meta":{"progressToken":"t"}}}`, "Accept", "application/json")
		if a.body != `{"jsonrpc":"2.0","id":2,"result":{"done":1.0}}` {
			t.Errorf("%+v", a)
		}
	})
	t.Run("ask the client on the stream of its call", func(t *testing.T) {
		s := r.begin("POST", id, call(3, "ask"))
		for {
			line, err := s.br.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(line, `"sampling/createMessage"`) {
				break
			}
		}
		if a := r.do("POST", id, `{"jsonrpc":"2.0","id":"s1","result":{"text":"hi"}}`); a.status != 202 {
			t.Errorf("%+v", a)
		}
		if rest, err := s.rest(); err != nil || !strings.Contains(rest, `"answered":{"text":"hi"}`) {
			t.Errorf("%q, %v", rest, err)
		}
	})
	t.Run("tell other things on the GET stream, early ones too", func(t *testing.T) {
		s := r.begin("GET", id, "")
		if line, err := readUntil(s.br, "data: "); err != nil || !strings.Contains(line, "early") {
			t.Fatalf("%q, %v", line, err)
		}
		newer := r.begin("GET", id, "")
		if rest, err := s.rest(); err != nil || strings.TrimSpace(rest) != "" {
			t.Errorf("the older stream: %q, %v", rest, err)
		}
		r.do("POST", id, call(4, "tell"))
		if line, err := readUntil(newer.br, "data: "); err != nil || !strings.Contains(line, "list_changed") {
			t.Errorf("%q, %v", line, err)
		}
	})
	t.Run("end with their tree", func(t *testing.T) {
		if a := r.do("DELETE", id, ""); a.status != 204 {
			t.Errorf("%+v", a)
		}
		r.childless()
		r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	})
}

// A program that reads numbers as floats writes other digits back. Its answer is
// one all the same, as it is on the way from an HTTP server.
func TestAProgramMayWriteNumbersOtherwise(t *testing.T) {
	r := stdioRig(t, "rounds", func(r *rig) { r.docs.doc.Timeout = 5 * time.Second })
	a := r.do("POST", "", strings.Replace(initBody, `"id":1`, `"id":1.0`, 1))
	id := a.header.Get("Mcp-Session-Id")
	if a.status != 200 || id == "" {
		t.Fatalf("%+v", a)
	}
	for asked, answered := range map[string]string{"2.0": "2", "9007199254740993": "9007199254740992", `"2.0"`: `"2.0"`} {
		a := r.do("POST", id, `{"jsonrpc":"2.0","id":`+asked+`,"method":"tools/list"}`)
		if a.status != 200 || !strings.HasPrefix(a.body, `{"jsonrpc":"2.0","id":`+answered+`,"result"`) {
			t.Errorf("%s: %+v", asked, a)
		}
	}
}

func TestStdioTrouble(t *testing.T) {
	for mode, says := range map[string]string{"die": "ended before it answered", "mute": "initTimeoutSeconds"} {
		t.Run(mode, func(t *testing.T) {
			r := stdioRig(t, mode, func(r *rig) {
				if mode == "mute" {
					r.docs.doc.InitTimeout = 300 * time.Millisecond
				}
			})
			a := r.do("POST", "", initBody)
			e := a.want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
			if !strings.Contains(e.Error.Message, says) || a.header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%+v", a)
			}
			r.childless()
		})
	}
	t.Run("no such program", func(t *testing.T) {
		r := stdioRig(t, "plain", func(r *rig) { r.docs.doc.Command = []string{"/no/such/program"} })
		r.do("POST", "", initBody).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
		r.childless()
	})
	t.Run("its own refusal passes", func(t *testing.T) {
		r := stdioRig(t, "refuse")
		a := r.do("POST", "", initBody)
		if a.status != 200 || a.body != `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}` || a.header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%+v", a)
		}
		r.childless()
	})
	t.Run("a program that ends by itself ends its session", func(t *testing.T) {
		r := stdioRig(t, "plain")
		id := r.open()
		s := r.begin("GET", id, "")
		r.do("POST", id, call(1, "die")).want(t, 404, 410, "LEASE_LOST")
		if _, err := s.rest(); err != nil {
			t.Error(err)
		}
		r.childless()
		r.do("GET", id, "").want(t, 404, 410, "LEASE_LOST")
	})
	t.Run("a silent call ends after timeoutSeconds and the session lives", func(t *testing.T) {
		r := stdioRig(t, "plain", func(r *rig) { r.docs.doc.Timeout = 200 * time.Millisecond })
		id := r.open()
		r.do("POST", id, call(1, "never")).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
		if a := r.do("POST", id, call(2, "x")); a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("a revocation ends the program and the client's streams", func(t *testing.T) {
		r := stdioRig(t, "plain")
		id := r.open()
		s := r.begin("GET", id, "")
		if err := r.proxy.OnRevoked(t.Context(), r.engine.revoke(lease.ReasonRevoke)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.rest(); err != nil {
			t.Error(err)
		}
		r.childless()
		e := r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
		if e.Error.Data["reason"] != "revoke" {
			t.Errorf("%+v", e)
		}
	})
	t.Run("limits.stdioPerTenant", func(t *testing.T) {
		r := stdioRig(t, "plain")
		r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 100, PerPrincipal: 10, StdioPerTenant: 1})
		r.open()
		e := r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LIMIT_REACHED")
		if e.Error.Data["limit"] != "limits.stdioPerTenant" || r.engine.held() != 1 {
			t.Errorf("%+v", e)
		}
	})
	t.Run("a modern client is fenced even without a lease", func(t *testing.T) {
		r := stdioRig(t, "plain", func(r *rig) { r.docs.doc.Lease = "" })
		r.do("POST", "", call(1, "x"), "MCP-Protocol-Version", "2026-07-28").want(t, 400, -32022, "")
	})
	t.Run("drain ends programs, also with handover", func(t *testing.T) {
		r := stdioRig(t, "plain")
		r.open()
		if err := r.proxy.Drain(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		r.childless()
	})
}

func TestAStdioSessionIsReopened(t *testing.T) {
	r := stdioRig(t, "plain")
	r.caller.Store(reopener())
	id := r.open()
	r.engine.revoke(lease.ReasonIdle)
	r.do("POST", id, call(1, "x")).told(t, "idle")
	if a := r.do("POST", id, call(2, "x")); a.status != 200 || !strings.Contains(a.body, "echo") {
		t.Fatalf("%+v", a)
	}
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Errorf("%+v", a)
	}
	r.childless()
}

func TestAStdioBatch(t *testing.T) {
	r := stdioRig(t, "batch")
	id := r.open()
	a := r.do("POST", id, "["+call(1, "x")+","+call(2, "x")+"]", "Accept", "application/json")
	var got []map[string]any
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || len(got) != 2 {
		t.Errorf("%v: %+v", err, a)
	}
	a = r.do("POST", id, "["+call(1, "x")+","+call(2, "x")+"]")
	if strings.Count(a.body, "data: ") != 2 {
		t.Errorf("%+v", a)
	}
}

func TestASlowStartKeepsTheClientWaiting(t *testing.T) {
	file := t.TempDir() + "/go"
	r := stdioRig(t, "wait", func(r *rig) { r.docs.doc.Env["SESSION_TEST_FILE"], r.engine.ttl = file, 60*time.Millisecond })
	r.startsSlowly()
	s := r.begin("POST", "", initBody)
	id := s.resp.Header.Get("Mcp-Session-Id")
	if id == "" || s.resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%v", s.resp.Header)
	}
	r.engine.until(t, "the lease of a slow start is touched", func() bool { return r.engine.checks() >= 3 })
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(s.br); err != nil || !strings.Contains(string(rest), `"protocolVersion"`) {
		t.Fatalf("%q, %v", rest, err)
	}
	if a := r.do("POST", id, call(1, "x")); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

// held is a child whose end waits for the test.
type held struct {
	bridge
	closing chan struct{}
	end     chan struct{}
}

func (h *held) Close(ctx context.Context) error {
	close(h.closing)
	<-h.end
	return h.bridge.Close(ctx)
}

func TestARequestMeetsTheEndOfItsChild(t *testing.T) {
	c := &held{closing: make(chan struct{}), end: make(chan struct{})}
	r := stdioRig(t, "plain")
	start := r.proxy.start
	r.proxy.start = func(ctx context.Context, cmd stdio.Command) (bridge, error) {
		var err error
		c.bridge, err = start(ctx, cmd)
		return c, err
	}
	id := r.open()
	deleted := make(chan answer, 1)
	go func() { deleted <- r.do("DELETE", id, "") }()
	<-c.closing
	met := make(chan answer, 2)
	go func() { met <- r.do("GET", id, "") }()
	go func() { met <- r.do("POST", id, call(1, "x")) }()
	close(c.end)
	if a := <-deleted; a.status != 204 {
		t.Errorf("%+v", a)
	}
	for range 2 {
		if a := <-met; a.status != 404 {
			t.Errorf("%+v", a)
		}
	}
}

// handOn is a Forwarder to another Proxy of this process.
type handOn struct{ to *Proxy }

func (h handOn) Forward(w http.ResponseWriter, r *http.Request, _ lease.Pod, c principal.Caller, server string, body []byte) error {
	r2 := r.Clone(r.Context())
	r2.Body = io.NopCloser(strings.NewReader(string(body)))
	h.to.ServeForwarded(w, r2, c, server)
	return nil
}

func TestAStdioRequestIsForwardedToItsPod(t *testing.T) {
	r := stdioRig(t, "plain")
	id := r.open()
	opt := r.opt
	opt.Pod, opt.Forwarder = "pod-b", handOn{r.proxy}
	b := newProxy(opt, r.engine)
	defer func() { _ = b.Drain(t.Context(), true) }()
	mine := r.proxy
	r.proxy = b
	r.engine.setPods(lease.Pod{ID: "pod-a", Endpoint: "x"})
	if a := r.do("POST", id, call(1, "x")); a.status != 200 || !strings.Contains(a.body, "echo") {
		t.Errorf("%+v", a)
	}
	b.pods.at = time.Time{}
	r.engine.setPods()
	e := r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	if e.Error.Data["reason"] != "pod" {
		t.Errorf("%+v", e)
	}
	r.proxy = mine // which finds its lease given away, as after a long pause
	r.do("DELETE", id, "").want(t, 404, 410, "LEASE_LOST")
	r.childless()
}
