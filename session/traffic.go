package session

import "sync"

// traffic counts what is under way in the pod: streams, calls and child
// processes (limits.perPod), and of these the requests that Drain waits for.
type traffic struct {
	mu    sync.Mutex
	all   int
	calls int
	quiet chan struct{} // closed when calls has come to zero; nil while nobody waits
}

// enter takes a place under max.
func (t *traffic) enter(max int, call bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all >= max {
		return false
	}
	t.all++
	if call {
		t.calls++
	}
	return true
}

func (t *traffic) exit(call bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if call {
		if t.calls--; t.calls == 0 && t.quiet != nil {
			close(t.quiet)
			t.quiet = nil
		}
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
