package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
)

// rpc is the error in an answer.
type rpc struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

func (a answer) rpc(t *testing.T) rpc {
	t.Helper()
	var e rpc
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatalf("not a JSON-RPC error: %v: %+v", err, a)
	}
	return e
}

func (a answer) want(t *testing.T, status, code int, dataCode string) rpc {
	t.Helper()
	e := a.rpc(t)
	if a.status != status || e.Error.Code != code {
		t.Fatalf("want HTTP %d and code %d: %+v", status, code, a)
	}
	if got, _ := e.Error.Data["code"].(string); got != dataCode {
		t.Fatalf("want data.code %q: %+v", dataCode, a)
	}
	return e
}

// toolError is a tool's result that says isError.
type toolError struct {
	Result struct {
		Content []struct{ Type, Text string }
		IsError bool
		Meta    map[string]map[string]any `json:"_meta"`
	}
}

func (e toolError) text() string { return e.Result.Content[0].Text }
func (e toolError) code() string {
	code, _ := e.Result.Meta[refusal.MetaError]["code"].(string)
	return code
}

func (a answer) result(t testing.TB) (e toolError) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != 200 || !e.Result.IsError || len(e.Result.Content) != 1 || e.Result.Content[0].Type != "text" {
		t.Fatalf("not a tool's error: %v: %+v", err, a)
	}
	return e
}

// told is LEASE_LOST as a client that stays on its id is told it.
func (a answer) told(t testing.TB, reason string) toolError {
	t.Helper()
	e := a.result(t)
	if e.code() != "LEASE_LOST" || e.Result.Meta[refusal.MetaError]["reason"] != reason || !strings.HasPrefix(e.text(), "LEASE_LOST: ") {
		t.Fatalf("want LEASE_LOST for %s: %+v", reason, a)
	}
	return e
}

// clean waits until nothing is held or open.
func (r *rig) clean() {
	r.t.Helper()
	if r.engine.held() != 0 || r.up.live() != 0 {
		r.t.Fatalf("left: %d leases, %d upstream sessions", r.engine.held(), r.up.live())
	}
}

func TestBytesGoThroughUnchanged(t *testing.T) {
	bodies := []string{
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"echo","arguments":{"n":1.0,"big":123456789012345678901234567890}}}`,
		"{ \"params\" : {\"z\":1,\"a\":2,\"name\":\"echo\"},\n\t\"unknown\":{\"x\":[1.0,1e3,-0]},\"method\":\"tools/call\" , \"id\":\"ü\\u00e9\",\"jsonrpc\":\"2.0\" }\n",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":1e2,"x":null}},"extra":"\ud83d\ude00"}`,
	}
	for _, contentType := range []string{"application/json", "text/event-stream"} {
		r := newRig(t)
		id := r.open()
		r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, body []byte) bool {
			w.Header().Set("Content-Type", contentType)
			if contentType == "text/event-stream" {
				_, _ = io.WriteString(w, "id: 7\r\nretry: 10\rdata: ")
				body = []byte(strings.ReplaceAll(string(body), "\n", " "))
				defer func() { _, _ = io.WriteString(w, "\n\n: comment\n\n") }()
			}
			_, _ = w.Write(body)
			return true
		}
		for _, body := range bodies {
			a := r.do("POST", id, body)
			want := body
			if contentType == "text/event-stream" {
				want = "id: 7\r\nretry: 10\rdata: " + strings.ReplaceAll(body, "\n", " ") + "\n\n: comment\n\n"
			}
			if a.body != want {
				t.Errorf("%s: got %q, want %q", contentType, a.body, want)
			}
			if got := r.up.bodies[len(r.up.bodies)-1]; got != body {
				t.Errorf("upstream got %q, want %q", got, body)
			}
		}
	}
}

