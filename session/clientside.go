package session

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

const (
	// keepAliveEvery is how long an SSE stream may be silent towards a client.
	keepAliveEvery = 25 * time.Second
	// stuckAfter is how long one write to a client may take.
	stuckAfter = 60 * time.Second
)

// clientSide is where an exchange's answer goes: what has gone out of it, and
// whether the client still reads.
type clientSide struct {
	w     http.ResponseWriter
	epoch time.Time

	// The timer reads these while a client may hold a write, and with it mu, up.
	// Times are Proxy.now().
	writing atomic.Int64 // the start of a write under way, or 0
	lastOut atomic.Int64 // the last write
	stream  atomic.Bool  // the answer is an SSE stream

	mu    sync.Mutex // guards what follows and every use of w once an answer has begun
	begun bool       // a header has gone out
	over  bool       // the handler has returned: w is no longer ours
	left  bool       // the client has gone
	sse   wire.Stream

	passed func(b []byte, left bool) // told of each part of a stream, under mu
}

func (c *clientSide) init(w http.ResponseWriter, epoch time.Time) { c.w, c.epoch = w, epoch }

func (c *clientSide) now() int64 { return int64(time.Since(c.epoch)) }

func (c *clientSide) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

func (c *clientSide) hasBegun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

// wake ends a write that the client holds up.
func (c *clientSide) wake() {
	if c.writing.Load() > 0 {
		_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now())
	}
}

// keepAlive puts a comment between two events of a silent stream.
func (c *clientSide) keepAlive() {
	if !c.mu.TryLock() { // something is being written
		return
	}
	defer c.mu.Unlock()
	if !c.stream.Load() || c.over || c.left || !c.sse.Between() || c.now()-c.lastOut.Load() < int64(keepAliveEvery) {
		return
	}
	c.put([]byte(wire.KeepAlive))
}

// begin sends the header of an answer.
func (c *clientSide) begin(status int, stream bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
	c.stream.Store(stream)
	c.w.WriteHeader(status)
	if stream {
		_ = c.flush()
	}
}

// write sends bytes of the answer and reports whether the client still reads.
func (c *clientSide) write(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(b)
	return !c.left
}

// put is write under the lock.
func (c *clientSide) put(b []byte) {
	stream := c.stream.Load()
	if stream && c.passed != nil {
		c.passed(b, c.left) // first: who has read a response finds its call ended
	}
	if c.left {
		return
	}
	now := c.now()
	c.writing.Store(now)
	_, err := c.w.Write(b)
	if err == nil && stream {
		c.sse.Feed(b)
		err = c.flush()
	}
	c.writing.Store(0)
	c.lastOut.Store(now)
	c.left = err != nil
}

func (c *clientSide) flush() error {
	if f, ok := c.w.(http.Flusher); ok {
		f.Flush()
		return nil
	}
	return http.NewResponseController(c.w).Flush()
}

// errUnanswered says that a stream ended as it should and left a request without
// its response.
var errUnanswered = errors.New("session: the upstream ended its answer without a result")

// finish ends a begun answer that the upstream did not end by itself, or ended
// too early: with an error event for each request of q without a response where
// the client can still read one, by cutting the connection otherwise, so that
// nobody takes a part for the whole. A stream whose events have ids ends as the
// upstream ended it, since the client can resume it. Without q there is nobody
// who waits for words.
func (x *exchange) finish(err error, q *request) {
	c := &x.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return
	}
	cause := context.Cause(x.ctx)
	if err == nil {
		if !c.stream.Load() || !x.pending.open() || c.sse.HasIDs() {
			return
		}
		err = errUnanswered
	}
	resumable := cause == nil && c.sse.HasIDs()
	if !c.stream.Load() || !c.sse.Between() || resumable {
		panic(http.ErrAbortHandler)
	}
	if q == nil {
		return // a stream that listens just ends
	}
	var f *refusal
	if l := lossOf(x.ctx); l != nil {
		f = q.told(x.s, l)
	} else {
		f = q.failed(x, err)
	}
	var out []byte
	for i := range q.env.Messages {
		if m := &q.env.Messages[i]; m.Request() && x.pending.without(m.ID.Of(q.body.B)) {
			out = wire.AppendEvent(out, f.respond(m, q.body.B))
		}
	}
	if len(out) > 0 {
		c.put(out)
	}
}
