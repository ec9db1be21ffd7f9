package session

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

const elicit = `data: {"jsonrpc":"2.0","id":"s1","method":"elicitation/create","params":{}}` + "\n\n"

// Another call of the session waits as well: some servers ask on a stream of their
// own what the call needs. When that stream ends, nobody can answer.
func TestAQuestionOnAnyStreamOfTheSessionCounts(t *testing.T) {
	r := newRig(t)
	call, get := (&request{p: r.proxy, r: r.request(t.Context(), "POST", "", ""), doc: r.docs.doc}).exchange(nil), (&request{p: r.proxy, r: r.request(t.Context(), "GET", "", ""), doc: r.docs.doc}).exchange(nil)
	defer call.Cancel(nil)
	defer get.Cancel(nil)
	s := &session{}
	s.hold.Store(&hold{})
	call.s, get.s = s, s
	if s.enter(call) == nil || s.enter(get) == nil || call.ClientOwes() {
		t.Fatal("nobody has asked")
	}
	get.Asked([]string{"9", "10"})
	s.answered("9")
	s.answered("11")
	if !call.ClientOwes() {
		t.Error("the answer to 10 is owed")
	}
	s.exit(get, 0)
	if call.ClientOwes() {
		t.Error("nobody can answer")
	}
}

func TestACallThatAsksItsClientOutlastsTimeoutSeconds(t *testing.T) {
	wait := func(s *stream, t *testing.T) {
		if line, err := readUntil(s.br, "elicitation/create"); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
	}
	t.Run("over HTTP", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.docs.doc.Timeout = 150 * time.Millisecond })
		id := r.open()
		answered := make(chan struct{})
		r.up.onCall = func(w http.ResponseWriter, req *http.Request, tool string, body []byte) bool {
			if tool == "" {
				close(answered)
				w.WriteHeader(202)
				return true
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, elicit)
			w.(http.Flusher).Flush()
			select {
			case <-answered:
				_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"ok\":1}}\n\n")
			case <-req.Context().Done():
			}
			return true
		}
		s := r.begin("POST", id, call(7, "ask"))
		wait(s, t)
		<-time.After(3 * r.docs.doc.Timeout) // the person's time
		if a := r.do("POST", id, `{"jsonrpc":"2.0","id":"s1","result":{"action":"accept"}}`); a.status != 202 {
			t.Fatalf("%+v", a)
		}
		if rest, err := s.rest(); err != nil || !strings.Contains(rest, `"ok":1`) {
			t.Errorf("%q, %v", rest, err)
		}
	})
	t.Run("of a program", func(t *testing.T) {
		r := stdioRig(t, "plain", func(r *rig) { r.docs.doc.Timeout = 300 * time.Millisecond })
		id := r.open()
		s := r.begin("POST", id, call(3, "ask"))
		if line, err := readUntil(s.br, "sampling/createMessage"); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		<-time.After(3 * r.docs.doc.Timeout)
		if a := r.do("POST", id, `{"jsonrpc":"2.0","id":"s1","result":{"text":"hi"}}`); a.status != 202 {
			t.Fatalf("%+v", a)
		}
		if rest, err := s.rest(); err != nil || !strings.Contains(rest, `"answered":{"text":"hi"}`) {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

// A program's progress is no part of the answer to a client that takes JSON only,
// and it is a sign of life.
func TestProgressThatIsNotPassedOnIsASignOfLife(t *testing.T) {
	r := stdioRig(t, "plain", func(r *rig) { r.docs.doc.Timeout = 400 * time.Millisecond })
	id := r.open()
	body := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"works","_meta":{"progressToken":"t"}}}`
	if a := r.do("POST", id, body, "Accept", "application/json"); a.body != `{"jsonrpc":"2.0","id":2,"result":{"done":1.0}}` {
		t.Errorf("%+v", a)
	}
}

// quiet waits until a session's lease has been looked at five times more, and
// reports whether it was touched meanwhile.
func (r *rig) quiet(t *testing.T) {
	t.Helper()
	checks, peeks := r.engine.checks(), r.engine.peeks()
	r.engine.until(t, "the stream looks at its lease", func() bool { return r.engine.peeks() >= peeks+5 })
	if n := r.engine.checks() - checks; n > 1 { // one may have been under way
		t.Errorf("%d touches of a lease that nobody uses", n)
	}
}

func TestACallEndsWithItsResponses(t *testing.T) {
	// A stream that goes on with pings behind the response.
	goesOn := func(r *rig) {
		r.up.onCall = func(w http.ResponseWriter, req *http.Request, tool string, _ []byte) bool {
			if tool != "talks" {
				return false
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n")
			for req.Context().Err() == nil {
				_, _ = io.WriteString(w, ": ping\n\n")
				w.(http.Flusher).Flush()
				select {
				case <-time.After(5 * time.Millisecond):
				case <-req.Context().Done():
				}
			}
			return true
		}
	}
	t.Run("and its lease is not touched any more", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.engine.ttl = 60 * time.Millisecond })
		goesOn(r)
		s := r.begin("POST", r.open(), call(7, "talks"))
		if line, err := readUntil(s.br, "result"); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		r.quiet(t)
		if n := r.proxy.table.list()[0].calls.Load(); n != 0 {
			t.Errorf("%d calls are in flight", n)
		}
		select {
		case <-r.proxy.traffic.wait(): // a drain does not wait for it
		case <-time.After(10 * time.Second):
			t.Error("a drain would wait for it")
		}
		r.engine.revoke(lease.ReasonRevoke) // which ends the stream all the same
		if rest, err := s.rest(); err != nil || strings.Contains(rest, "error") {
			t.Errorf("%q, %v", rest, err)
		}
	})
	t.Run("and its session can be replaced", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.engine.cap, r.docs.doc.OnBusy = 1, "" })
		goesOn(r)
		s := r.begin("POST", r.open(), call(7, "talks"))
		if line, err := readUntil(s.br, "result"); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		r.open()
		if r.engine.held() != 1 || r.up.live() != 1 {
			t.Errorf("%d leases, %d upstream sessions", r.engine.held(), r.up.live())
		}
	})
	t.Run("or when its client cancels it", func(t *testing.T) {
		for _, requestID := range []string{"7", "7.0", `"7"`} { // as clients write it
			r := newRig(t, func(r *rig) { r.engine.ttl, r.engine.cap, r.docs.doc.OnBusy = 60*time.Millisecond, 1, "" })
			id := r.open()
			done := make(chan answer, 1)
			go func() { done <- r.do("POST", id, call(7, "slow")) }()
			<-r.up.entered
			r.do("POST", id, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":8}}`)
			if n := r.proxy.table.list()[0].calls.Load(); n != 1 {
				t.Errorf("%d calls are in flight after another one was cancelled", n)
			}
			if a := r.do("POST", id, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, requestID)); a.status != 202 {
				t.Errorf("%+v", a)
			}
			r.quiet(t)
			r.open() // it can be replaced
			close(r.up.release)
			<-done
		}
	})
}

