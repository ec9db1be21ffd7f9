package texproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/tracing"
)

var (
	errSilent  = errors.New("the TeX service did not answer in time")
	errOverdue = errors.New("the TeX service did not answer within hold.max")
	errGone    = errors.New("the client has gone")
)

// newTransport has no proxy from the environment and follows no redirects: a
// service's address is the operator's, and its credential goes nowhere else.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     60 * time.Second,
		DisableCompression:  true, // what the upstream sends is what the client gets
		ReadBufferSize:      32 << 10,
		WriteBufferSize:     32 << 10,
		// An answer's head is bounded, as everything is.
		MaxResponseHeaderBytes: 256 << 10,
	}
}

var dialer = net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return upstreamConn{c}, nil
}

// upstreamConn takes a request's body in larger pieces than net/http has for it:
// an upload that is here as a whole goes up as fast as the service takes it.
type upstreamConn struct{ net.Conn }

func (c upstreamConn) ReadFrom(r io.Reader) (int64, error) {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, r, *buf)
}

var pieces = sync.Pool{New: func() any { b := make([]byte, 512<<10); return &b }}

// call is one request to an upstream.
type call struct {
	method  string
	base    *url.URL // nil for the service's
	path    string   // cleaned, escaped
	query   string
	header  http.Header   // end-to-end headers that may go up
	body    *upload       // nil for none
	begins  bool          // it begins a compile, so whether it was sent matters
	inspect bool          // the answer is to be read
	within  time.Duration // longest time until the answer begins; zero for any
}

// ask is exchange for a call whose answer is to be read.
func (p *Proxy) ask(ctx context.Context, s *service, c call) (a *answer, sent bool, err error) {
	c.inspect = true
	if a, sent, err = p.exchange(ctx, s, c); err != nil {
		return nil, sent, err
	}
	if err := a.read(); err != nil {
		a.Body.Close()
		return nil, true, err
	}
	return a, true, nil
}

// exchange sends a call and returns its answer's head. sent tells, beside the
// error of a call that begins a compile, whether the upstream may have got the
// whole request. The answer dies when the upstream is silent for the service's
// timeout.
func (p *Proxy) exchange(ctx context.Context, s *service, c call) (a *answer, sent bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watch := newWatchdog(cancel, s.Timeout, c.within)
	defer func() {
		if err != nil {
			err = causeOf(ctx, err)
			watch.stop()
		}
	}()
	var written atomic.Bool
	if c.begins {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			WroteRequest: func(info httptrace.WroteRequestInfo) {
				if info.Err == nil {
					written.Store(true)
				}
			},
		})
	}
	resp, err := tracing.RoundTrip(p.transport, s.request(ctx, c, watch))
	if err != nil {
		return nil, written.Load(), err
	}
	if resp.StatusCode < http.StatusOK {
		// It is no answer, and whoever gives it compiles nothing.
		resp.Body.Close()
		return nil, false, fmt.Errorf("the TeX service ended with the status %d", resp.StatusCode)
	}
	watch.answered()
	resp.Body = &watchedBody{resp.Body, watch, ctx}
	return &answer{Response: resp, abort: func() { cancel(errGone) }}, true, nil
}

// causeOf says why a context has ended, where that is why err is there. A client
// that has gone is no cause.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// request makes a call's request, with the service's credential on it.
func (s *service) request(ctx context.Context, c call, watch *watchdog) *http.Request {
	base := c.base
	if base == nil {
		base = s.base
	}
	r := (&http.Request{
		Method: c.method, URL: below(base, c.path, c.query), Host: base.Host,
		Header: c.header.Clone(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", "") // none, instead of Go's
	}
	if c.inspect {
		r.Header.Del("Accept-Encoding")
	}
	if c.body.size() > 0 {
		r.ContentLength = c.body.size()
		r.GetBody = func() (io.ReadCloser, error) { return &progress{c.body.open(), watch}, nil }
		r.Body, _ = r.GetBody()
	}
	s.auth(r.Header)
	return r
}

// watchdog cancels an exchange that stands still, or whose answer does not begin
// in time. Where both would count before the answer begins and silence is not the
// shorter, only the limit does: of two timers for one moment either might be
// first, and they mean different things.
type watchdog struct {
	cancel  context.CancelCauseFunc
	before  time.Duration // longest silence before the answer begins; zero for any
	after   time.Duration // and from then on
	silence *time.Timer
	limit   *time.Timer // nil for none
}

func newWatchdog(cancel context.CancelCauseFunc, silence, within time.Duration) *watchdog {
	w := &watchdog{cancel: cancel, before: silence, after: silence}
	w.silence = time.AfterFunc(silence, func() { cancel(errSilent) })
	if within > 0 {
		w.limit = time.AfterFunc(within, func() { cancel(errOverdue) })
		if silence >= within {
			w.silence.Stop()
			w.before = 0
		}
	}
	return w
}

// sending is told of progress of the request, answered of the answer's head, and
// reading of progress of the answer.
func (w *watchdog) sending() {
	if w.before > 0 {
		w.silence.Reset(w.before)
	}
}

func (w *watchdog) answered() {
	if w.limit != nil {
		w.limit.Stop()
	}
	w.reading()
}

func (w *watchdog) reading() { w.silence.Reset(w.after) }

func (w *watchdog) stop() {
	w.silence.Stop()
	if w.limit != nil {
		w.limit.Stop()
	}
	w.cancel(nil)
}

type progress struct {
	io.ReadCloser
	watch *watchdog
}

func (p *progress) Read(b []byte) (int, error) {
	p.watch.sending()
	return p.ReadCloser.Read(b)
}

type watchedBody struct {
	io.ReadCloser
	watch *watchdog
	ctx   context.Context
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.watch.reading() // the client's slowness in between is not the upstream's
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = causeOf(b.ctx, err)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.watch.stop()
	return b.ReadCloser.Close()
}