func TestLargeAnswersGoThroughWhole(t *testing.T) {
	r := newRig(t)
	id := r.open()
	big := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", 5<<20) + `"}`
	r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, big)
		return true
	}
	if a := r.do("POST", id, call(1, "echo")); a.body != big {
		t.Fatalf("got %d bytes, want %d", len(a.body), len(big))
	}
}

func TestHeadersThatPass(t *testing.T) {
	r := newRig(t)
	a := r.do("POST", "", initBody, "Authorization", "Bearer gateway-key", "Cookie", "c=1", "Origin", "http://localhost", "X-API-Key", "k",
		"X-Vance-User", "u", "X-Forwarded-For", "1.2.3.4", "Forwarded", "for=x", "Connection", "X-Hop", "X-Hop", "1", "X-Trace", "keep", "Accept-Encoding", "gzip")
	got := r.up.seen[0].Header
	for _, k := range []string{"Authorization", "Cookie", "Origin", "X-Api-Key", "X-Vance-User", "X-Forwarded-For", "Forwarded", "X-Hop", "Accept-Encoding"} {
		if v := got.Get(k); v != "" {
			t.Errorf("the upstream saw %s: %s", k, v)
		}
	}
	if got.Get("X-Trace") != "keep" {
		t.Error("an end-to-end header did not pass")
	}
	if a.header.Get("Set-Cookie") != "" || a.header.Get("X-Upstream") != "yes" {
		t.Errorf("the client saw %v", a.header)
	}
	if id := a.header.Get("Mcp-Session-Id"); strings.Contains(id, "upstream") {
		t.Errorf("the upstream's session id leaked: %s", id)
	}
	r.do("POST", a.header.Get("Mcp-Session-Id"), call(1, "echo"))
	got = r.up.seen[1].Header
	if got.Get("Mcp-Session-Id") != "upstream-1" || got.Get("Mcp-Protocol-Version") != "2025-06-18" {
		t.Errorf("the upstream saw session %q, version %q", got.Get("Mcp-Session-Id"), got.Get("Mcp-Protocol-Version"))
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	r := newRig(t)
	id := r.open()
	other := principal.Caller{Principal: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:other"}}
	forged := "A" + id[1:]
	if id[0] == 'A' {
		forged = "B" + id[1:]
	}
	for _, c := range []struct {
		name         string
		method, body string
		id           string
		header       []string
		caller       *principal.Caller
		status, code int
	}{
		{name: "broken JSON", method: "POST", id: id, body: `{"jsonrpc":"2.0",`, status: 400, code: -32700},
		{name: "two values", method: "POST", id: id, body: call(1, "a") + "{}", status: 400, code: -32700},
		{name: "not a message", method: "POST", id: id, body: `{"x":1}`, status: 400, code: -32600},
		{name: "a method that stands twice", method: "POST", id: id, body: `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}`, status: 400, code: -32600},
		{name: "an escaped envelope key", method: "POST", id: id, body: `{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"tools/call"}`, status: 400, code: -32600},
		{name: "an envelope key in another case", method: "POST", id: id, body: `{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}`, status: 400, code: -32600},
		{name: "deep nesting", method: "POST", id: id, body: `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, status: 400, code: -32600},
		{name: "a batch in the wrong revision", method: "POST", id: id, body: "[" + call(1, "a") + "]", status: 400, code: -32600},
		{name: "an empty batch", method: "POST", id: id, body: "[]", status: 400, code: -32600},
		{name: "initialize in a batch", method: "POST", id: id, body: "[" + initBody + "]", status: 400, code: -32600},
		{name: "initialize without an id", method: "POST", id: id, body: `{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":"2025-06-18"}}`, status: 400, code: -32600},
		{name: "no session id", method: "POST", body: call(1, "a"), status: 400, code: -32600},
		{name: "no session id on GET", method: "GET", status: 400, code: -32600},
		{name: "no session id on DELETE", method: "DELETE", status: 400, code: -32600},
		{name: "an unknown session id", method: "POST", id: "nonsense", body: call(1, "a"), status: 404, code: 404},
		{name: "a forged session id", method: "POST", id: forged, body: call(1, "a"), status: 404, code: 404},
		{name: "a foreign session id on POST", method: "POST", id: id, body: call(1, "a"), caller: &other, status: 404, code: 404},
		{name: "a foreign session id on GET", method: "GET", id: id, caller: &other, status: 404, code: 404},
		{name: "a foreign session id on DELETE", method: "DELETE", id: id, caller: &other, status: 404, code: 404},
		{name: "an unknown protocol version", method: "POST", id: id, body: call(1, "a"), header: []string{"MCP-Protocol-Version", "1999-01-01"}, status: 400, code: -32022},
		{name: "an unknown protocol version on DELETE", method: "DELETE", id: id, header: []string{"MCP-Protocol-Version", "x"}, status: 400, code: -32022},
		{name: "another content type", method: "POST", id: id, body: call(1, "a"), header: []string{"Content-Type", "text/plain"}, status: 415, code: 415},
		{name: "a charset that an upstream would read other keys in", method: "POST", id: id, body: `{"jsonrpc":"2.0","id":1,"method":"ping","+AG0-ethod":"tools/call"}`, header: []string{"Content-Type", "application/json; charset=utf-7"}, status: 415, code: 415},
		{name: "a compressed body", method: "POST", id: id, body: call(1, "a"), header: []string{"Content-Encoding", "gzip"}, status: 415, code: 415},
		{name: "a body over the limit", method: "POST", id: id, body: `"` + strings.Repeat("x", 1<<20) + `"`, status: 413, code: 413},
		{name: "another verb", method: "PUT", id: id, body: "{}", status: 405, code: 405},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.caller != nil {
				mine := r.caller.Swap(c.caller)
				defer r.caller.Store(mine)
			}
			before := len(r.up.seen)
			a := r.do(c.method, c.id, c.body, c.header...)
			e := a.rpc(t)
			if a.status != c.status || e.Error.Code != c.code || e.Error.Message == "" {
				t.Errorf("%+v", a)
			}
			if len(r.up.seen) != before {
				t.Error("the upstream has seen it")
			}
		})
	}
	if a := r.do("POST", id, call(1, "echo")); a.status != 200 {
		t.Fatalf("the session did not outlive the bad requests: %+v", a)
	}
}

