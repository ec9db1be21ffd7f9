package session

import (
	"context"
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

// staying is a rig whose caller has the defaults: it stays on its session's id.
func staying(edit ...func(*rig)) func(*rig) {
	return func(r *rig) {
		r.caller.Store(&principal.Caller{Principal: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "anonymous"}})
		r.engine.handles, r.docs.doc.OnBusy = true, ""
		for _, e := range edit {
			e(r)
		}
	}
}

// restart puts another process in the place of the rig's, on the same store.
func (r *rig) restart() {
	r.t.Helper()
	opt := r.opt
	opt.Pod = lease.PodID(string(r.opt.Pod) + "'")
	m, err := lease.New(lease.Options{Store: r.engine.store, Pod: lease.Pod{ID: opt.Pod, Endpoint: "x:1"}, ReapInterval: 1000 * time.Hour, Definitions: fakeDefs{r.docs}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.engine = &engine{Manager: m, t: r.t, mem: r.engine.mem, store: r.engine.store}
	r.opt, r.proxy = opt, newProxy(opt, r.engine)
	m.Register(HandlerType, r.proxy)
	if err := m.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		r.stop()
		_ = m.Stop(context.Background(), false)
	})
}

// A client that only knows its session id: whatever has ended the session, one
// call is told so in words that are true, and the next one goes on.
func TestALossIsToldOnceAndTheNextCallGoesOn(t *testing.T) {
	ends := []struct {
		reason, says string
		end          func(r *rig, id string)
	}{
		{"idle", "not used for longer than its TTL", func(r *rig, _ string) { r.engine.revoke(lease.ReasonIdle) }},
		{"pod", "gateway process that held the lease has ended", func(r *rig, _ string) { r.engine.revoke(lease.ReasonPod) }},
		{"revoke", "an operator took the lease away", func(r *rig, _ string) {
			if _, err := r.engine.Revoke(context.Background(), only(r).Token, lease.Cause{Reason: lease.ReasonRevoke, By: "ops"}); err != nil {
				r.t.Fatal(err)
			}
		}},
		{"replaced", "a newer session of the same user", func(r *rig, _ string) {
			a := r.do("POST", "", initBody)
			if a.status != 200 || a.header.Get("Mcp-Session-Id") == "" {
				r.t.Fatalf("%+v", a)
			}
			r.do("DELETE", a.header.Get("Mcp-Session-Id"), "")
		}},
		{"crashed", "the server has ended the session by itself", func(r *rig, id string) {
			if r.docs.doc.Transport != "stdio" {
				r.up.mu.Lock()
				defer r.up.mu.Unlock()
				r.up.sessions = map[string]bool{}
				return
			}
			b := r.proxy.table.list()[0].hold.Load().child.bridge
			_ = b.Close(context.Background())
		}},
		{"shutdown", "the gateway was stopped", func(r *rig, _ string) {
			if err := r.proxy.Drain(context.Background(), false); err != nil {
				r.t.Fatal(err)
			}
			r.restart()
		}},
	}
	for _, transport := range []string{"http", "stdio"} {
		rigFor := func(t *testing.T) *rig {
			capOne := staying(func(r *rig) { r.engine.cap = 1 })
			if transport == "stdio" {
				return stdioRig(t, "plain", capOne)
			}
			return newRig(t, capOne)
		}
		for _, e := range ends {
			t.Run(e.reason+" over "+transport, func(t *testing.T) {
				r := rigFor(t)
				id := r.open()
				e.end(r, id)
				told := r.do("POST", id, call(1, "x")).told(t, e.reason)
				if !strings.Contains(told.text(), e.says) || !strings.Contains(told.text(), "The next call opens a new one") {
					t.Errorf("%q", told.text())
				}
				if a := r.do("POST", id, call(2, "x")); a.status != 200 || !strings.Contains(a.body, `"result"`) || strings.Contains(a.body, "isError") {
					t.Fatalf("the next call: %+v", a)
				}
				if r.engine.held() != 1 {
					t.Errorf("%d leases", r.engine.held())
				}
				if a := r.do("DELETE", id, ""); a.status != 204 {
					t.Errorf("%+v", a)
				}
				r.engine.until(t, "the slot is back", func() bool { return r.engine.held() == 0 })
			})
		}
	}
}

