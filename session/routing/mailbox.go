package routing

import (
	"context"
	"net/http"
	"strings"
)

// What waits for the reader of one stream. A message that is longer than all may
// wait alone.
const (
	MaxQueued      = 256
	MaxQueuedBytes = 4 << 20
)

// item is a message on its way to a stream.
type item struct {
	message []byte
	answer  bool // the response to one of the POST's requests
}

// queue is bounded by MaxQueued and MaxQueuedBytes.
type queue struct {
	items []item
	bytes int
}

func (q *queue) fits(i item) bool {
	return len(q.items) == 0 || len(q.items) < MaxQueued && q.bytes+len(i.message) <= MaxQueuedBytes
}

func (q *queue) push(i item) {
	q.items = append(q.items, i)
	q.bytes += len(i.message)
}

// pop takes the oldest out of a queue that is not empty.
func (q *queue) pop() item {
	i := q.items[0]
	q.items[0] = item{} // its bytes are not held by the array
	q.items = q.items[1:]
	q.bytes -= len(i.message)
	return i
}

// mailbox is the stream of one POST or GET. The router's lock guards it.
type mailbox struct {
	queue     *queue
	pending   int      // requests without a response
	ids       []string // MatchKey of its requests
	events    bool     // the client takes an event stream
	batch     bool
	opening   bool // an initialize
	cancelled bool // by the client; it has one request
	active    func()

	wake   chan struct{} // holds a token after something has changed for the reader
	room   chan struct{} // holds a token after the reader has taken something
	left   chan struct{} // closed when nobody reads any more
	closed bool          // left is closed
	stop   func() bool   // undoes the watch over the request's context
}

func newMailbox(r *http.Request) *mailbox {
	active, _ := r.Context().Value(activity{}).(func())
	if active == nil {
		active = func() {}
	}
	return &mailbox{
		queue: new(queue), events: acceptsEvents(r.Header), active: active,
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), left: make(chan struct{}),
	}
}

// signal leaves a token where there is none.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

type activity struct{}

// WithActivity has f called for each message of the peer that concerns the
// request with this context, also for those that do not reach its response: a
// response that is collected, progress for a client that takes JSON only. f must
// not block.
func WithActivity(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, activity{}, f)
}

func acceptsEvents(h http.Header) bool {
	for _, v := range h["Accept"] {
		if strings.Contains(v, "text/event-stream") || strings.Contains(v, "*/*") {
			return true
		}
	}
	return false
}