// A newer GET takes over, also from a server that has one stream and refuses the
// newer one until it has seen the older one end.
func TestTheNewestStreamTakesOver(t *testing.T) {
	r := newRig(t)
	r.docs.change(func(d *server.Document) { d.Timeout = time.Minute })
	id := r.open()
	streams := make(chan struct{}, 1)
	r.up.onGet = func(w http.ResponseWriter, req *http.Request) {
		select {
		case streams <- struct{}{}:
			defer func() { <-streams }()
		default:
			w.WriteHeader(http.StatusConflict)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for {
			select {
			case ev := <-r.up.push:
				_, _ = io.WriteString(w, ev)
				w.(http.Flusher).Flush()
			case <-req.Context().Done():
				return
			}
		}
	}
	older := r.begin("GET", id, "")
	newer := r.begin("GET", id, "")
	if newer.resp.StatusCode != 200 {
		t.Fatalf("the newer stream answered %d", newer.resp.StatusCode)
	}
	if rest, err := older.rest(); err != nil || rest != "" {
		t.Errorf("the older stream: %q, %v", rest, err)
	}
	r.up.push <- "data: {}\n\n"
	if line, err := newer.br.ReadString('\n'); err != nil || line != "data: {}\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// That a session is gone is only said by a body that names it.
func TestWhatAnswersToGETMean(t *testing.T) {
	const (
		names  = `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`
		routes = `{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":null}`
	)
	for _, c := range []struct {
		name        string
		status      int
		contentType string
		body        string
		want        int  // the client's status
		lost        bool // where the upstream has a session id
	}{
		{"404 without a word", 404, "", "", 405, false},
		{"a framework's 404 in text", 404, "text/plain", "404 page not found", 405, false},
		{"a framework's 404 in JSON", 404, "application/json", `{"detail":"Not Found"}`, 405, false},
		{"a page", 404, "text/html", "<html><title>Session not found</title></html>", 405, false},
		{"404 that names the session", 404, "application/json", names, 404, true},
		{"404 that names the session in text", 404, "text/plain", "Session not found", 404, true},
		{"410 without a word", 410, "", "", 405, false},
		{"410 that names the session", 410, "application/json", names, 404, true},
		{"400 about the method", 400, "application/json", routes, 405, false},
		{"400 about the header", 400, "text/plain", "Bad Request: Accept must be application/json", 405, false},
		{"400 that names the session", 400, "application/json", names, 404, true},
		{"405", 405, "", "", 405, false},
		{"405 in words", 405, "text/plain", "Method Not Allowed", 405, false},
		{"406", 406, "application/json", routes, 405, false},
		{"501", 501, "", "", 405, false},
		{"200 with a page", 200, "text/html", "<html></html>", 405, false},
		{"200 with JSON", 200, "application/json", `{"status":"ok"}`, 405, false},
		{"204", 204, "", "", 405, false},
		{"a redirect", 302, "", "", 405, false},
		{"a permanent redirect", 308, "text/html", "<html></html>", 405, false},
		{"401", 401, "", "", 502, false},
		{"500", 500, "text/plain", "Session not found", 502, false},
		{"503", 503, "application/json", names, 502, false},
	} {
		for _, hasID := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, with a session id %t", c.name, hasID), func(t *testing.T) {
				r := newRig(t)
				if !hasID {
					r.up.stateless = true
					r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Type", "application/json")
						_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
					}
				}
				r.up.onGet = func(w http.ResponseWriter, _ *http.Request) {
					w.Header()["Content-Type"] = nil
					if c.contentType != "" {
						w.Header().Set("Content-Type", c.contentType)
					}
					if c.status/100 == 3 {
						w.Header().Set("Location", "/login")
					}
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, c.body)
				}
				id := r.open()
				want, lost := c.want, c.lost && hasID
				if c.lost && !hasID {
					want = 405
				}
				if a := r.do("GET", id, ""); a.status != want {
					t.Errorf("%+v", a)
				}
				if a := r.do("POST", id, call(7, "x")); (a.status == 404) != lost || (r.engine.held() == 0) != lost {
					t.Errorf("afterwards: %+v, %d leases", a, r.engine.held())
				}
			})
		}
	}
}