func TestOtherMethodsOpenALostSessionWithoutAWord(t *testing.T) {
	lostRig := func(t *testing.T) (*rig, string) {
		r := newRig(t, staying())
		id := r.open()
		r.engine.revoke(lease.ReasonIdle)
		return r, id
	}
	t.Run("and the next tools/call is told that a new one is open", func(t *testing.T) {
		r, id := lostRig(t)
		if a := r.do("POST", id, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); a.status != 200 || !strings.Contains(a.body, "result") || r.up.live() != 1 {
			t.Fatalf("%+v", a)
		}
		if told := r.do("POST", id, call(2, "x")).told(t, "idle"); !strings.Contains(told.text(), "a new one is open") {
			t.Errorf("%q", told.text())
		}
		if a := r.do("POST", id, call(3, "x")); strings.Contains(a.body, "isError") {
			t.Errorf("told twice: %+v", a)
		}
	})
	t.Run("GET is 405", func(t *testing.T) {
		r, id := lostRig(t)
		if a := r.do("GET", id, ""); a.status != 405 || a.header.Get("Allow") == "" {
			t.Errorf("%+v", a)
		}
		r.do("POST", id, call(1, "x")).told(t, "idle")
		if a := r.do("GET", id, ""); a.status != 405 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("a notification is accepted and opens nothing", func(t *testing.T) {
		r, id := lostRig(t)
		if a := r.do("POST", id, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`); a.status != 202 || r.engine.held() != 0 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("DELETE ends it", func(t *testing.T) {
		r, id := lostRig(t)
		if a := r.do("DELETE", id, ""); a.status != 204 {
			t.Errorf("%+v", a)
		}
		r.do("POST", id, call(1, "x")).want(t, 404, 404, "SESSION_UNKNOWN")
	})
	t.Run("in a begun stream the call is told as a tool's result", func(t *testing.T) {
		r := newRig(t, staying(func(r *rig) { r.engine.ttl = 90 * time.Millisecond }))
		id := r.open()
		s := r.begin("POST", id, call(7, "stream"))
		<-r.up.entered
		r.engine.revoke(lease.ReasonRevoke)
		rest, err := s.rest()
		if err != nil || !strings.Contains(rest, `"isError":true`) || !strings.Contains(rest, "The next call opens a new one") {
			t.Errorf("%q, %v", rest, err)
		}
		if a := r.do("POST", id, call(7, "x")); a.status != 200 || strings.Contains(a.body, "isError") {
			t.Errorf("%+v", a)
		}
	})
}

func TestWhatItsClientHasEndedIsNotOpenedAgain(t *testing.T) {
	r := newRig(t, staying())
	id := r.open()
	b := newProxy(r.opt, r.engine)
	defer func() { _ = b.Drain(t.Context(), true) }()
	mine := r.proxy
	r.proxy = b
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Fatalf("%+v", a)
	}
	r.proxy = mine
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	r.clean()
}

// Two living clients of one user would take the slot from each other for ever.
func TestAReopenReplacesNobody(t *testing.T) {
	r := newRig(t, staying(func(r *rig) { r.engine.cap = 1 }))
	first := r.open()
	second := r.open() // which replaces the first
	r.do("POST", first, call(1, "x")).told(t, "replaced")
	for range 2 {
		if e := r.do("POST", first, call(2, "x")).result(t); e.code() != "LEASE_BUSY" || !strings.Contains(e.text(), "the user limit of browser is reached") {
			t.Errorf("%+v", e)
		}
	}
	if a := r.do("POST", first, `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`); a.rpc(t).Error.Code != refusal.RPCBusy {
		t.Errorf("%+v", a)
	}
	if a := r.do("POST", second, call(3, "x")); a.status != 200 || strings.Contains(a.body, "isError") {
		t.Errorf("the living session: %+v", a)
	}
	r.do("DELETE", second, "")
	if a := r.do("POST", first, call(4, "x")); a.status != 200 || strings.Contains(a.body, "isError") {
		t.Errorf("with a free slot: %+v", a)
	}
}

func TestWhoMakesPlaceForANewSession(t *testing.T) {
	t.Run("by default only where a user has one slot", func(t *testing.T) {
		r := newRig(t, staying(func(r *rig) { r.engine.cap = 2 }))
		r.open()
		r.open()
		r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LEASE_BUSY")
	})
	t.Run("not where its document refuses", func(t *testing.T) {
		r := newRig(t, staying(func(r *rig) { r.engine.cap, r.docs.doc.OnBusy = 1, server.Refuse }))
		r.open()
		r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LEASE_BUSY")
	})
	t.Run("a session without a stream before the one that was not used for longest", func(t *testing.T) {
		r := newRig(t, staying(func(r *rig) { r.engine.cap, r.docs.doc.OnBusy = 3, server.ReplaceOwn }))
		var ids []string
		for _, age := range []time.Duration{3, 2, 1} {
			r.engine.clock(-age * time.Minute)
			ids = append(ids, r.open())
		}
		r.engine.clock(0)
		listens := r.begin("GET", ids[0], "")
		r.open()
		r.do("POST", ids[1], call(1, "x")).told(t, "replaced")
		if a := r.do("POST", ids[0], call(1, "x")); a.status != 200 || strings.Contains(a.body, "isError") {
			t.Errorf("%+v", a)
		}
		listens.close()
	})
	t.Run("and an open that succeeds counts no refusal", func(t *testing.T) {
		r := newRig(t, staying(func(r *rig) { r.engine.cap = 1 }))
		r.open()
		r.open()
		events, err := r.engine.Events(t.Context(), "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == "refused" {
				t.Errorf("%+v", e)
			}
		}
	})
	t.Run("the pod that serves a session says whether it is in use", func(t *testing.T) {
		r := newRig(t, staying(func(r *rig) { r.engine.cap = 1 }))
		id := r.open()
		done := make(chan answer, 1)
		go func() { done <- r.do("POST", id, call(7, "slow")) }()
		<-r.up.entered
		a := r.proxy
		opt := r.opt
		opt.Pod, opt.Forwarder = "pod-b", handOn{a}
		b := newProxy(opt, r.engine)
		defer func() { _ = b.Drain(t.Context(), true) }()
		r.engine.setPods(lease.Pod{ID: "pod-a", Endpoint: "x"})
		r.proxy = b
		r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LEASE_BUSY") // the call is in flight there
		close(r.up.release)
		<-done
		if got := r.do("POST", "", initBody); got.status != 200 || got.header.Get("Mcp-Session-Id") == "" {
			t.Errorf("%+v", got)
		}
		r.proxy = a
		r.do("POST", id, call(1, "x")).told(t, "replaced")
	})
}

// An initialize whose client has gone frees what it has taken before its time is
// over.
func TestAnInitializeThatIsGivenUp(t *testing.T) {
	t.Run("ends its program", func(t *testing.T) {
		r := stdioRig(t, "mute", staying())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan answer, 1)
		go func() { done <- r.doCtx(ctx, "POST", "", initBody) }()
		r.engine.until(t, "the slot is taken", func() bool { return r.engine.held() == 1 })
		cancel()
		<-done
		since := time.Now()
		r.engine.until(t, "the slot is back", func() bool { return r.engine.held() == 0 })
		if took := time.Since(since); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		r.childless()
	})
	t.Run("gives the slot back though the server is silent", func(t *testing.T) {
		r := newRig(t, staying())
		arrived, goOn := make(chan struct{}), make(chan struct{})
		r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
			close(arrived)
			<-goOn
			w.Header().Set("Mcp-Session-Id", "upstream-x")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
		}
		r.up.sessions["upstream-x"] = true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan answer, 1)
		go func() { done <- r.doCtx(ctx, "POST", "", initBody) }()
		<-arrived
		cancel()
		<-done
		r.engine.until(t, "the slot is back", func() bool { return r.engine.held() == 0 })
		close(goOn)
		if id := <-r.up.ended; id != "upstream-x" {
			t.Errorf("%s was ended", id)
		}
	})
}

func TestAStdioSessionIsOpenedAgainElsewhere(t *testing.T) {
	r := stdioRig(t, "plain", staying(func(r *rig) { r.engine.cap = 1 }))
	id := r.open()
	a := r.proxy
	opt := r.opt
	opt.Pod, opt.Forwarder = "pod-b", handOn{}
	b := newProxy(opt, r.engine)
	defer func() { _ = b.Drain(t.Context(), true) }()
	r.proxy = b // pod-a is gone, its lease not reaped yet
	r.do("POST", id, call(1, "x")).told(t, "pod")
	if got := r.do("POST", id, call(2, "x")); got.status != 200 || !strings.Contains(got.body, "echo") {
		t.Fatalf("%+v", got)
	}
	r.proxy = a
	r.do("DELETE", id, "")
}