func TestABodyWithoutRoomInMemoryIsALimit(t *testing.T) {
	r := newRig(t)
	id := r.open()
	full := func(req *http.Request) { req.Body = io.NopCloser(iotest.ErrReader(quota.ErrFull)) }
	r.served.Store(&full)
	a := r.do("POST", id, call(1, "echo"))
	if e := a.rpc(t); a.status != http.StatusServiceUnavailable || e.Error.Data["code"] != refusal.CodeLimit || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
}

// A header that counts once is refused where it stands twice: the upstream might
// go by the other one.
func TestHeadersThatCountOnceAreNotGuessed(t *testing.T) {
	r := newRig(t)
	id := r.open()
	for _, c := range []struct {
		header string
		values []string
		status int
		says   string
	}{
		{"Content-Type", []string{"application/json", "application/json; charset=utf-7"}, 415, "one Content-Type"},
		{"Content-Encoding", []string{"", "deflate"}, 415, "compressed"},
		{"Mcp-Session-Id", []string{id, id}, 400, "more than once"},
		{"MCP-Protocol-Version", []string{"2025-06-18", "2025-06-18"}, 400, "more than once"},
	} {
		t.Run(c.header, func(t *testing.T) {
			seen := len(r.up.seen)
			req := r.request(t.Context(), "POST", id, call(1, "x"))
			req.Header[http.CanonicalHeaderKey(c.header)] = c.values
			resp, err := r.http.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || !strings.Contains(string(text), c.says) || len(r.up.seen) != seen {
				t.Errorf("%d %s; the upstream saw %d requests", resp.StatusCode, text, len(r.up.seen)-seen)
			}
		})
	}
	for _, say := range []string{"application/json; charset=UTF-8", "application/json;charset=utf8", "Application/JSON"} {
		if a := r.do("POST", id, call(1, "x"), "Content-Type", say); a.status != 200 {
			t.Errorf("%s: %+v", say, a)
		}
	}
}

func TestUnknownServersAre404(t *testing.T) {
	for _, err := range []error{server.ErrUnknown, server.ErrDisabled} {
		r := newRig(t, func(r *rig) { r.docs.err = err })
		r.do("POST", "", initBody).want(t, 404, 404, "")
	}
}

func TestAnInvalidServerDocumentIsRefusedInWords(t *testing.T) {
	r := newRig(t, func(r *rig) {
		r.docs.err = &server.InvalidError{Server: "browser", Layer: "project", Where: "f:3", Field: "parameters.command", What: "secret-text"}
	})
	a := r.do("POST", "", initBody)
	e := a.want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
	if !strings.Contains(e.Error.Message, "parameters.command in the project layer") || strings.Contains(a.body, "secret-text") || e.Error.Data["permanent"] != true {
		t.Errorf("%s", a.body)
	}
}