func TestWhatAnswersToDELETEMean(t *testing.T) {
	for _, c := range []struct {
		name      string
		status    int
		body      string
		confirmed bool
	}{
		{"done", 200, "", true},
		{"done without a body", 204, "", true},
		{"accepted", 202, "", true},
		{"unknown", 404, "404 page not found", true},
		{"gone", 410, "", true},
		{"not supported", 405, "Method Not Allowed", true},
		{"a 400 that names the session", 400, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"No valid session ID provided"},"id":null}`, true},
		{"another 400", 400, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"Bad header"},"id":null}`, false},
		{"a redirect", 302, "<html>", false},
		{"refused", 403, "no", false},
		{"broken", 500, "<html>Session not found</html>", false},
		{"overloaded", 503, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			id := r.open()
			front := r.up.Config.Handler
			r.up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Method == http.MethodDelete {
					w.WriteHeader(c.status)
					if c.status != 204 {
						_, _ = io.WriteString(w, c.body)
					}
					return
				}
				front.ServeHTTP(w, req)
			})
			if a := r.do("DELETE", id, ""); a.status != 204 || r.engine.held() != 0 {
				t.Errorf("%+v, %d leases", a, r.engine.held())
			}
			if marked := r.engine.marks() == 1; marked == c.confirmed {
				t.Errorf("a mark for the sweeps: %t", marked)
			}
			r.up.Config.Handler = front
		})
	}
}

