package h1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	smallBuffer = 4 << 10  // bytes that a connection reads into
	largeBuffer = 64 << 10 // bytes of the largest accepted request, head and body

	// assembly is how long a request that has begun may take to be here whole.
	// What takes longer is net/http's.
	assembly = 50 * time.Millisecond

	// watchAfter is how long a request runs before anybody looks whether its
	// client is still there.
	watchAfter = 20 * time.Millisecond
)

var (
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}
	headReaders  = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, smallBuffer) }}
)

// maxLarge is how many large buffers are in use at once; 16 MiB of them.
const maxLarge = 256

var largeInUse atomic.Int64

// takeLarge returns a large buffer, or nil where as many as there may be are in
// use: nobody is authenticated yet, so strangers share a bounded number.
func takeLarge() *[]byte {
	if largeInUse.Add(1) > maxLarge {
		largeInUse.Add(-1)
		return nil
	}
	return largeBuffers.Get().(*[]byte)
}

func giveLarge(b *[]byte) {
	if b != nil {
		largeBuffers.Put(b)
		largeInUse.Add(-1)
	}
}

// past is a deadline that ends a read under way.
var past = time.Unix(1, 0)

// serverConn is a client's connection until it is handed on. One goroutine serves
// it; the watch is the only other one that reads it, and never while serve does.
type serverConn struct {
	s      *Server
	rwc    net.Conn
	ctx    context.Context // what all its requests know
	remote string
	idle   atomic.Bool // waits for a request; who takes it away may close the connection

	buf  []byte // smallBuffer long
	have int    // of them hold what has been read and not been served

	deadline time.Time          // of reading, as it was set last
	cancel   context.CancelFunc // of the request under way

	mu    sync.Mutex
	watch watchState
	timer *time.Timer
	ended chan struct{} // closed when a watch that reads has ended
	early byte          // what the watch has read: the next request's first byte
	isSet bool          // early is
}

type watchState int

const (
	notWatching watchState = iota
	armed                  // the timer runs
	reading                // the watch reads
)

func newServerConn(s *Server, rwc net.Conn) *serverConn {
	c := &serverConn{s: s, rwc: rwc, remote: rwc.RemoteAddr().String()}
	ctx := context.WithValue(context.Background(), http.ServerContextKey, s.rest)
	c.ctx = context.WithValue(ctx, http.LocalAddrContextKey, rwc.LocalAddr())
	c.idle.Store(true)
	return c
}

// serve answers accepted requests until one is not, or the connection ends.
func (c *serverConn) serve() {
	defer c.s.forget(c)
	c.buf = make([]byte, smallBuffer)
	wait := c.s.rest.ReadHeaderTimeout // of a connection that has not said anything yet
	for {
		if c.have == 0 && !c.await(wait) {
			_ = c.rwc.Close()
			return
		}
		if !c.idle.CompareAndSwap(true, false) { // Shutdown has closed it
			return
		}
		all, large, head, length, ok := c.collect()
		var r *http.Request
		if ok {
			r, ok = parse(all[:head], length)
		}
		if !ok {
			c.handOn(all)
			giveLarge(large)
			return
		}
		follows := large == nil && c.have > head+length
		again := c.answer(r, &body{b: all[head : head+length], large: large}, follows)
		if large == nil {
			c.have = copy(c.buf, c.buf[head+length:c.have])
		}
		if c.isSet {
			c.buf[c.have], c.have, c.isSet = c.early, c.have+1, false
		}
		if !again || c.s.draining.Load() {
			_ = c.rwc.Close()
			return
		}
		c.idle.Store(true)
		// Shutdown may have looked between the two, and does not look again.
		if c.s.draining.Load() && c.idle.CompareAndSwap(true, false) {
			_ = c.rwc.Close()
			return
		}
		wait = c.s.rest.IdleTimeout
	}
}

// await waits for the first bytes of a request.
func (c *serverConn) await(wait time.Duration) bool {
	// A deadline costs a little, so it is moved only when it is a quarter old.
	if now := time.Now(); c.deadline.Sub(now) < wait*3/4 || c.deadline.Sub(now) > wait {
		c.deadline = now.Add(wait)
		_ = c.rwc.SetReadDeadline(c.deadline)
	}
	n, _ := c.rwc.Read(c.buf)
	c.have = n
	return n > 0
}

// collect brings an accepted request together, in a large buffer where the
// connection's own is too small; large is the caller's to give back. Where the
// request is not accepted, or not here in time, all is what has been read.
func (c *serverConn) collect() (all []byte, large *[]byte, head, length int, ok bool) {
	all = c.buf[:c.have]
	var until time.Time
	for {
		var v verdict
		head, length, v = scan(all)
		need := head + length // 0 while the head is not whole
		switch {
		case v == refused || need > largeBuffer || v == incomplete && len(all) == smallBuffer: // a head that long is unusual
			return all, large, 0, 0, false
		case v == accepted && len(all) >= need:
			return all, large, head, length, true
		case large == nil && need > smallBuffer:
			if large = takeLarge(); large == nil {
				return all, nil, 0, 0, false
			}
			all = (*large)[:copy(*large, all)]
			c.have = 0
		}
		if until.IsZero() {
			until = time.Now().Add(assembly)
			c.deadline = until
			_ = c.rwc.SetReadDeadline(until)
		}
		room := smallBuffer
		if large != nil {
			room = need // what follows waits in the socket
		}
		n, err := c.rwc.Read(all[len(all):room])
		all = all[:len(all)+n]
		if large == nil {
			c.have = len(all)
		}
		if err != nil && n == 0 {
			return all, large, 0, 0, false
		}
	}
}