func TestNotificationsAreAccepted(t *testing.T) {
	r := newRig(t)
	id := r.open()
	for _, body := range []string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":4,"result":{}}`} {
		if a := r.do("POST", id, body); a.status != 202 || a.body != "" {
			t.Errorf("%+v", a)
		}
	}
	if r.engine.checks() != 0 {
		t.Error("a notification touched the lease")
	}
}

func TestBatchesOf20250326AreCheckedOnce(t *testing.T) {
	r := newRig(t)
	r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-03-26"}}`)
	}
	r.up.stateless = true
	r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, body []byte) bool {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
		return true
	}
	id := r.open()
	batch := "[" + call(1, "a") + " ,\n" + call(2, "b") + "]"
	if a := r.do("POST", id, batch); a.status != 200 || a.body != batch {
		t.Fatalf("%+v", a)
	}
	if r.engine.checks() != 1 {
		t.Errorf("%d checks", r.engine.checks())
	}
	r.engine.down(true)
	a := r.do("POST", id, batch)
	var es []rpc
	if err := json.Unmarshal([]byte(a.body), &es); err != nil || len(es) != 2 || string(es[1].ID) != "2" || es[1].Error.Code != 503 {
		t.Errorf("a refused batch: %+v", a)
	}
	r.engine.down(false)
}

