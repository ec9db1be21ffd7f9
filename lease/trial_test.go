package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

func TestATrial(t *testing.T) {
	trial := func(d *definition.Definition, user string) lease.Request {
		r := wants(d, user)
		r.Trial = true
		return r
	}
	for _, p := range []proof{
		{"takes a free slot", func(w *world) {
			m := w.pod("a", quiet)
			w.lives(w.acquire(m, trial(browser(nil), "u1")))
		}},
		{"does not wait and is no refusal to count", func(w *world) {
			m := w.pod("a", quiet)
			d := browser(only(definition.Global, 1))
			w.acquire(m, wants(d, "u1"))
			begun := time.Now()
			w.busy(m, trial(d, "u2"))
			w.check(time.Since(begun) == 0, "it waited %s", time.Since(begun))
			w.check(!w.saw("acquire browser busy") && !w.event("refused", lease.CodeBusy), "its refusal was told")
			w.busy(m, wants(d, "u2"))
			w.check(w.saw("acquire browser busy") && w.event("refused", lease.CodeBusy), "a refusal was not told")
		}},
		{"takes no slot that somebody waits for", func(w *world) {
			m := w.pod("a", quiet)
			d := browser(only(definition.Global, 1))
			first := w.acquire(m, wants(d, "u1"))
			got := make(chan *lease.Lease, 1)
			go func() {
				l, _ := m.Acquire(context.Background(), wants(d, "u2"))
				got <- l
			}()
			synctest.Wait()
			// The slot is free for an instant in which its waiter has not looked yet.
			w.calls.set(func() { w.calls.slow = time.Millisecond })
			if err := first.Release(context.Background()); err != nil {
				w.fatalf("release: %v", err)
			}
			_, err := m.Acquire(context.Background(), trial(d, "u3"))
			var busy *lease.BusyError
			w.check(errors.As(err, &busy), "a trial went before a waiter: %v", err)
			w.check(<-got != nil, "the waiter got nothing")
		}},
	} {
		t.Run(p.says, func(t *testing.T) {
			for _, f := range show(t, p, nil) {
				t.Error(f)
			}
		})
	}
}
