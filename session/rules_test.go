package session

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

func TestOpenWaitBoundsTheWaitForASlot(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opt.Session.OpenWait, r.engine.cap = 3*time.Second, 1 })
	r.open()
	r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LEASE_BUSY")
	if !slices.Equal(r.engine.waits, []time.Duration{3 * time.Second, 3 * time.Second}) {
		t.Errorf("waits %v", r.engine.waits)
	}
	r.docs.change(func(d *server.Document) { d.OnBusy = "replaceOwn" })
	r.open()
	if !slices.Equal(r.engine.waits[2:], []time.Duration{lease.NoWait, 3 * time.Second}) {
		t.Errorf("waits %v before the own session is replaced and after", r.engine.waits[2:])
	}
	r = newRig(t, func(r *rig) { r.opt.Session.OpenWait = 0 })
	r.open()
	if !slices.Equal(r.engine.waits, []time.Duration{lease.NoWait}) {
		t.Errorf("waits %v where openWait is 0", r.engine.waits)
	}
}

func TestALeaseWithoutAGoodDefinitionOpensNothing(t *testing.T) {
	for _, c := range []struct {
		name      string
		err       error
		says      string
		permanent bool
	}{
		{"defined nowhere", &definition.Error{Lease: "browser", Unknown: true}, "browser", true},
		{"broken", &definition.Error{Lease: "browser", Layer: document.Project, Field: "levels.user", What: "secret-text"}, "levels.user", true},
		{"out of reach", &definition.Error{Lease: "browser", Layer: document.Tenant, Transient: true, What: "secret-text"}, "browser", false},
		{"of another kind", errors.New("secret-text"), "browser", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.docs.defEr = c.err })
			a := r.do("POST", "", initBody)
			e := a.want(t, 200, 503, "LEASE_UNAVAILABLE")
			if permanent, _ := e.Error.Data["permanent"].(bool); permanent != c.permanent || !strings.Contains(e.Error.Message, c.says) || strings.Contains(a.body, "secret-text") {
				t.Errorf("%s", a.body)
			}
			if a.header.Get("Mcp-Session-Id") != "" || len(r.up.seen) != 0 {
				t.Error("something was opened")
			}
			r.do("POST", "", call(1, "x"), "MCP-Protocol-Version", "2026-07-28").want(t, 400, -32022, "")
			if len(r.up.seen) != 0 {
				t.Error("a client without sessions passed")
			}
		})
	}
}

func TestAnInitializeWithASessionIDOpensANewSession(t *testing.T) {
	r := newRig(t)
	first := r.open()
	a := r.do("POST", first, initBody)
	second := a.header.Get("Mcp-Session-Id")
	if a.status != 200 || second == "" || second == first || r.engine.held() != 2 || r.up.live() != 2 {
		t.Fatalf("%+v, %d leases, %d upstream", a, r.engine.held(), r.up.live())
	}
	if got := r.up.seen[1].Header.Get("Mcp-Session-Id"); got != "" {
		t.Errorf("the upstream saw the session %q", got)
	}
	for _, id := range []string{first, second} {
		if a := r.do("POST", id, call(1, "x")); a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
}

func TestALeaseThatIsLostWhileItsSessionOpens(t *testing.T) {
	r := newRig(t)
	r.up.sessions["upstream-x"] = true
	r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
		r.engine.revoke(lease.ReasonIdle)
		w.Header().Set("Mcp-Session-Id", "upstream-x")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
	}
	a := r.do("POST", "", initBody)
	e := a.want(t, 200, 410, "LEASE_LOST")
	if e.Error.Data["reason"] != "idle" || !strings.Contains(e.Error.Message, "try again") || a.header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%+v", a)
	}
	r.clean()
}

func TestALossThatACallFindsEndsTheStreams(t *testing.T) {
	r := newRig(t) // the streams look for themselves every 20 minutes
	id := r.open()
	listening, other := r.begin("GET", id, ""), r.begin("POST", id, call(7, "stream"))
	<-r.up.entered
	r.engine.revoke(lease.ReasonIdle)
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	if rest, err := listening.rest(); err != nil || rest != "" {
		t.Errorf("GET: %q, %v", rest, err)
	}
	if rest, err := other.rest(); err != nil || !strings.Contains(rest, `"id":7,"error":{"code":410`) {
		t.Errorf("POST: %q, %v", rest, err)
	}
	r.clean()
}

func TestReplaceOwnTakesTheOldestOfTheSameServer(t *testing.T) {
	r := newRig(t, func(r *rig) { r.docs.doc.OnBusy, r.engine.cap = "replaceOwn", 4 })
	r.engine.clock(-time.Hour)
	elsewhere := r.open()
	other := only(r)
	other.Payload[payServer] = "another"
	if ok, err := r.engine.mem.SetPayload(t.Context(), other.Token, other.Payload); err != nil || !ok {
		t.Fatal(ok, err)
	}
	var ids []string
	for _, age := range []time.Duration{time.Minute, 3 * time.Minute, 2 * time.Minute} {
		r.engine.clock(-age)
		ids = append(ids, r.open())
	}
	r.engine.clock(0)
	r.open()
	for i, id := range append(ids, elsewhere) {
		if a := r.do("POST", id, call(1, "x")); (a.status == 200) != (i != 1) {
			t.Errorf("session %d: %+v", i, a)
		}
	}
}