func TestEveryCallIsCheckedAndOthersOnlyLook(t *testing.T) {
	r := newRig(t)
	id := r.open()
	r.do("POST", id, call(1, "echo"))
	r.do("POST", id, call(2, "echo"))
	r.do("POST", id, `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	if r.engine.checks() != 2 || r.engine.peeks() != 1 {
		t.Errorf("%d checks, %d peeks", r.engine.checks(), r.engine.peeks())
	}
}

// Servers exist that do what a tools/call says though it has no id and they owe no
// answer: it uses the resource like any other.
func TestACallWithoutAnIDIsCheckedToo(t *testing.T) {
	const silent = `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}`
	r := newRig(t)
	id := r.open()
	if a := r.do("POST", id, silent); a.status != 202 || r.engine.checks() != 1 {
		t.Errorf("%+v, %d checks", a, r.engine.checks())
	}
	seen := len(r.up.seen)
	r.engine.down(true)
	r.do("POST", id, silent).want(t, 503, 503, "LEASE_UNAVAILABLE")
	if len(r.up.seen) != seen {
		t.Error("it went up unchecked while the store was down")
	}
	r.engine.down(false)
}

func TestStoreDown(t *testing.T) {
	t.Run("at open is LEASE_UNAVAILABLE and opens nothing", func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, func(r *rig) { r.opt.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		r.engine.down(true)
		a := r.do("POST", "", initBody)
		a.want(t, 200, 503, "LEASE_UNAVAILABLE")
		if a.header.Get("Mcp-Session-Id") != "" || len(r.up.seen) != 0 {
			t.Errorf("%+v", a)
		}
		if !strings.Contains(log.String(), "a lease could not be taken") {
			t.Errorf("the operator is not told: %s", log.String())
		}
	})
	t.Run("at the payload gives back and ends what was opened", func(t *testing.T) {
		r := newRig(t)
		r.engine.store.Fail(storetest.ErrDown, "setPayload")
		a := r.do("POST", "", initBody)
		a.want(t, 200, 503, "LEASE_UNAVAILABLE")
		if a.header.Get("Mcp-Session-Id") != "" {
			t.Error("a session id came with a refusal")
		}
		r.clean()
	})
	t.Run("at a check refuses the call and keeps the session", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		r.engine.down(true)
		r.do("POST", id, call(1, "echo")).want(t, 200, 503, "LEASE_UNAVAILABLE")
		if a := r.do("POST", id, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); a.status != 200 {
			t.Errorf("ping: %+v", a)
		}
		r.engine.down(false)
		if a := r.do("POST", id, call(1, "echo")); a.status != 200 {
			t.Errorf("after the outage: %+v", a)
		}
	})
	t.Run("at release still ends the upstream session and answers 204", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		r.engine.store.Fail(storetest.ErrDown, "deleteHolder")
		if a := r.do("DELETE", id, ""); a.status != 204 || r.up.live() != 0 {
			t.Errorf("%+v", a)
		}
		r.do("POST", id, `{"jsonrpc":"2.0","id":1,"method":"ping"}`) // whatever it is, not a crash
	})
}

func TestBusyAtOpen(t *testing.T) {
	r := newRig(t)
	r.setCap(1)
	r.open()
	r.engine.clock(90 * time.Second)
	a := r.do("POST", "", initBody)
	e := a.want(t, 200, refusal.RPCBusy, "LEASE_BUSY")
	if a.header.Get("Mcp-Session-Id") != "" || a.header.Get("Retry-After") != "1" || string(e.ID) != "1" {
		t.Errorf("%+v", a)
	}
	d := e.Error.Data
	if d["level"] != "user" || d["cap"] != 1.0 || d["count"] != 1.0 || d["oldestAgeSeconds"] != 90.0 || d["retryAfterMs"] != 1000.0 || d["resource"] != "browser" {
		t.Errorf("data: %v", d)
	}
	if !strings.Contains(e.Error.Message, "user limit") || !strings.Contains(e.Error.Message, "try again in about 1 s") {
		t.Errorf("message: %s", e.Error.Message)
	}
	if r.up.live() != 1 {
		t.Errorf("%d upstream sessions", r.up.live())
	}
}

func TestUpstreamTroubleAtOpen(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*rig)
		says string
	}{
		{"down", func(r *rig) { r.up.close() }, "no connection"},
		{"slow", func(r *rig) {
			r.docs.doc.InitTimeout = 50 * time.Millisecond
			r.up.onInit = func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
		}, "initTimeoutSeconds"},
		{"slow after the header", func(r *rig) {
			r.docs.doc.InitTimeout = 50 * time.Millisecond
			r.up.onInit = func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(200)
				w.(http.Flusher).Flush()
				<-req.Context().Done()
			}
		}, "initTimeoutSeconds"},
		{"garbage", func(r *rig) {
			r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "hello")
			}
		}, "not a JSON-RPC result"},
		{"a stream without a result", func(r *rig) {
			r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {}\n\n")
			}
		}, "not a JSON-RPC result"},
		{"wrong content type", func(r *rig) {
			r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, "<html>")
			}
		}, "does not speak MCP"},
		{"redirect", func(r *rig) {
			r.up.onInit = func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, "/elsewhere", http.StatusFound) }
		}, "redirect"},
		{"502", func(r *rig) { r.up.onInit = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) } }, "HTTP 502"},
		{"502 with a session", func(r *rig) {
			r.up.sessions["upstream-x"] = true
			r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Mcp-Session-Id", "upstream-x")
				w.WriteHeader(502)
			}
		}, "HTTP 502"},
		{"refused credential", func(r *rig) { r.up.auth = "Bearer other" }, "refused the gateway's credential"},
		{"dying in the answer", func(r *rig) {
			r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, `{"jsonrpc"`)
				panic(http.ErrAbortHandler)
			}
		}, "broke"},
		{"an id that no header bears", func(r *rig) {
			r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Mcp-Session-Id"] = []string{"a b"}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
			}
		}, "visible ASCII"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.edit)
			a := r.do("POST", "", initBody)
			e := a.want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
			if !strings.Contains(e.Error.Message, c.says) || a.header.Get("Mcp-Session-Id") != "" || a.header.Get("WWW-Authenticate") != "" {
				t.Errorf("%+v", a)
			}
			if strings.Contains(a.body, "127.0.0.1") {
				t.Errorf("an address in %s", a.body)
			}
			r.clean()
		})
	}
}

// A slow upstream opens its session when nobody waits for it any more. Nobody has
// read its id then, and it would live for ever.
func TestASessionThatIsOpenedTooLateIsEnded(t *testing.T) {
	answered := make(chan struct{})
	late := func(r *rig) {
		r.docs.doc.InitTimeout = 50 * time.Millisecond
		r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
			<-answered
			r.up.mu.Lock()
			r.up.sessions["late"] = true
			r.up.mu.Unlock()
			w.Header().Set("Mcp-Session-Id", "late")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
		}
	}
	t.Run("when it answers", func(t *testing.T) {
		r := newRig(t, late)
		r.up.auth = "Bearer upstream-secret"
		r.docs.change(func(d *server.Document) { d.Auth.Type, d.Auth.Token = "bearer", "upstream-secret" })
		e := r.do("POST", "", initBody).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
		if !strings.Contains(e.Error.Message, "initTimeoutSeconds") || r.engine.held() != 0 {
			t.Errorf("%+v, %d leases", e, r.engine.held())
		}
		close(answered)
		if id := <-r.up.ended; id != "late" {
			t.Errorf("%s was ended", id)
		}
		<-r.proxy.traffic.wait()
		r.clean()
	})
	t.Run("a stopping pod does not wait for it", func(t *testing.T) {
		answered = make(chan struct{})
		defer close(answered)
		r := newRig(t, late)
		r.do("POST", "", initBody).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
		r.stop() // within five seconds
	})
	t.Run("it has a place among its caller's", func(t *testing.T) {
		answered = make(chan struct{})
		defer close(answered)
		r := newRig(t, late)
		r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 9, PerPrincipal: 100})
		for range 10 {
			r.do("POST", "", initBody).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
		}
		r.proxy.orphans.mu.Lock()
		defer r.proxy.orphans.mu.Unlock()
		if n := len(r.proxy.orphans.cancels); n == 0 || n > 3 {
			t.Errorf("%d late answers are waited for, where a third of limits.perPod is 3", n)
		}
	})
}

func TestTheUpstreamsOwnRefusalPasses(t *testing.T) {
	r := newRig(t)
	refusal := `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":{"n":1.0}}}`
	r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Mcp-Session-Id", "upstream-x")
		_, _ = io.WriteString(w, refusal)
	}
	r.up.sessions["upstream-x"] = true
	a := r.do("POST", "", initBody)
	if a.status != 200 || a.body != refusal || a.header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%+v", a)
	}
	r.clean()
}

