package session

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// pending knows which requests of a POST have neither had their response nor been
// cancelled. While there is one, the exchange is at work: its lease is in use, and
// a drain waits for it.
type pending struct {
	q *request

	mu        sync.Mutex
	answers   *wire.Answers // of an answer that has begun
	cancelled []string      // MatchKey of requests that the client has given up
}

// await follows an answer from its beginning.
func (t *pending) await() *wire.Answers {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers = new(wire.Answers)
	if t.q.env == nil {
		return t.answers // a GET has only the server's own requests
	}
	for i := range t.q.env.Messages {
		if m := &t.q.env.Messages[i]; m.Request() {
			t.answers.Await(m.ID.Of(t.q.body.B))
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
	if t.q.env == nil || slices.Contains(t.cancelled, key) {
		return false
	}
	for i := range t.q.env.Messages {
		m := &t.q.env.Messages[i]
		if m.Request() && wire.MatchKey(m.ID.Of(t.q.body.B)) == key {
			t.cancelled = append(t.cancelled, key)
			return t.done()
		}
	}
	return false
}

// done is asked under the lock.
func (t *pending) done() bool {
	if t.q.env == nil {
		return false // a stream that listens
	}
	if len(t.cancelled) == 0 {
		return t.answers != nil && t.answers.Done()
	}
	for i := range t.q.env.Messages {
		m := &t.q.env.Messages[i]
		if !m.Request() {
			continue
		}
		id := m.ID.Of(t.q.body.B)
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

// without reports whether the request with this id has had no response.
func (t *pending) without(id []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answers == nil || t.answers.Waits(id)
}

// follow tells the session what this POST says about other exchanges: which
// requests the client gives up, and which of the server's it answers.
func (q *request) follow(s *session) {
	for i := range q.env.Messages {
		m := &q.env.Messages[i]
		switch {
		case m.Response():
			s.answered(wire.MatchKey(m.ID.Of(q.body.B)))
		case m.Method == "notifications/cancelled":
			var params struct {
				RequestID json.RawMessage `json:"requestId"`
			}
			if json.Unmarshal(m.Params.Of(q.body.B), &params) == nil && len(params.RequestID) > 0 {
				s.cancelled(wire.MatchKey(params.RequestID))
			}
		}
	}
}
