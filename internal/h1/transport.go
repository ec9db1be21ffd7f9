package h1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Bounds of a Transport.
const (
	// MaxBody is the longest body in bytes that is written at once. A socket takes
	// as much without anybody reading, so a server that answers before it has
	// read cannot block the write.
	MaxBody = 64 << 10
	// maxIdle bounds the idle connections to one address.
	maxIdle = 1024
	// maxInterim bounds the 1xx answers before the final one.
	maxInterim = 5
)

// InMemory is a request body whose bytes stay as they are until it is closed.
type InMemory interface {
	io.ReadCloser
	Bytes() []byte
}

// Transport is an http.RoundTripper. It never repeats a request of which a byte
// was written. It is safe for concurrent use.
type Transport struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	next *http.Transport
	pool connPool
}

// NewTransport makes a Transport in front of next, with next's dialler, idle timeout and
// bound on an answer's head.
func NewTransport(next *http.Transport) *Transport {
	t := &Transport{dial: next.DialContext, next: next}
	t.pool.timeout = next.IdleConnTimeout
	return t
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	t.pool.clear()
	t.next.CloseIdleConnections()
}

// RoundTrip implements http.RoundTripper. Where ctx ends the request, the error
// is its cause.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, ok := req.Body.(InMemory)
	if !ok {
		return t.next.RoundTrip(req)
	}
	if len(body.Bytes()) == 0 || len(body.Bytes()) > MaxBody {
		return t.next.RoundTrip(req)
	}
	out := requests.Get().(*bytes.Buffer)
	defer requests.Put(out)
	out.Reset()
	if !canPeek || !appendRequest(out, req, body.Bytes()) {
		return t.viaNetHTTP(req, body)
	}
	defer func() { _ = body.Close() }()
	return t.direct(req, out.Bytes())
}

var requests = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// viaNetHTTP sends a small body by net/http. net/http writes head and body at once
// where it knows the body's type, and may read it after it has answered: so it
// gets a copy of its own.
func (t *Transport) viaNetHTTP(req *http.Request, body InMemory) (*http.Response, error) {
	own := req.WithContext(req.Context())
	own.Body = io.NopCloser(bytes.NewReader(bytes.Clone(body.Bytes())))
	_ = body.Close()
	return t.next.RoundTrip(own)
}

// direct writes the request on a connection and reads the head of its answer.
func (t *Transport) direct(req *http.Request, out []byte) (*http.Response, error) {
	ctx := req.Context()
	addr := address(req.URL)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c := t.pool.get(addr)
		reused := c != nil
		if !reused {
			nc, err := t.dial(ctx, "tcp", addr)
			if err != nil {
				return nil, causeOf(ctx, err)
			}
			c = newClientConn(nc)
		}
		resp, written, err := t.exchange(ctx, c, req, out)
		if err == nil {
			return resp, nil
		}
		if reused && written == 0 && ctx.Err() == nil {
			continue // the server closed it while it was idle, and has seen nothing
		}
		return nil, causeOf(ctx, err)
	}
}

// exchange sends out and reads an answer's head. On an error the connection is
// closed; with an answer it belongs to the answer's body.
func (t *Transport) exchange(ctx context.Context, c *clientConn, req *http.Request, out []byte) (_ *http.Response, written int, _ error) {
	stop := context.AfterFunc(ctx, c.shut)
	fail := func(err error) (*http.Response, int, error) {
		stop()
		c.shut()
		return nil, written, err
	}
	written, err := c.Conn.Write(out)
	if err != nil {
		return fail(err)
	}
	c.headLeft = t.headLimit()
	resp, err := readHead(c, req)
	if err != nil {
		return fail(err)
	}
	c.headLeft = math.MaxInt64
	b := &answerBody{t: t, c: c, ctx: ctx, stop: stop, addr: address(req.URL), from: resp.Body, keep: !resp.Close}
	if resp.Body == http.NoBody {
		b.end(true)
		return resp, written, nil
	}
	resp.Body = b
	return resp, written, nil
}

func (t *Transport) headLimit() int64 {
	if n := t.next.MaxResponseHeaderBytes; n > 0 {
		return n
	}
	return 10 << 20 // net/http's own
}

var (
	errHead    = errors.New("h1: the head of the answer is over its limit")
	errInterim = errors.New("h1: too many 1xx answers")
	errSwitch  = errors.New("h1: the server switched protocols unasked")
)

// readHead reads the head of the final answer.
func readHead(c *clientConn, req *http.Request) (*http.Response, error) {
	for range maxInterim + 1 {
		resp, err := http.ReadResponse(c.r, req)
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errSwitch
		case resp.StatusCode >= 200:
			return resp, nil
		}
	}
	return nil, errInterim
}

// causeOf is the cause of ctx's end where that is why err came.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// answerBody is the body of an answer; with its end the connection is free again.
type answerBody struct {
	t    *Transport
	c    *clientConn
	ctx  context.Context
	stop func() bool
	addr string
	from io.Reader
	keep bool // the connection may be used again

	once   sync.Once
	closed atomic.Bool
	err    error // what reads return from now on
}

func (a *answerBody) Read(p []byte) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	if a.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := a.from.Read(p)
	if err != nil {
		a.end(errors.Is(err, io.EOF))
		if !errors.Is(err, io.EOF) {
			err = causeOf(a.ctx, err)
		}
		a.err = err
	}
	return n, err
}

// Close ends the answer. What has not been read of it is not waited for: the
// connection is closed then.
func (a *answerBody) Close() error {
	a.closed.Store(true)
	a.end(false)
	return nil
}

// end lets go of the connection. whole says that the answer was read to its
// end, and nothing of it can be taken for the next one's.
func (a *answerBody) end(whole bool) {
	a.once.Do(func() {
		// Where stop comes too late the connection is being closed.
		if a.stop() && whole && a.keep && a.c.r.Buffered() == 0 {
			a.t.pool.put(a.addr, a.c)
			return
		}
		a.c.shut()
	})
}
