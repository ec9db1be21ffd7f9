package session

import (
	"sync"

	"github.com/vancetope/mcp-lease-gateway/internal/quota"
)

// traffic counts what is under way in the pod: streams, calls and child
// processes, each for who has it (limits.perPod), and of these the requests that
// Drain waits for.
type traffic struct {
	places *quota.Pool

	mu    sync.Mutex
	calls int
	quiet chan struct{} // closed when calls has come to zero; nil while nobody waits
}

// enter takes a place where there is one for who.
func (t *traffic) enter(who quota.Key, call bool) bool {
	if call {
		// Before the place: Drain must not miss a request that is about to have one.
		t.mu.Lock()
		t.calls++
		t.mu.Unlock()
	}
	if t.places.Take(who, 1) {
		return true
	}
	if call {
		t.over()
	}
	return false
}

func (t *traffic) exit(who quota.Key, call bool) {
	t.places.Give(who, 1)
	if call {
		t.over()
	}
}

// over counts a call out.
func (t *traffic) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls--; t.calls == 0 && t.quiet != nil {
		close(t.quiet)
		t.quiet = nil
	}
}

// wait returns a channel that is closed when no call is under way.
func (t *traffic) wait() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if t.quiet == nil {
		t.quiet = make(chan struct{})
	}
	return t.quiet
}