// handOn gives the connection to the http.Server behind, with what was read of it.
func (c *serverConn) handOn(b []byte) {
	_ = c.rwc.SetReadDeadline(time.Time{})
	_ = c.rwc.SetWriteDeadline(time.Time{})
	c.s.handoff.give(&framingGuard{Conn: &replay{Conn: c.rwc, b: bytes.Clone(b)}})
}

// parse has net/http read a head that scan has accepted.
func parse(head []byte, length int) (r *http.Request, ok bool) {
	br := headReaders.Get().(*bufio.Reader)
	br.Reset(bytes.NewReader(head))
	defer func() {
		br.Reset(nil)
		headReaders.Put(br)
	}()
	r, err := http.ReadRequest(br)
	return r, err == nil && r.ContentLength == int64(length)
}

// answer runs the handler and reports whether the connection can go on.
// Where the next request is here already, so is its client, and nothing watches.
func (c *serverConn) answer(r *http.Request, b *body, follows bool) (again bool) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	r = r.WithContext(ctx)
	r.RemoteAddr = c.remote
	r.Body = b
	if len(b.b) == 0 {
		r.Body = http.NoBody
	}
	c.cancel = cancel
	if !follows {
		c.startWatch()
	}
	w := newResponse(c)
	defer func() {
		p := recover()
		if !follows {
			c.endWatch()
		}
		b.end()
		if p != nil {
			again = false
			if p != http.ErrAbortHandler { //nolint:errorlint // a panic's value, by identity as net/http does
				c.s.logf("panic serving %v: %v\n%s", c.remote, p, debug.Stack())
			}
		}
		w.release()
	}()
	c.s.rest.Handler.ServeHTTP(w, r)
	cancel() // before the last write, which a client may hold up
	w.end()
	return w.reusable()
}

// startWatch begins to look whether the client is still there when the request
// has run for a while.
func (c *serverConn) startWatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch = armed
	if c.timer == nil {
		c.timer = time.AfterFunc(watchAfter, c.readAhead)
		return
	}
	c.timer.Reset(watchAfter)
}

// readAhead reads until something comes, the client goes or the request is over.
func (c *serverConn) readAhead() {
	c.mu.Lock()
	if c.watch != armed {
		c.mu.Unlock()
		return
	}
	c.watch, c.ended = reading, make(chan struct{})
	ended := c.ended
	// The deadline of waiting for this request must not end the watch.
	_ = c.rwc.SetReadDeadline(time.Time{})
	c.mu.Unlock()
	var one [1]byte
	n, err := c.rwc.Read(one[:])
	c.mu.Lock()
	if n == 1 {
		c.early, c.isSet = one[0], true
	}
	if err != nil && c.watch == reading {
		c.cancel()
	}
	c.mu.Unlock()
	close(ended)
}

// endWatch ends the watch, so that serve may read.
func (c *serverConn) endWatch() {
	c.timer.Stop()
	c.mu.Lock()
	reads := c.watch == reading
	c.watch = notWatching
	if reads { // under the lock: readAhead sets its own deadline under it
		c.deadline = past
		_ = c.rwc.SetReadDeadline(past)
	}
	c.mu.Unlock()
	if reads {
		<-c.ended
	}
}

// body is a request's body, which is here as a whole.
type body struct {
	mu    sync.Mutex // what the handler has started may still read when it has returned
	ended bool
	b     []byte
	large *[]byte // where it lies in a large buffer
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, http.ErrBodyReadAfterClose
	}
	n := copy(p, b.b)
	b.b = b.b[n:]
	if len(b.b) > 0 {
		return n, nil
	}
	b.free()
	return n, io.EOF
}

// Close implements io.Closer.
func (b *body) Close() error { return nil }

// free gives the memory back, as soon as the handler has read it all: a call may
// last, and its body is kept once by who answers it.
func (b *body) free() {
	giveLarge(b.large)
	b.b, b.large = nil, nil
}

// end frees the body after its handler: later reads fail.
func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.free()
}

// replay is a connection whose first bytes have been read already.
type replay struct {
	net.Conn
	b []byte
}

// Read implements io.Reader.
func (r *replay) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.b)
	if r.b = r.b[n:]; len(r.b) == 0 {
		r.b = nil
	}
	return n, nil
}

// ReadFrom lets net/http copy large answers by the kernel, as it would without
// this wrapper.
func (r *replay) ReadFrom(src io.Reader) (int64, error) {
	if rf, ok := r.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(src)
	}
	return io.Copy(struct{ io.Writer }{r.Conn}, src)
}

// CloseWrite lets net/http end an answer before the connection, so that a client
// that is still sending reads it.
func (r *replay) CloseWrite() error {
	if cw, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return r.Conn.Close()
}