func TestASessionBelongsToItsWholePrincipal(t *testing.T) {
	r := newRig(t)
	id := r.open()
	mine := r.caller.Load()
	for says, change := range map[string]func(*principal.Caller){
		"another user's":               func(c *principal.Caller) { c.User = "u43" },
		"nobody's":                     func(c *principal.Caller) { c.User = "" },
		"another project's":            func(c *principal.Caller) { c.Project = "paper" },
		"another tenant's":             func(c *principal.Caller) { c.Tenant = "umbrella" },
		"vouched for by somebody else": func(c *principal.Caller) { c.Issuer = "jwt:https://id.example" },
	} {
		t.Run(says, func(t *testing.T) {
			c := *mine
			change(&c)
			r.caller.Store(&c)
			defer r.caller.Store(mine)
			for _, verb := range []string{"POST", "GET", "DELETE"} {
				body := ""
				if verb == "POST" {
					body = call(1, "x")
				}
				r.do(verb, id, body).want(t, 404, 404, "SESSION_UNKNOWN")
			}
		})
	}
	if a := r.do("POST", id, call(1, "x")); a.status != 200 || len(r.up.seen) != 2 {
		t.Errorf("%+v; the upstream saw %d requests", a, len(r.up.seen))
	}
}

func TestAClientThatStaysIsToldBeforeItsSessionIsReopened(t *testing.T) {
	r := newRig(t)
	r.caller.Store(reopener())
	id := r.open()
	if err := r.proxy.OnRevoked(t.Context(), r.engine.revoke(lease.ReasonRevoke)); err != nil {
		t.Fatal(err)
	}
	r.do("POST", id, call(1, "x")).told(t, "revoke")
	if a := r.do("POST", id, call(2, "x")); a.status != 200 || !strings.Contains(a.body, "result") {
		t.Errorf("%+v", a)
	}
}

func TestAnUpstreamSessionEndsBeforeItsSlotIsFree(t *testing.T) {
	r := newRig(t)
	held := make(chan int, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == "DELETE" {
			held <- r.engine.held()
		}
		r.up.ServeHTTP(w, req)
	}))
	defer front.Close()
	r.docs.change(func(d *server.Document) { d.URL, _ = url.Parse(front.URL + "/mcp") })
	id := r.open()
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Fatalf("%+v", a)
	}
	if n := <-held; n != 1 {
		t.Errorf("%d leases were held while the upstream session was ended", n)
	}
	r.clean()
}

func TestASilentCallWithoutItsClientEnds(t *testing.T) {
	r := newRig(t, func(r *rig) { r.docs.doc.Timeout = 300 * time.Millisecond })
	id := r.open()
	left := make(chan struct{})
	r.up.onCall = func(w http.ResponseWriter, req *http.Request, _ string, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": here\n\n")
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		close(left)
		return true
	}
	r.begin("POST", id, call(7, "x")).close()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Fatal("the upstream is still waited for")
	}
	<-r.proxy.traffic.wait()
	if r.engine.held() != 1 {
		t.Error("the lease went with the call")
	}
}

func TestASessionWithoutACallIsNotTouched(t *testing.T) {
	r := newRig(t, func(r *rig) { r.engine.ttl = 30 * time.Millisecond })
	id := r.open()
	s := r.begin("GET", id, "")
	defer s.close()
	r.do("POST", id, call(1, "x"))
	<-r.proxy.traffic.wait()
	checks, peeks := r.engine.checks(), r.engine.peeks()
	r.engine.until(t, "looks of the stream", func() bool { return r.engine.peeks() >= peeks+5 })
	// One look of the call may have been under way at its end; a session that was
	// touched would have been so as often as its stream has looked.
	if n := r.engine.checks() - checks; n > 1 {
		t.Errorf("%d touches without a call", n)
	}
}

func TestTheMethodMayStandBehind20MiB(t *testing.T) {
	r := newRig(t)
	r.limits.Store(&config.Limits{RequestBody: 32 << 20, PerPod: 100, PerPrincipal: 10})
	id := r.open()
	body := `{"params":{"arguments":{"text":"` + strings.Repeat("x", 20<<20) + `"},"name":"echo"},"jsonrpc":"2.0","id":7,"method":"tools/call"}`
	if a := r.do("POST", id, body); a.status != 200 || a.body != `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}` {
		t.Fatalf("%+v", a)
	}
	if r.engine.checks() != 1 || r.up.bodies[len(r.up.bodies)-1] != body {
		t.Errorf("%d checks; the body arrived whole: %v", r.engine.checks(), r.up.bodies[len(r.up.bodies)-1] == body)
	}
}