func TestInitializeAsAnEventStream(t *testing.T) {
	r := newRig(t)
	stream := "event: message\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n" +
		"event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\",\"n\":1.0}}\r\n\r\n: tail\n\n"
	r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Mcp-Session-Id", "upstream-x")
		_, _ = io.WriteString(w, stream)
	}
	r.up.sessions["upstream-x"] = true
	a := r.do("POST", "", initBody)
	if a.status != 200 || a.body != stream || a.header.Get("Mcp-Session-Id") == "" {
		t.Errorf("%+v", a)
	}
}

func TestUpstreamTroubleInACall(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(w http.ResponseWriter, r *http.Request)
		says string
	}{
		{"silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "timeoutSeconds"},
		{"garbage", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "hello")
		}, "not a JSON-RPC message"},
		{"wrong content type", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "does not speak MCP"},
		{"cut before the header", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "broke"},
		{"cut in a JSON answer of which nothing is with the client", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0"`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "broke"},
		{"a JSON answer that is shorter than it says", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0"`)
		}, "broke"},
		{"broken chunks", func(w http.ResponseWriter, _ *http.Request) {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"jso\r\nzz\r\n")
			_ = rw.Flush()
			_ = c.Close()
		}, ""},
		{"only spaces", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, strings.Repeat(" ", 400<<10))
		}, "not a JSON-RPC message"},
		{"a compressed stream", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b")
		}, "compressed"},
		{"401", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "credential"},
		{"502 from an ingress", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, "HTTP 502"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.docs.doc.Timeout = 200 * time.Millisecond })
			id := r.open()
			r.up.onCall = func(w http.ResponseWriter, req *http.Request, _ string, _ []byte) bool { c.call(w, req); return true }
			e := r.do("POST", id, call(7, "x")).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
			if !strings.Contains(e.Error.Message, c.says) || string(e.ID) != "7" {
				t.Errorf("%s", e.Error.Message)
			}
			r.up.mu.Lock()
			r.up.onCall = nil
			r.up.mu.Unlock()
			if a := r.do("POST", id, call(8, "echo")); a.status != 200 {
				t.Errorf("the session did not outlive it: %+v", a)
			}
		})
	}
	t.Run("dying in a stream ends with an error event", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		a := r.do("POST", id, call(7, "x"))
		if a.err != nil || !strings.Contains(a.body, `"id":7,"error":{"code":502`) || !strings.HasSuffix(a.body, "\n\n") {
			t.Errorf("%+v", a)
		}
	})
	t.Run("dying in the middle of an event cuts the connection", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\"")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		if a := r.do("POST", id, call(7, "x")); a.err == nil {
			t.Errorf("%+v", a)
		}
	})
	t.Run("dying in a JSON body cuts the connection where some of it is with the client", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":7,"jsonrpc"`+strings.Repeat(" ", 256<<10))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		if a := r.do("POST", id, call(7, "x")); a.err == nil {
			t.Errorf("%+v", a)
		}
	})
	t.Run("an answer may begin with spaces that come alone", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		const answer = " \n{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}"
		r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "application/json")
			for i := range answer {
				_, _ = io.WriteString(w, answer[i:i+1])
				w.(http.Flusher).Flush()
			}
			return true
		}
		if a := r.do("POST", id, call(7, "x")); a.status != 200 || a.body != answer {
			t.Errorf("%+v", a)
		}
	})
	t.Run("maxCallSeconds ends a call that never stops", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.docs.doc.MaxCall = 200 * time.Millisecond })
		id := r.open()
		r.up.onCall = func(w http.ResponseWriter, req *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			for req.Context().Err() == nil {
				_, _ = io.WriteString(w, ": still here\n\n")
				w.(http.Flusher).Flush()
				time.Sleep(time.Millisecond)
			}
			return true
		}
		if a := r.do("POST", id, call(7, "x")); !strings.Contains(a.body, "maxCallSeconds") {
			t.Errorf("%+v", a)
		}
	})
}

