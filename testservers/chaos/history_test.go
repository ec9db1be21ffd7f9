//go:build external

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

const slots = 3

// slotSet is what the gateways together must look like: a plain set of slots. An
// open succeeds while one is free and is refused while none is; an end gives
// one back.
var slotSet = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		held := state.(int)
		switch {
		case input == "end":
			return held > 0, held - 1
		case output == "opened":
			return held < slots, held + 1
		default:
			return held == slots, held
		}
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v: %v", in, out) },
}

func TestHistoriesOfSeveralProcessesAreLinearizable(t *testing.T) {
	upstream := browser.New(browser.Behavior{})
	t.Cleanup(upstream.Close)
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	uri, database := mongo.Database(t)
	var bases []string
	for range 3 {
		p := pod.Start(t, pod.Config{
			Store: "kind: mongodb\nuri: " + uri + "\ndatabase: " + database,
			Documents: map[string]string{
				// One level: a funnel that is rolled back holds a slot for a moment that
				// no client asked for.
				"_vance/_tenant/_vance/config/lease/browser.yaml": fmt.Sprintf("name: browser\nlevels: {project: %d}\nttlSeconds: 300\nwaitMs: 0\n", slots),
				"_vance/_tenant/_vance/server-tools/browser.yaml": "name: browser\ntype: mcp_server\nparameters:\n  transport: http\n  url: " + server.URL + "/mcp\n  lease: browser\n  onBusy: refuse\n",
			},
			Identity: "apiKeys:\n- {name: chaos, sha256: " + keyHash + ", tenants: {\"*\": [\"*\"]}, userHeader: X-Vance-User, onLost: notFound}",
		})
		bases = append(bases, p.URL)
	}

	var mu sync.Mutex
	var history []porcupine.Operation
	var opened, refused atomic.Int64
	began := time.Now()
	record := func(client int, input, output string, call time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: input, Output: output, Call: int64(call), Return: int64(time.Since(began))})
	}
	n := seed(t)
	var wg sync.WaitGroup
	for client := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(n, uint64(client)))
			c := &caller{http: &http.Client{Transport: &http.Transport{}}, tenant: "t", project: "p", user: fmt.Sprintf("u%d", client)}
			defer c.http.CloseIdleConnections()
			ctx := context.WithoutCancel(t.Context())
			for range 40 {
				call := time.Since(began)
				a, err := c.open(ctx, bases[r.IntN(len(bases))], "history")
				switch {
				case err != nil || a.session == "" && a.code != "LEASE_BUSY":
					t.Errorf("open: %v, %+v", err, a)
					return
				case a.code == "LEASE_BUSY":
					refused.Add(1)
					record(client, "open", "refused", call)
					continue
				}
				opened.Add(1)
				record(client, "open", "opened", call)
				// The end of a session that another process opened counts as well.
				call = time.Since(began)
				if err := c.end(ctx, bases[r.IntN(len(bases))], a.session); err != nil {
					t.Errorf("end: %v", err)
					return
				}
				record(client, "end", "", call)
			}
		})
	}
	wg.Wait()
	t.Logf("%d operations of 8 clients at 3 processes: %d opened, %d refused", len(history), opened.Load(), refused.Load())
	if opened.Load() < 40 || refused.Load() < 10 {
		t.Error("too little happened for the history to prove anything")
	}
	if got := porcupine.CheckOperationsTimeout(slotSet, history, 30*time.Second); got != porcupine.Ok {
		t.Errorf("no order of these operations is one of a set of %d slots: %v", slots, got)
	}
	// The checker must be able to say no: one open too many at a time when all
	// slots are held by sessions that end later.
	spoilt := append([]porcupine.Operation(nil), history...)
	for i, op := range spoilt {
		if op.Output == "refused" {
			spoilt[i].Output = "opened"
		}
	}
	if got := porcupine.CheckOperationsTimeout(slotSet, spoilt, 30*time.Second); got == porcupine.Ok {
		t.Error("a history in which every refused open succeeded passes as well")
	}
}
