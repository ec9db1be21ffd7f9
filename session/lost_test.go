package session

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
)

// stream is a GET or POST whose answer has begun.
type stream struct {
	resp *http.Response
	br   *bufio.Reader
	stop context.CancelFunc
}

func (r *rig) begin(method, id, body string, header ...string) *stream {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	resp, err := r.http.Client().Do(r.request(ctx, method, id, body, header...))
	if err != nil {
		cancel()
		r.t.Fatal(err)
	}
	s := &stream{resp, bufio.NewReader(resp.Body), cancel}
	r.t.Cleanup(s.close)
	return s
}

func (s *stream) close() {
	s.stop()
	_ = s.resp.Body.Close()
}

func (s *stream) rest() (string, error) {
	b, err := io.ReadAll(s.br)
	return string(b), err
}

func TestALostLeaseIsToldOnEveryVerb(t *testing.T) {
	for _, verb := range []string{"tools/call", "ping", "notification", "GET", "DELETE"} {
		for _, reason := range []lease.Reason{lease.ReasonIdle, lease.ReasonPod, lease.ReasonRevoke} {
			t.Run(verb+" after "+string(reason), func(t *testing.T) {
				r := newRig(t)
				id := r.open()
				r.engine.revoke(reason)
				var a answer
				switch verb {
				case "tools/call":
					a = r.do("POST", id, call(1, "x"))
				case "ping":
					a = r.do("POST", id, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
				case "notification":
					a = r.do("POST", id, `{"jsonrpc":"2.0","method":"notifications/cancelled"}`)
				default:
					a = r.do(verb, id, "")
				}
				e := a.want(t, 404, 410, "LEASE_LOST")
				if e.Error.Data["reason"] != string(reason) || e.Error.Message == "" {
					t.Errorf("%s", a.body)
				}
				if r.up.live() != 0 {
					t.Error("the upstream session still lives")
				}
				// And again, from what the pod remembers.
				r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
			})
		}
	}
}

func TestALossInACall(t *testing.T) {
	quick := func(r *rig) { r.engine.ttl = 90 * time.Millisecond }
	t.Run("before the header is 404", func(t *testing.T) {
		r := newRig(t, quick)
		id := r.open()
		done := make(chan answer, 1)
		go func() { done <- r.do("POST", id, call(7, "slow")) }()
		<-r.up.entered
		r.engine.revoke(lease.ReasonRevoke)
		e := (<-done).want(t, 404, 410, "LEASE_LOST")
		if e.Error.Data["reason"] != "revoke" || string(e.ID) != "7" {
			t.Errorf("%+v", e)
		}
		if r.up.live() != 0 {
			t.Error("the upstream session still lives")
		}
	})
	t.Run("in a stream is one error event and the end", func(t *testing.T) {
		r := newRig(t, quick)
		id := r.open()
		s := r.begin("POST", id, call(7, "stream"))
		<-r.up.entered
		r.engine.revoke(lease.ReasonIdle)
		rest, err := s.rest()
		_, last, _ := strings.Cut(rest, "\n\n")
		if err != nil || strings.Count(last, "data: ") != 1 || !strings.Contains(last, `"id":7,"error":{"code":410`) || !strings.Contains(last, `"reason":"idle"`) {
			t.Errorf("%q, %v", rest, err)
		}
	})
	t.Run("in another begun body is a cut connection", func(t *testing.T) {
		r := newRig(t, quick)
		id := r.open()
		r.up.onCall = func(w http.ResponseWriter, req *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":7,"jsonrpc":`+strings.Repeat(" ", 64<<10))
			w.(http.Flusher).Flush()
			r.up.entered <- "x"
			<-req.Context().Done()
			return true
		}
		s := r.begin("POST", id, call(7, "x"))
		<-r.up.entered
		r.engine.revoke(lease.ReasonIdle)
		if rest, err := s.rest(); err == nil {
			t.Errorf("%q ended as if it were whole", rest)
		}
	})
	t.Run("is not seen where the store is down, and the call goes on", func(t *testing.T) {
		r := newRig(t, quick)
		id := r.open()
		done := make(chan answer, 1)
		go func() { done <- r.do("POST", id, call(7, "slow")) }()
		<-r.up.entered
		r.engine.down(true)
		before := r.engine.checks()
		r.engine.until(t, "two looks at a store that is down", func() bool { return r.engine.checks() >= before+2 })
		close(r.up.release)
		if a := <-done; a.status != 200 {
			t.Errorf("%+v", a)
		}
		r.engine.down(false)
	})
	t.Run("is touched while its session is being opened", func(t *testing.T) {
		answer := make(chan struct{})
		r := newRig(t, quick)
		r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
			<-answer
			r.up.mu.Lock()
			r.up.sessions["slow"] = true
			r.up.mu.Unlock()
			w.Header().Set("Mcp-Session-Id", "slow")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
		}
		done := make(chan string, 1)
		go func() { done <- r.open() }()
		r.engine.until(t, "three checks of one open", func() bool { return r.engine.checks() >= 3 })
		close(answer)
		<-done
	})
	t.Run("touches while it runs and not after", func(t *testing.T) {
		r := newRig(t, quick)
		id := r.open()
		done := make(chan answer, 1)
		go func() { done <- r.do("POST", id, call(7, "slow")) }()
		<-r.up.entered
		r.engine.until(t, "three checks of one call", func() bool { return r.engine.checks() >= 3 })
		close(r.up.release)
		<-done
		<-r.proxy.traffic.wait()
	})
}