func TestEventsAreFlushedAsTheyArrive(t *testing.T) {
	r := newRig(t)
	id := r.open()
	resp, err := r.http.Client().Do(r.request(t.Context(), "POST", id, call(7, "stream")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	br := bufio.NewReader(resp.Body)
	if line, err := br.ReadString('\n'); err != nil || line != "id: 1\n" {
		t.Fatalf("%q, %v", line, err) // the upstream is still waiting
	}
	close(r.up.release)
	rest, err := io.ReadAll(br)
	if err != nil || !strings.Contains(string(rest), `"id":7`) {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestAClientThatLeavesItsCallDoesNotStopIt(t *testing.T) {
	r := newRig(t)
	id := r.open()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan answer, 1)
	go func() { done <- r.doCtx(ctx, "POST", id, call(7, "slow")) }()
	<-r.up.entered
	cancel()
	if a := <-done; !errors.Is(a.err, context.Canceled) {
		t.Fatalf("%+v", a)
	}
	s := r.proxy.table.list()[0]
	if s.idle() {
		t.Fatal("the call ended with its client")
	}
	close(r.up.release)
	<-r.proxy.traffic.wait()
	if r.engine.held() != 1 {
		t.Error("the lease went with the client")
	}
}

func TestAClientThatLeavesBeforeTheAnswerLeavesNothing(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	arrived, goOn := make(chan struct{}), make(chan struct{})
	opening := make(chan context.Context, 1)
	note := func(req *http.Request) { opening <- req.Context() }
	r.served.Store(&note)
	r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-goOn
		w.Header().Set("Mcp-Session-Id", "upstream-x")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
	}
	r.up.sessions["upstream-x"] = true
	done := make(chan answer, 1)
	go func() { done <- r.doCtx(ctx, "POST", "", initBody) }()
	<-arrived
	cancel()
	<-done
	<-(<-opening).Done()     // the server has seen it leave
	<-r.proxy.traffic.wait() // before the upstream has answered
	if r.engine.held() != 0 {
		t.Error("the slot is not back")
	}
	close(goOn)
	<-r.up.ended
	r.clean()
	if r.counts.open.Load() != 0 {
		t.Error("a session is still counted")
	}
}

func TestAClientThatLeavesTheStreamAfterTheResultHasItsSession(t *testing.T) {
	r := newRig(t)
	r.up.onInit = func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Mcp-Session-Id", "upstream-x")
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-06-18\"}}\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-r.up.release:
		case <-req.Context().Done():
		}
	}
	r.up.sessions["upstream-x"] = true
	opening := make(chan context.Context, 1)
	note := func(req *http.Request) { opening <- req.Context() }
	r.served.Store(&note)
	s := r.begin("POST", "", initBody)
	if line, err := s.br.ReadString('\n'); err != nil || !strings.Contains(line, "protocolVersion") {
		t.Fatalf("%q, %v", line, err)
	}
	s.close()
	<-(<-opening).Done()
	r.served.Store(nil)
	close(r.up.release)
	<-r.proxy.traffic.wait()
	if a := r.do("POST", s.resp.Header.Get("Mcp-Session-Id"), call(1, "x")); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

func TestLimits(t *testing.T) {
	t.Run("perPrincipal", func(t *testing.T) {
		r := newRig(t)
		r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 100, PerPrincipal: 1})
		id := r.open()
		e := r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LIMIT_REACHED")
		if e.Error.Data["limit"] != "limits.perPrincipal" {
			t.Errorf("%v", e)
		}
		r.do("DELETE", id, "")
		id = r.open()
		r.engine.revoke(lease.ReasonIdle)
		r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
		r.open() // a lost session holds no place
		if n := r.counts.open.Load(); n != 1 {
			t.Errorf("%d sessions are counted", n)
		}
	})
	t.Run("perPod", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 0, PerPrincipal: 10})
		r.do("POST", id, call(1, "x")).want(t, 200, refusal.RPCBusy, "LIMIT_REACHED")
		r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LIMIT_REACHED")
		r.do("GET", id, "").want(t, 429, refusal.RPCBusy, "LIMIT_REACHED")
	})
	t.Run("one caller does not take all of perPod", func(t *testing.T) {
		r := newRig(t)
		r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 12, PerPrincipal: 10})
		listen := func(id string) int {
			return r.begin("GET", id, "", "Last-Event-ID", "e-1").resp.StatusCode
		}
		id, other := r.open(), r.open()
		<-r.proxy.traffic.wait()
		for range 3 {
			if status := listen(id); status != 200 {
				t.Fatalf("a stream within the share answered %d", status)
			}
		}
		if status := listen(other); status != 200 {
			t.Fatalf("a stream within the share answered %d", status)
		}
		if e := r.do("GET", other, "", "Last-Event-ID", "e-1").want(t, 429, refusal.RPCBusy, "LIMIT_REACHED"); !strings.Contains(e.Error.Message, "your share") {
			t.Errorf("%q", e.Error.Message)
		}
		r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LIMIT_REACHED")
		for _, who := range []principal.Principal{
			{Tenant: "acme", Project: "thesis", User: "u43", Issuer: "key:writer"}, {Tenant: "beta", Project: "thesis", User: "u42", Issuer: "key:writer"},
		} {
			r.caller.Store(&principal.Caller{Principal: who})
			r.open()
			<-r.proxy.traffic.wait()
		}
	})
	t.Run("a session has four GET streams at most, and the oldest goes", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		var all []*stream
		for range maxStreams + 1 {
			s := r.begin("GET", id, "", "Last-Event-ID", "e-1")
			if s.resp.StatusCode != 200 {
				t.Fatalf("a stream answered %d", s.resp.StatusCode)
			}
			all = append(all, s)
		}
		if rest, err := all[0].rest(); err != nil || rest != "" {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

func TestADocumentThatLeadsElsewhereEndsTheSession(t *testing.T) {
	r := newRig(t)
	id := r.open()
	other := newTestUpstream(t)
	defer other.close()
	r.docs.change(func(d *server.Document) { d.URL, _ = url.Parse(other.URL + "/mcp") })
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	if r.engine.held() != 0 || len(other.seen) != 0 {
		t.Errorf("%d leases; the other server saw %d requests", r.engine.held(), len(other.seen))
	}
}

func TestAStreamThatEndsWithoutAResult(t *testing.T) {
	const note = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n"
	const result = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n"
	for _, c := range []struct {
		name, stream string
		errors       int  // events that are added
		cut          bool // the connection
	}{
		{"is ended by an error", note, 1, false},
		{"is ended by an error though it is empty", "", 1, false},
		{"is ended by an error where it answers another request", strings.ReplaceAll(result, "7", "8"), 1, false},
		{"with a result passes as it is", note + result, 0, false},
		{"with a result without its blank line passes as it is", note + result[:len(result)-1], 0, false},
		{"whose events have ids passes as it is, since the client can resume it", "id: 1\n" + note, 0, false},
		{"in the middle of an event is cut", note + "data: {", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			id := r.open()
			r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(200)
				_, _ = io.WriteString(w, c.stream)
				return true
			}
			a := r.do("POST", id, call(7, "x"))
			added, ok := strings.CutPrefix(a.body, c.stream)
			if (a.err != nil) != c.cut || !ok || strings.Count(added, "UPSTREAM_UNAVAILABLE: ") != c.errors || (c.errors == 0) != (added == "") {
				t.Fatalf("%+v", a)
			}
			if c.errors > 0 && (!strings.Contains(added, `"id":7,"error"`) || !strings.Contains(added, "without a result") || !strings.HasSuffix(added, "\n\n")) {
				t.Errorf("%q", added)
			}
		})
	}
}
