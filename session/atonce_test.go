package session

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Two clients of one user open, call and end their sessions over and over, each
// at the other's most awkward moment. Each reads its own answers only, and nothing
// is left of either.
func TestTwoClientsThatOpenAndEndAtOnce(t *testing.T) {
	r := newRig(t)
	var both sync.WaitGroup
	for client := range 2 {
		both.Go(func() {
			for round := range 40 {
				a := r.do("POST", "", initBody)
				id := a.header.Get("Mcp-Session-Id")
				if a.status != 200 || id == "" {
					t.Errorf("client %d, round %d: open: %+v", client, round, a)
					return
				}
				number := 1000*client + round
				a = r.do("POST", id, call(number, "echo"))
				if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"content":[]}}`, number); a.body != want {
					t.Errorf("client %d, round %d: %+v, want %s", client, round, a, want)
				}
				if a = r.do("DELETE", id, ""); a.status != 204 {
					t.Errorf("client %d, round %d: end: %+v", client, round, a)
				}
			}
		})
	}
	both.Wait()
	if r.engine.held() != 0 || r.up.live() != 0 || r.counts.open.Load() != 0 {
		t.Errorf("left: %d leases, %d upstream sessions, %d counted", r.engine.held(), r.up.live(), r.counts.open.Load())
	}
}

// Of several initializes at one moment before a cap of 1 exactly one has a session;
// the others are told BUSY and leave nothing at the upstream.
func TestInitializesAtOnceBeforeACapOfOne(t *testing.T) {
	r := newRig(t, func(r *rig) { r.engine.cap = 1 })
	answers := make([]answer, 5)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = r.do("POST", "", initBody) })
	}
	all.Wait()
	var opened []string
	for _, a := range answers {
		switch id := a.header.Get("Mcp-Session-Id"); {
		case id != "":
			opened = append(opened, id)
		case a.status != 200 || !strings.Contains(a.body, lease.CodeBusy):
			t.Errorf("%+v", a)
		}
	}
	if len(opened) != 1 || r.engine.held() != 1 || r.up.live() != 1 {
		t.Fatalf("%d sessions, %d leases, %d at the upstream", len(opened), r.engine.held(), r.up.live())
	}
	if a := r.do("POST", opened[0], call(2, "echo")); a.status != 200 {
		t.Errorf("the one that has it: %+v", a)
	}
}

// Clients give up an initialize after five seconds, so a store that does not answer
// at all is told before, whatever the session would wait for a slot.
func TestAnOpenIsAnsweredWithinFiveSecondsWhileTheStoreHangs(t *testing.T) {
	for _, onBusy := range []string{"refuse", "replaceOwn"} {
		for _, verb := range []string{"createHolder", "increment", "pushLast"} {
			t.Run(onBusy+" "+verb, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(r *rig) {
					r.docs.doc.OnBusy, r.engine.cap, r.opt.Session.OpenWait = server.OnBusy(onBusy), 1, 30*time.Second
				})
				arrived, open := r.engine.store.Hold(verb)
				defer open()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				a := r.doCtx(ctx, "POST", "", initBody)
				if a.err != nil || !strings.Contains(a.body, lease.CodeUnavailable) {
					t.Errorf("within 5 s: %+v", a)
				}
				select {
				case <-arrived:
				default:
					t.Errorf("the store was never asked for %s", verb)
				}
			})
		}
	}
}
