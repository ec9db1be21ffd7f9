package relay

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

// client is where an exchange's answer goes: what has gone out of it, and
// whether the client still reads.
type client struct {
	w     http.ResponseWriter
	epoch time.Time

	// The timer reads these while a client may hold a write, and with it mu, up.
	// Times are Exchange.Now.
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

func (c *client) now() int64 { return int64(time.Since(c.epoch)) }

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

func (c *client) hasBegun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

// wake ends a write that the client holds up.
func (c *client) wake() {
	if c.writing.Load() > 0 {
		_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now())
	}
}

// keepAlive puts a comment between two events of a silent stream.
func (c *client) keepAlive() {
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
func (c *client) begin(status int, stream bool) {
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
func (c *client) write(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(b)
	return !c.left
}

// put is write under the lock.
func (c *client) put(b []byte) {
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

func (c *client) flush() error {
	if f, ok := c.w.(http.Flusher); ok {
		f.Flush()
		return nil
	}
	return http.NewResponseController(c.w).Flush()
}

// Begin sends the header of an answer.
func (x *Exchange) Begin(status int, stream bool) { x.client.begin(status, stream) }

// Begun reports whether a header has gone out.
func (x *Exchange) Begun() bool { return x.client.hasBegun() }

// Write sends bytes of the answer and reports whether the client still reads.
func (x *Exchange) Write(b []byte) bool { return x.client.write(b) }

// ErrUnanswered says that a stream ended as it should and left a request without
// its response.
var ErrUnanswered = errors.New("relay: the upstream ended its answer without a result")

// Finish ends a begun answer that the upstream did not end by itself, or ended
// too early: with an event for each request without a response where the client
// can still read one, by cutting the connection otherwise, so that nobody takes a
// part for the whole. A stream whose events have ids ends as the upstream ended it,
// since the client can resume it. say makes the responses to the messages that it is
// asked about, and knows why by the cause of Context, or by its argument; without it
// there is nobody who waits for words.
func (x *Exchange) Finish(err error, say func(err error) (respond func(m *wire.Message) []byte)) {
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
		err = ErrUnanswered
	}
	resumable := cause == nil && c.sse.HasIDs()
	if !c.stream.Load() || !c.sse.Between() || resumable {
		panic(http.ErrAbortHandler)
	}
	if say == nil {
		return // a stream that listens just ends
	}
	respond := say(err)
	var out []byte
	for i := range x.pending.env.Messages {
		if m := &x.pending.env.Messages[i]; m.Request() && x.pending.without(m) {
			out = wire.AppendEvent(out, respond(m))
		}
	}
	if len(out) > 0 {
		c.put(out)
	}
}
