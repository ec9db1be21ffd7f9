package session

import (
	"testing"
)

func TestOpenCallClose(t *testing.T) {
	r := newRig(t)
	id := r.open()
	if got := r.engine.held(); got != 1 {
		t.Fatalf("%d leases held after open", got)
	}
	a := r.do("POST", id, call(7, "echo"))
	if a.status != 200 || a.body != `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}` {
		t.Fatalf("call: %+v", a)
	}
	if a = r.do("DELETE", id, ""); a.status != 204 {
		t.Fatalf("delete: %+v", a)
	}
	if r.engine.held() != 0 || r.up.live() != 0 || r.counts.open.Load() != 0 {
		t.Fatalf("left: %d leases, %d upstream sessions, %d counted", r.engine.held(), r.up.live(), r.counts.open.Load())
	}
	if a = r.do("POST", id, call(8, "echo")); a.status != 404 {
		t.Fatalf("call after delete: %+v", a)
	}
}