// What answers another request reaches nobody.
func TestAnAnswerToAnotherRequest(t *testing.T) {
	long := strings.Repeat("x", 400<<10)
	for _, c := range []struct {
		name, body string
		whole      bool // the client gets words
	}{
		{"with its id first", `{"jsonrpc":"2.0","id":8,"result":{"text":"secret"}}`, true},
		{"with its id behind the result", `{"result":{"text":"secret"},"jsonrpc":"2.0","id":8}`, true},
		{"with a long result before its id", `{"result":{"text":"secret` + long + `"},"jsonrpc":"2.0","id":8}`, true},
		{"without an id", `{"jsonrpc":"2.0","result":{"text":"secret"}}`, true},
		{"two answers", `[{"jsonrpc":"2.0","id":7,"result":{}},{"jsonrpc":"2.0","id":8,"result":{"text":"secret"}}]`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			id := r.open()
			r.up.onCall = func(w http.ResponseWriter, _ *http.Request, tool string, _ []byte) bool {
				if tool != "shifted" {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, c.body)
				return true
			}
			a := r.do("POST", id, call(7, "shifted"))
			a.want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
			if strings.Contains(a.body, "secret") {
				t.Errorf("%+v", a)
			}
			if a := r.do("POST", id, call(9, "x")); a.status != 200 || !strings.Contains(a.body, "result") {
				t.Errorf("the session did not outlive it: %+v", a)
			}
		})
	}
	t.Run("of which a megabyte has gone is cut", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"result":{"text":"`+strings.Repeat("x", 2<<20)+`"},"jsonrpc":"2.0","id":8}`)
			return true
		}
		if a := r.do("POST", id, call(7, "x")); a.err == nil {
			t.Errorf("%d bytes ended as if they were whole", len(a.body))
		}
	})
}

func TestAStatusThatIsNoFinalOne(t *testing.T) {
	for _, status := range []string{"099 Early", "103 Hints", "101 Switching Protocols"} {
		r := newRig(t)
		r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 "+status+"\r\nContent-Length: 0\r\n\r\n")
			_ = c.Close()
		}
		r.do("POST", "", initBody).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
		r.clean()
	}
}

func TestAnUpstreamsRefusalIsQuoted(t *testing.T) {
	for _, c := range []struct {
		name, contentType, body, says string
	}{
		{"in text", "text/plain", "Access is only allowed at localhost:8931", "and says: Access is only allowed at localhost:8931"},
		{"in JSON", "application/json", `{"error":{"message":"wrong\u0007 host"}}`, "and says: wrong  host"},
		{"not a page", "text/html", "<html>no</html>", "(HTTP 403)"},
		{"not the credential", "text/plain", "bad token upstream-secret", "(HTTP 403)"},
		{"not a book", "text/plain", strings.Repeat("x", 1000), "(HTTP 403)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.docs.change(func(d *server.Document) { d.Auth.Type, d.Auth.Token = "bearer", "upstream-secret" })
			r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.contentType)
				w.WriteHeader(403)
				_, _ = io.WriteString(w, c.body)
			}
			e := r.do("POST", "", initBody).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
			if !strings.HasSuffix(e.Error.Message, c.says) {
				t.Errorf("%q", e.Error.Message)
			}
		})
	}
}