func TestHeadersOfAnUpstreamThatStayHere(t *testing.T) {
	r := newRig(t)
	id := r.open()
	const answer = `{"jsonrpc":"2.0","id":7,"result":{}}`
	private := []string{"WWW-Authenticate", "Set-Cookie", "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers", "Mcp-Session-Id", "X-Hop", "Keep-Alive"}
	for _, contentType := range []string{"application/json", "text/event-stream"} {
		r.up.mu.Lock()
		r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
			for _, k := range private {
				w.Header().Set(k, "x")
			}
			w.Header().Set("Connection", "X-Hop")
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("X-Trace", "keep")
			if contentType == "application/json" {
				_, _ = io.WriteString(w, answer)
			} else {
				_, _ = io.WriteString(w, "data: "+answer+"\n\n")
			}
			return true
		}
		r.up.mu.Unlock()
		a := r.do("POST", id, call(7, "x"))
		if a.status != 200 || !strings.Contains(a.body, answer) || a.header.Get("X-Trace") != "keep" {
			t.Fatalf("%+v", a)
		}
		for _, k := range private {
			if v := a.header.Get(k); v != "" {
				t.Errorf("%s: the client saw %s: %s", contentType, k, v)
			}
		}
	}
}

func TestAChildsCallEndsWithItsLease(t *testing.T) {
	r := stdioRig(t, "plain", func(r *rig) { r.engine.ttl = 90 * time.Millisecond })
	id := r.open()
	done := make(chan answer, 1)
	go func() { done <- r.do("POST", id, call(7, "never")) }()
	before := 0
	r.engine.until(t, "the call's lease is checked", func() bool {
		if before == 0 {
			before = r.engine.checks()
		}
		return r.engine.checks() >= before+2
	})
	r.engine.revoke(lease.ReasonRevoke)
	e := (<-done).want(t, 404, 410, "LEASE_LOST")
	if e.Error.Data["reason"] != "revoke" || string(e.ID) != "7" {
		t.Errorf("%+v", e)
	}
	r.childless()
}

func TestAFenceStandsWithoutALeaseToo(t *testing.T) {
	r := newRig(t, func(r *rig) { r.docs.doc.Lease, r.docs.doc.Modern = "", "fence" })
	r.do("POST", "", call(1, "x"), "MCP-Protocol-Version", "2026-07-28").want(t, 400, -32022, "")
	if len(r.up.seen) != 0 {
		t.Error("the fence let something through")
	}
}

func TestTheRevisionsWithSessions(t *testing.T) {
	for _, v := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		r := newRig(t)
		r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
			r.up.mu.Lock()
			r.up.sessions["upstream-x"] = true
			r.up.mu.Unlock()
			w.Header().Set("Mcp-Session-Id", "upstream-x")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"`+v+`"}}`)
		}
		id := r.open()
		for _, header := range [][]string{{"MCP-Protocol-Version", v}, nil} {
			if a := r.do("POST", id, call(1, "x"), header...); a.status != 200 {
				t.Errorf("%s: %+v", v, a)
			}
			want := v
			if len(header) == 0 && v == "2025-03-26" {
				want = "" // its clients send none
			}
			if got := r.up.seen[len(r.up.seen)-1].Header.Get("Mcp-Protocol-Version"); got != want {
				t.Errorf("%s, header %v: the upstream saw %q", v, header, got)
			}
		}
		r.do("DELETE", id, "")
		r.clean()
	}
}

func TestNoLogShowsAWholeIDOrACredential(t *testing.T) {
	log := &output.Buffer{}
	r := newRig(t, func(r *rig) {
		r.opt.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		r.engine.cap = 4
	})
	r.up.auth = "Bearer upstream-secret"
	r.docs.change(func(d *server.Document) { d.Auth.Type, d.Auth.Token = "bearer", "upstream-secret" })
	caller := *r.caller.Load()
	caller.Authorization = "Bearer callers-secret"
	r.caller.Store(&caller)
	first, second, third, fourth := r.open(), r.open(), r.open(), r.open()
	r.up.mu.Lock()
	r.up.onDelete = 503
	r.up.mu.Unlock()
	r.do("DELETE", first, "") // not confirmed
	r.engine.down(true)
	r.do("POST", second, call(1, "x")) // not checked
	r.do("POST", "", initBody)
	r.engine.down(false)
	if err := r.proxy.OnRevoked(t.Context(), r.engine.revoke(lease.ReasonRevoke)); err == nil {
		t.Error("the fourth session's end is confirmed")
	}
	r.engine.revoke(lease.ReasonIdle)
	r.do("POST", third, call(1, "x"))
	r.up.mu.Lock()
	r.up.onDelete, r.up.auth, r.up.sessions = 0, "", map[string]bool{}
	r.up.mu.Unlock()
	r.do("POST", second, call(1, "x")) // forgotten
	r.up.close()
	r.do("POST", "", initBody)
	got := log.String()
	if strings.Count(got, "\n") < 5 {
		t.Fatalf("too little was logged for this to prove anything:\n%s", got)
	}
	for _, secret := range []string{first, second, third, fourth, "upstream-secret", "callers-secret"} {
		if strings.Contains(got, secret) {
			t.Errorf("the log shows %q:\n%s", secret, got)
		}
	}
	if id := regexp.MustCompile(`upstream-\d`).FindString(got); id != "" {
		t.Errorf("the log shows %s:\n%s", id, got)
	}
}
