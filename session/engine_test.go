package session

import (
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
)

// pod is a rig whose proxy handles the revocations of an engine over a store that
// pods share.
func pod(t *testing.T, id lease.PodID, store lease.Store, edit ...func(*rig)) *rig {
	t.Helper()
	return newRig(t, append(edit, func(r *rig) { r.opt.Pod, r.engine.mem, r.engine.handles = id, store, true })...)
}

func capOne(r *rig) {
	r.docs.def = &definition.Definition{Name: "browser", Resource: "browser", Label: "browser", TTL: time.Minute, Wait: time.Millisecond,
		Caps: map[definition.Level]definition.Cap{definition.User: 1, definition.Global: 5}}
}

func TestOnTheRealEngine(t *testing.T) {
	r := pod(t, "pod-a", storetest.NewMemory(time.Now), capOne)
	id := r.open()
	e := r.do("POST", "", initBody).want(t, 200, refusal.RPCBusy, "LEASE_BUSY")
	if e.Error.Data["level"] != "user" || e.Error.Data["cap"] != 1.0 {
		t.Errorf("%v", e)
	}
	if a := r.do("POST", id, call(1, "x")); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Fatalf("%+v", a)
	}
	id = r.open()
	hs, err := r.engine.Find(t.Context(), lease.Filter{})
	if err != nil || len(hs) != 1 || hs[0].Payload["sessionId"] != "upstream-2" || string(r.proxy.kept.init(hs[0].Payload)) != initBody {
		t.Fatalf("%v, %+v", err, hs)
	}
	s := r.begin("GET", id, "")
	if _, err := r.engine.Revoke(t.Context(), hs[0].Token, lease.Cause{Reason: lease.ReasonRevoke, By: "ops"}); err != nil {
		t.Fatal(err)
	}
	if rest, err := s.rest(); err != nil || rest != "" {
		t.Errorf("%q, %v", rest, err)
	}
	e = r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	if e.Error.Data["reason"] != "revoke" || !strings.Contains(e.Error.Message, "operator") {
		t.Errorf("%v", e)
	}
	// The handler runs beside the answer.
	for ended := ""; ended != "upstream-2"; {
		select {
		case ended = <-r.up.ended:
		case <-time.After(10 * time.Second):
			t.Fatal("the upstream session still lives")
		}
	}
	r.open()
}

func TestUnconfirmedClosesAreTriedAgainBySweeps(t *testing.T) {
	r := pod(t, "pod-a", storetest.NewMemory(time.Now), capOne)
	id := r.open()
	r.up.mu.Lock()
	r.up.onDelete = 503
	r.up.mu.Unlock()
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Fatalf("%+v", a)
	}
	next := r.open() // the slot is free
	r.up.mu.Lock()
	r.up.onDelete = 0
	r.up.mu.Unlock()
	if _, err := r.engine.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.up.live() != 1 {
		t.Errorf("%d upstream sessions", r.up.live())
	}
	if a := r.do("POST", next, call(1, "x")); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

func TestTwoPodsOnOneStore(t *testing.T) {
	store := storetest.NewMemory(time.Now)
	a := pod(t, "pod-a", store, capOne)
	b := pod(t, "pod-b", store, capOne)
	b.docs.change(func(d *server.Document) { d.URL = a.docs.doc.URL })
	id := a.open()
	if got := b.do("POST", id, call(1, "x")); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	hs, err := b.engine.Find(t.Context(), lease.Filter{})
	if err != nil || len(hs) != 1 || hs[0].Pod != "pod-b" {
		t.Fatalf("%v, %+v", err, hs)
	}
	if got := b.do("DELETE", id, ""); got.status != 204 {
		t.Fatalf("%+v", got)
	}
	a.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
	if a.up.live() != 0 {
		t.Error("the upstream session still lives")
	}
	a.open()
}