func TestGetStreams(t *testing.T) {
	t.Run("pass events byte by byte and peek without touching", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.engine.ttl = 60 * time.Millisecond })
		id := r.open()
		s := r.begin("GET", id, "", "Last-Event-ID", "e-9")
		ev := "id: e-10\r\nretry: 1\r\ndata: {\"n\":1.0}\r\n\r\n"
		r.up.push <- ev
		got := make([]byte, len(ev))
		if _, err := io.ReadFull(s.br, got); err != nil || string(got) != ev {
			t.Fatalf("%q, %v", got, err)
		}
		if v := r.up.seen[len(r.up.seen)-1].Header.Get("Last-Event-ID"); v != "e-9" {
			t.Errorf("Last-Event-ID %q", v)
		}
		r.engine.until(t, "peeks", func() bool { return r.engine.peeks() >= 3 })
		if r.engine.checks() != 0 {
			t.Error("a stream that listens touched the lease")
		}
		r.engine.revoke(lease.ReasonRevoke)
		if rest, err := s.rest(); err != nil || rest != "" {
			t.Errorf("%q, %v", rest, err)
		}
		r.do("GET", id, "").want(t, 404, 410, "LEASE_LOST")
	})
	t.Run("are 405 where the upstream has none", func(t *testing.T) {
		r := newRig(t)
		r.up.onGet = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(405) }
		a := r.do("GET", r.open(), "")
		a.want(t, 405, 405, "")
		if a.header.Get("Allow") == "" {
			t.Error("no Allow")
		}
	})
	t.Run("end upstream with their client", func(t *testing.T) {
		r := newRig(t)
		left := make(chan struct{})
		r.up.onGet = func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			close(left)
		}
		s := r.begin("GET", r.open(), "")
		s.close()
		<-left
	})
	t.Run("end with a DELETE", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		s := r.begin("GET", id, "")
		r.do("DELETE", id, "")
		if rest, err := s.rest(); err != nil || rest != "" {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

func TestAnUpstreamThatForgetsItsSession(t *testing.T) {
	for _, status := range []int{404, 400} {
		r := newRig(t)
		id := r.open()
		r.up.mu.Lock()
		r.up.sessions, r.up.gone = map[string]bool{}, status
		r.up.mu.Unlock()
		e := r.do("POST", id, call(7, "x")).want(t, 404, 410, "LEASE_LOST")
		if e.Error.Data["reason"] != "crashed" || r.engine.held() != 0 {
			t.Errorf("%+v, %d leases", e, r.engine.held())
		}
		r.do("GET", id, "").want(t, 404, 410, "LEASE_LOST")
	}
}

func TestA404ToACallLeavesNoSessionBehind(t *testing.T) {
	r := newRig(t)
	id := r.open()
	r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
		http.Error(w, "no such method", 404)
		return true
	}
	r.do("POST", id, call(7, "x")).want(t, 404, 410, "LEASE_LOST")
	if r.engine.held() != 0 || r.up.live() != 0 {
		t.Errorf("%d leases, %d upstream sessions", r.engine.held(), r.up.live())
	}
}

func TestAnAnswerThatSwitchesProtocols(t *testing.T) {
	r := newRig(t)
	id := r.open()
	r.up.onCall = func(w http.ResponseWriter, req *http.Request, _ string, _ []byte) bool {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return true
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		return true
	}
	r.do("POST", id, call(7, "x")).want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
}

func TestDeleteLooksAtTheStatus(t *testing.T) {
	for _, c := range []struct {
		status  int
		outcome string
		marked  bool
	}{{0, "confirmed", false}, {404, "confirmed", false}, {405, "confirmed", false}, {401, "refused", true}, {500, "unreachable", true}} {
		r := newRig(t)
		id := r.open()
		r.up.onDelete = c.status
		if a := r.do("DELETE", id, ""); a.status != 204 {
			t.Errorf("%+v", a)
		}
		if r.engine.held() != 0 || (r.engine.marks() == 1) != c.marked || r.counts.closed[c.outcome] != 1 {
			t.Errorf("upstream status %d: %d leases, %d marks, closed %v", c.status, r.engine.held(), r.engine.marks(), r.counts.closed)
		}
		r.up.onDelete = 0
	}
}

func TestDeleteCarriesTheSessionsAuth(t *testing.T) {
	r := newRig(t)
	r.up.auth = "Bearer upstream-secret"
	r.docs.change(func(d *server.Document) { d.Auth.Type, d.Auth.Token = "bearer", "upstream-secret" })
	id := r.open()
	r.do("DELETE", id, "")
	r.clean()
}

func TestALossThatAClientIsToldOfIsCounted(t *testing.T) {
	for name, tc := range map[string]struct {
		lose func(r *rig)
	}{
		"found by the call": {func(r *rig) { r.engine.revoke(lease.ReasonIdle) }},
		"told by the handler before": {func(r *rig) {
			if err := r.proxy.OnRevoked(t.Context(), r.engine.revoke(lease.ReasonIdle)); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.open()
			tc.lose(r)
			for n := 1; n <= 2; n++ {
				r.do("POST", id, call(n, "x")).want(t, 404, 410, "LEASE_LOST")
				if got := r.engine.saw.Count("check lost"); got != n {
					t.Errorf("%d answers, %d counted", n, got)
				}
			}
		})
	}
}

func TestRevocation(t *testing.T) {
	t.Run("of a session here ends its streams and its upstream session", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		s := r.begin("GET", id, "")
		c := r.begin("POST", id, call(7, "stream"))
		<-r.up.entered
		h := r.engine.revoke(lease.ReasonRevoke)
		if err := r.proxy.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if rest, err := s.rest(); err != nil || rest != "" {
			t.Errorf("GET: %q, %v", rest, err)
		}
		if rest, err := c.rest(); err != nil || !strings.Contains(rest, `"reason":"revoke"`) {
			t.Errorf("POST: %q, %v", rest, err)
		}
		r.clean()
		if err := r.proxy.OnRevoked(t.Context(), h); err != nil {
			t.Errorf("again: %v", err)
		}
	})
	t.Run("of another pod's session sends the DELETE with the configured auth", func(t *testing.T) {
		r := newRig(t)
		r.up.auth = "Bearer upstream-secret"
		r.docs.change(func(d *server.Document) { d.Auth.Type, d.Auth.Token = "bearer", "upstream-secret" })
		r.open()
		h := r.engine.revoke(lease.ReasonPod)
		b := newProxy(r.opt, r.engine)
		defer func() { _ = b.Drain(t.Context(), true) }()
		if err := b.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		r.clean()
	})
	t.Run("is tried again until it is confirmed", func(t *testing.T) {
		r := newRig(t)
		r.open()
		h := r.engine.revoke(lease.ReasonIdle)
		r.up.onDelete = 503
		if err := r.proxy.OnRevoked(t.Context(), h); err == nil || strings.Contains(err.Error(), "upstream-1") {
			t.Fatalf("%v", err)
		}
		r.up.onDelete = 0
		if err := r.proxy.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		r.clean()
	})
	t.Run("sends no DELETE where the document leads elsewhere", func(t *testing.T) {
		r := newRig(t)
		r.open()
		h := r.engine.revoke(lease.ReasonPod)
		other := newTestUpstream(t)
		defer other.close()
		r.docs.change(func(d *server.Document) {
			u := *d.URL
			u.Host = strings.TrimPrefix(other.URL, "http://")
			d.URL = &u
		})
		if err := r.proxy.OnRevoked(t.Context(), h); err != nil || len(other.seen) != 0 || len(r.up.deletes) != 0 {
			t.Errorf("%v, %d requests", err, len(other.seen))
		}
	})
	t.Run("of a lease from before a reopen closes nothing of the new one", func(t *testing.T) {
		r := newRig(t)
		r.caller.Store(reopener())
		id := r.open()
		old := r.engine.revoke(lease.ReasonIdle)
		r.do("POST", id, call(1, "x")).told(t, "idle")
		if a := r.do("POST", id, call(2, "x")); a.status != 200 || !strings.Contains(a.body, "result") {
			t.Fatalf("%+v", a)
		}
		if err := r.proxy.OnRevoked(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		if a := r.do("POST", id, call(3, "x")); !strings.Contains(a.body, "result") || r.up.live() != 1 {
			t.Errorf("%+v", a)
		}
	})
}

func reopener() *principal.Caller {
	return &principal.Caller{Principal: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:brain"}}
}

func TestReopen(t *testing.T) {
	r := newRig(t)
	r.caller.Store(reopener())
	id := r.open()
	r.engine.revoke(lease.ReasonIdle)
	a := r.do("POST", id, call(1, "x"))
	a.told(t, "idle")
	a = r.do("POST", id, call(2, "x"))
	if a.status != 200 || !strings.Contains(a.body, "result") || r.engine.held() != 1 || r.up.live() != 1 {
		t.Fatalf("%+v, %d leases, %d upstream", a, r.engine.held(), r.up.live())
	}
	var sawInit, sawInitialized int
	for _, b := range r.up.bodies {
		if b == initBody {
			sawInit++
		}
		if strings.Contains(b, "notifications/initialized") {
			sawInitialized++
		}
	}
	if sawInit != 2 || sawInitialized != 1 {
		t.Errorf("%d initialize, %d initialized", sawInit, sawInitialized)
	}

	t.Run("is found by another pod through the session's number", func(t *testing.T) {
		b := newProxy(r.opt, r.engine)
		defer func() { _ = b.Drain(t.Context(), true) }()
		mine := r.proxy
		r.proxy = b
		defer func() { r.proxy = mine }()
		if a := r.do("POST", id, call(3, "x")); !strings.Contains(a.body, "result") || r.up.live() != 1 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("is refused with LEASE_BUSY where there is no slot, and stays possible", func(t *testing.T) {
		r.engine.revoke(lease.ReasonRevoke)
		r.do("POST", id, call(4, "x")).told(t, "revoke")
		r.setCap(1)
		release := r.fill()
		if e := r.do("POST", id, call(5, "x")).result(t); e.code() != "LEASE_BUSY" || !strings.Contains(e.text(), "user limit") {
			t.Errorf("%+v", e)
		}
		release()
		if a := r.do("POST", id, call(6, "x")); !strings.Contains(a.body, "result") {
			t.Errorf("%+v", a)
		}
	})
	t.Run("also after the upstream has forgotten the session", func(t *testing.T) {
		r.up.mu.Lock()
		r.up.sessions = map[string]bool{}
		r.up.mu.Unlock()
		r.do("POST", id, call(7, "x")).told(t, "crashed")
		if a := r.do("POST", id, call(8, "x")); !strings.Contains(a.body, "result") || r.engine.held() != 1 {
			t.Errorf("%+v", a)
		}
	})
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Errorf("%+v", a)
	}
	r.clean()
}

func TestReplaceOwn(t *testing.T) {
	edit := func(r *rig) { r.docs.doc.OnBusy, r.engine.cap = "replaceOwn", 1 }
	t.Run("ends the caller's own ghost", func(t *testing.T) {
		r := newRig(t, edit)
		ghost := r.open()
		id := r.open()
		if r.engine.held() != 1 || r.up.live() != 1 {
			t.Fatalf("%d leases, %d upstream", r.engine.held(), r.up.live())
		}
		r.do("POST", ghost, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
		if a := r.do("POST", id, call(1, "x")); a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("spares a session with a call in flight", func(t *testing.T) {
		r := newRig(t, edit)
		id := r.open()
		done := make(chan answer, 1)
		go func() { done <- r.do("POST", id, call(7, "slow")) }()
		<-r.up.entered
		r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LEASE_BUSY")
		close(r.up.release)
		if a := <-done; a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("spares another principal's session", func(t *testing.T) {
		r := newRig(t, edit)
		r.open()
		r.caller.Store(reopener())
		r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LEASE_BUSY")
	})
	t.Run("finds a ghost of another pod", func(t *testing.T) {
		r := newRig(t, edit)
		r.engine.clock(-time.Hour) // which is the lease's TTL
		r.open()
		b := newProxy(r.opt, r.engine)
		defer func() { _ = b.Drain(t.Context(), true) }()
		mine := r.proxy
		r.proxy = b
		r.open()
		if r.engine.held() != 1 || r.up.live() != 1 {
			t.Errorf("%d leases, %d upstream", r.engine.held(), r.up.live())
		}
		r.proxy = mine
	})
}

func TestAnyPodServesASession(t *testing.T) {
	r := newRig(t)
	id := r.open()
	b := newProxy(r.opt, r.engine)
	defer func() { _ = b.Drain(t.Context(), true) }()
	mine := r.proxy
	defer func() { r.proxy = mine }()
	r.proxy = b
	if a := r.do("POST", id, call(1, "x")); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Fatalf("%+v", a)
	}
	r.clean()
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	r.proxy = mine
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
}

func TestALongUpstreamIDGoesIntoThePayload(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("u", 3<<10)
	r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Mcp-Session-Id", long)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
	}
	r.up.sessions[long] = true
	id := r.open()
	if len(id) > 1<<10 {
		t.Errorf("the id has %d bytes", len(id))
	}
	b := newProxy(r.opt, r.engine)
	defer func() { _ = b.Drain(t.Context(), true) }()
	mine := r.proxy
	r.proxy = b
	if a := r.do("POST", id, call(1, "x")); a.status != 200 {
		t.Errorf("%+v", a)
	}
	r.proxy = mine
}

func TestForwardedCredentials(t *testing.T) {
	r := newRig(t)
	r.up.auth = "Bearer one"
	r.docs.change(func(d *server.Document) { d.Auth.Type = "forward" })
	caller := *r.caller.Load()
	caller.Authorization = "Bearer one"
	r.caller.Store(&caller)
	id := r.open()
	h := only(r)
	if h.Payload["forward"] == "" || strings.Contains(h.Payload["forward"], "Bearer") {
		t.Fatalf("kept credential: %q", h.Payload["forward"])
	}
	r.up.mu.Lock()
	r.up.auth = "Bearer two"
	r.up.mu.Unlock()
	second := caller
	second.Authorization = "Bearer two"
	r.caller.Store(&second)
	if a := r.do("POST", id, call(1, "x")); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	b := newProxy(r.opt, r.engine)
	defer func() { _ = b.Drain(t.Context(), true) }()
	if err := b.OnRevoked(t.Context(), r.engine.revoke(lease.ReasonPod)); err != nil {
		t.Fatal(err)
	}
	r.clean()
}

func only(r *rig) lease.Holder {
	for _, h := range r.engine.holders() {
		return h
	}
	return lease.Holder{}
}

func TestSessionsWithoutALease(t *testing.T) {
	bare := func(r *rig) { r.docs.doc.Lease = "" }
	t.Run("need no store", func(t *testing.T) {
		r := newRig(t, bare)
		r.engine.down(true)
		id := r.open()
		if a := r.do("POST", id, call(1, "x")); a.status != 200 {
			t.Errorf("%+v", a)
		}
		if a := r.do("DELETE", id, ""); a.status != 204 {
			t.Errorf("%+v", a)
		}
		r.do("POST", id, call(1, "x")).want(t, 404, 404, "SESSION_UNKNOWN")
		r.clean()
		r.engine.down(false)
	})
	t.Run("are unknown once their upstream has forgotten them", func(t *testing.T) {
		r := newRig(t, bare)
		id := r.open()
		r.up.mu.Lock()
		r.up.sessions = map[string]bool{}
		r.up.mu.Unlock()
		r.do("POST", id, call(1, "x")).want(t, 404, 404, "SESSION_UNKNOWN")
	})
	t.Run("end after session.idle", func(t *testing.T) {
		r := newRig(t, bare, func(r *rig) { r.opt.Session.Idle = time.Nanosecond })
		id := r.open()
		r.proxy.janitor.tidy()
		r.clean()
		r.do("POST", id, call(1, "x")).want(t, 404, 404, "SESSION_UNKNOWN")
	})
}

func TestDrain(t *testing.T) {
	t.Run("waits for calls, refuses new sessions, closes and gives back", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		s := r.begin("GET", id, "")
		done := make(chan answer, 1)
		go func() { done <- r.do("POST", id, call(7, "slow")) }()
		<-r.up.entered
		drained := make(chan error, 1)
		go func() { drained <- r.proxy.Drain(t.Context(), false) }()
		for !r.proxy.draining.Load() {
			r.engine.until(t, "", func() bool { return true })
		}
		r.do("POST", "", initBody).want(t, 200, 503, "GATEWAY_STOPPING")
		select {
		case <-drained:
			t.Fatal("did not wait for the call")
		default:
		}
		close(r.up.release)
		if a := <-done; a.status != 200 {
			t.Errorf("%+v", a)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if rest, err := s.rest(); err != nil || rest != "" {
			t.Errorf("%q, %v", rest, err)
		}
		r.clean()
		if r.counts.open.Load() != 0 {
			t.Error("sessions are still counted")
		}
	})
	t.Run("with handover leaves HTTP sessions to other pods", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		if err := r.proxy.Drain(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		b := newProxy(r.opt, r.engine)
		r.proxy = b
		if a := r.do("POST", id, call(1, "x")); a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("cuts calls that outlast it", func(t *testing.T) {
		r := newRig(t)
		id := r.open()
		done := make(chan answer, 1)
		go func() { done <- r.do("POST", id, call(7, "slow")) }()
		<-r.up.entered
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.proxy.Drain(ctx, false); err == nil {
			t.Error("no error")
		}
		(<-done).want(t, 200, 503, "GATEWAY_STOPPING")
		r.clean()
	})
}

func TestModernClients(t *testing.T) {
	discover := `{"jsonrpc":"2.0","id":5,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	modernCall := `{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"echo","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	t.Run("are fenced where the lease has caps", func(t *testing.T) {
		r := newRig(t)
		for _, body := range []string{modernCall, call(7, "x"), initBody} {
			e := r.do("POST", "", body, "MCP-Protocol-Version", "2026-07-28").want(t, 400, -32022, "")
			got, _ := json.Marshal(e.Error.Data)
			if string(got) != `{"requested":"2026-07-28","supported":["2025-11-25","2025-06-18","2025-03-26"]}` {
				t.Errorf("%s", got)
			}
		}
		r.do("POST", "", discover).want(t, 404, -32601, "")
		r.do("POST", "", discover, "MCP-Protocol-Version", "2026-07-28").want(t, 404, -32601, "")
		if len(r.up.seen) != 0 || len(r.engine.waits) != 0 {
			t.Error("the fence let something through")
		}
	})
	t.Run("pass through unchanged where there are none", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.docs.doc.Lease = "" })
		r.up.stateless = true
		a := r.do("POST", "leftover", modernCall, "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "echo", "Last-Event-ID", "3")
		if a.status != 200 || a.header.Get("Mcp-Session-Id") != "" {
			t.Fatalf("%+v", a)
		}
		h := r.up.seen[0].Header
		if r.up.bodies[0] != modernCall || h.Get("Mcp-Method") != "tools/call" || h.Get("Mcp-Name") != "echo" || h.Get("Mcp-Session-Id") != "" || h.Get("Last-Event-ID") != "" {
			t.Errorf("%v", h)
		}
		for _, verb := range []string{"GET", "DELETE"} {
			r.do(verb, "", "", "MCP-Protocol-Version", "2026-07-28").want(t, 405, 405, "")
		}
	})
	t.Run("open a session by initialize like everybody else", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.docs.doc.Lease = "" })
		r.do("POST", "", initBody, "MCP-Protocol-Version", "2026-07-28").want(t, 404, -32601, "")
		if r.up.live() != 0 {
			t.Error("a session was opened that the gateway does not know of")
		}
		named := strings.Replace(initBody, `"capabilities":{}`, `"capabilities":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-06-18"}`, 1)
		a := r.do("POST", "", named)
		if a.status != 200 || a.header.Get("Mcp-Session-Id") == "" {
			t.Fatalf("%+v", a)
		}
		if a = r.do("DELETE", a.header.Get("Mcp-Session-Id"), ""); a.status != 204 || r.up.live() != 0 {
			t.Errorf("%+v, %d sessions are left", a, r.up.live())
		}
	})
	t.Run("cancel by closing the stream", func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.docs.doc.Lease = "" })
		r.up.stateless = true
		left := make(chan struct{})
		r.up.onCall = func(w http.ResponseWriter, req *http.Request, _ string, _ []byte) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			close(left)
			return true
		}
		r.begin("POST", "", modernCall, "MCP-Protocol-Version", "2026-07-28").close()
		<-left
	})
}
