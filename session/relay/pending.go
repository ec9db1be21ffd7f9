package relay

import (
	"slices"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// pending knows which requests of a POST have neither had their response nor been
// cancelled. While there is one, the exchange is at work: its lease is in use, and
// a drain waits for it.
type pending struct {
	body []byte         // of a POST
	env  *wire.Envelope // of a POST

	mu        sync.Mutex
	answers   *wire.Answers // of an answer that has begun
	cancelled []string      // MatchKey of requests that the client has given up
}

// await follows an answer from its beginning.
func (t *pending) await() *wire.Answers {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers = new(wire.Answers)
	if t.env == nil {
		return t.answers // a GET has only the server's own requests
	}
	for i := range t.env.Messages {
		if m := &t.env.Messages[i]; m.Request() {
			t.answers.Await(m.ID.Of(t.body))
		}
	}
	return t.answers
}

// feed takes bytes of an event stream. done says that nothing is pending any more,
// asked are the ids of requests of the server in it.
func (t *pending) feed(b []byte) (done bool, asked []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers == nil {
		return false, nil
	}
	t.answers.Feed(b)
	return t.done(), t.answers.Asked()
}

// cancel notes that the client has given up the request with this MatchKey, and
// reports whether nothing is pending any more since.
func (t *pending) cancel(key string) (done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.env == nil || slices.Contains(t.cancelled, key) {
		return false
	}
	for i := range t.env.Messages {
		m := &t.env.Messages[i]
		if m.Request() && wire.MatchKey(m.ID.Of(t.body)) == key {
			t.cancelled = append(t.cancelled, key)
			return t.done()
		}
	}
	return false
}

// done is asked under the lock.
func (t *pending) done() bool {
	if t.env == nil {
		return false // a stream that listens
	}
	if len(t.cancelled) == 0 {
		return t.answers != nil && t.answers.Done()
	}
	for i := range t.env.Messages {
		m := &t.env.Messages[i]
		if !m.Request() {
			continue
		}
		id := m.ID.Of(t.body)
		if !slices.Contains(t.cancelled, wire.MatchKey(id)) && (t.answers == nil || t.answers.Waits(id)) {
			return false
		}
	}
	return true
}

// open reports whether a request is without a response at the end of the answer.
func (t *pending) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers != nil && t.answers.Open()
}

// without reports whether a request has had no response.
func (t *pending) without(m *wire.Message) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers == nil || t.answers.Waits(m.ID.Of(t.body))
}

// Await follows an event stream from its beginning.
func (x *Exchange) Await() { x.pending.await() }
