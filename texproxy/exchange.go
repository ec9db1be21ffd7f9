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
	"strings"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/tracing"
)

var (
	errSilent = errors.New("the TeX service did not answer in time")
	errGone   = errors.New("the client has gone")
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

// upstreamConn takes a request's body in larger pieces than net/http has for it.
type upstreamConn struct{ net.Conn }

func (c upstreamConn) ReadFrom(r io.Reader) (int64, error) {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, r, *buf)
}

// call is one request to an upstream.
type call struct {
	method  string
	path    string // cleaned, escaped
	query   string
	header  http.Header // end-to-end headers that may go up
	body    content     // nil for none
	begins  bool        // it begins a compile, so whether it was sent matters
	inspect bool        // the answer is to be read
}

// exchange sends a call and returns its answer's head. sent tells, beside the
// error of a call that begins a compile, whether the upstream may have got the
// whole request. The answer dies when the upstream is silent for the service's timeout.
func (p *Proxy) exchange(ctx context.Context, s *service, c call) (resp *http.Response, sent bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watch := &watchdog{cancel: cancel, after: s.Timeout}
	watch.timer = time.AfterFunc(s.Timeout, watch.bark)
	defer func() {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				err = cause
			}
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
	r := (&http.Request{
		Method: c.method, URL: s.url(c.path, c.query), Host: s.base.Host,
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
	if c.body != nil && c.body.size() > 0 {
		r.ContentLength = c.body.size()
		r.GetBody = func() (io.ReadCloser, error) {
			return &progress{c.body.open(ctx), watch}, nil
		}
		r.Body, _ = r.GetBody()
	}
	s.auth(r.Header)
	resp, err = tracing.RoundTrip(p.transport, r)
	if err != nil {
		return nil, written.Load(), err
	}
	watch.reset()
	resp.Body = &watchedBody{resp.Body, watch, ctx}
	return resp, true, nil
}

// watchdog cancels an exchange that stands still.
type watchdog struct {
	timer  *time.Timer
	after  time.Duration
	cancel context.CancelCauseFunc
}

func (w *watchdog) bark()  { w.cancel(errSilent) }
func (w *watchdog) reset() { w.timer.Reset(w.after) }
func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

type progress struct {
	io.ReadCloser
	watch *watchdog
}

func (p *progress) Read(b []byte) (int, error) {
	p.watch.reset()
	return p.ReadCloser.Read(b)
}

type watchedBody struct {
	io.ReadCloser
	watch *watchdog
	ctx   context.Context
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.watch.reset() // the client's slowness in between is not the upstream's
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		if cause := context.Cause(b.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.watch.stop()
	return b.ReadCloser.Close()
}

// hopByHop headers end here, in both directions (RFC 9110 §7.6.1).
var hopByHop = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
}

// keptFromUpstream are a client's headers that are the gateway's business: its
// credentials, and what says where it comes from.
var keptFromUpstream = map[string]bool{
	"Authorization": true, "Cookie": true, "X-Api-Key": true, "Origin": true, "Forwarded": true,
	"Expect": true, "Content-Length": true, "Host": true, "Via": true, "X-Real-Ip": true,
	// What some frameworks take for the method or the path: it would undo what
	// was matched here.
	"X-Http-Method-Override": true, "X-Http-Method": true, "X-Method-Override": true, "X-Original-Url": true, "X-Rewrite-Url": true,
}

// keptFromClient are an upstream's headers that concern its own origin only.
var keptFromClient = map[string]bool{
	"Set-Cookie": true, "Www-Authenticate": true, "Alt-Svc": true, "Strict-Transport-Security": true, "Content-Length": true,
}

func requestHeader(h http.Header) http.Header {
	return passing(h, func(name string) bool {
		return keptFromUpstream[name] || strings.HasPrefix(name, "X-Vance-") || strings.HasPrefix(name, "X-Forwarded-") ||
			strings.HasPrefix(name, "Sec-") || strings.HasPrefix(name, "Access-Control-")
	})
}

func responseHeader(h http.Header) http.Header {
	return passing(h, func(name string) bool {
		return keptFromClient[name] || strings.HasPrefix(name, "Access-Control-") || strings.HasPrefix(name, "X-Vance-")
	})
}

func passing(h http.Header, kept func(string) bool) http.Header {
	named := map[string]bool{}
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	out := make(http.Header, len(h))
	for name, values := range h {
		name := http.CanonicalHeaderKey(name)
		if !hopByHop[name] && !named[name] && !kept(name) {
			out[name] = values
		}
	}
	return out
}

// relay writes an upstream's answer to the client: its status, its headers and
// its bytes. A client that has gone does not stop the reading where toEnd is
// set, so that the upstream can finish.
//
// ended is called with nil when the upstream has said everything, before the
// client can know: whoever has its answer and asks again finds the slot free. An
// answer that breaks off in the middle breaks off for the client too
// (http.ErrAbortHandler), since a short PDF must not look whole; ended gets the
// reason before that.
func relay(w http.ResponseWriter, r *http.Request, s *service, resp *http.Response, toEnd bool, ended func(error)) {
	defer resp.Body.Close()
	h := w.Header()
	for name, values := range responseHeader(resp.Header) {
		h[name] = values
	}
	for _, name := range []string{"Location", "Content-Location"} {
		if v := resp.Header.Get(name); v != "" {
			h.Set(name, s.rewrite(r, resp, v))
		}
	}
	if resp.ContentLength >= 0 && (resp.StatusCode != http.StatusNotModified || resp.ContentLength > 0) && resp.StatusCode != http.StatusNoContent {
		h.Set("Content-Length", fmt.Sprint(resp.ContentLength))
	}
	w.WriteHeader(resp.StatusCode)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	rc := http.NewResponseController(w)
	gone, told := false, false
	for read := int64(0); ; {
		n, err := resp.Body.Read(*buf)
		if read += int64(n); read == resp.ContentLength && !told && (err == nil || err == io.EOF) {
			ended(nil)
			told = true
		}
		if n > 0 && !gone {
			// A client that reads nothing for this long is not one.
			_ = rc.SetWriteDeadline(time.Now().Add(uploadSilence))
			if _, werr := w.Write((*buf)[:n]); werr != nil {
				gone = true
			} else if resp.ContentLength < 0 {
				_ = rc.Flush()
			}
			if gone && !toEnd {
				if !told {
					ended(errGone)
				}
				return
			}
		}
		switch {
		case err == io.EOF:
			if !told {
				ended(nil)
			}
			if gone {
				panic(http.ErrAbortHandler)
			}
			_ = rc.SetWriteDeadline(time.Time{})
			return
		case err != nil:
			if !told {
				ended(err)
			}
			panic(http.ErrAbortHandler)
		}
	}
}

// rewrite turns a Location that leads into the upstream into one that leads
// through the gateway. Any other stays: the gateway does not follow it.
func (s *service) rewrite(r *http.Request, resp *http.Response, location string) string {
	to, err := resp.Request.URL.Parse(location)
	if err != nil || to.Scheme != s.base.Scheme || !strings.EqualFold(to.Host, s.base.Host) {
		return location
	}
	rest, ok := strings.CutPrefix(to.EscapedPath(), s.base.EscapedPath())
	if !ok || (rest != "" && rest[0] != '/') {
		return location
	}
	through := url.URL{Path: "/", RawQuery: to.RawQuery, Fragment: to.Fragment}
	tail := strings.TrimPrefix(through.String(), "/")
	return clientBase(r) + rest + tail
}

type clientBaseKey struct{}

// withClientBase notes the path before rest, under which the client sees the
// service.
func withClientBase(r *http.Request, rest, fallback string) *http.Request {
	base, ok := strings.CutSuffix(r.URL.EscapedPath(), rest)
	if !ok || base == "" {
		base = fallback
	}
	return r.WithContext(context.WithValue(r.Context(), clientBaseKey{}, base))
}

func clientBase(r *http.Request) string {
	base, _ := r.Context().Value(clientBaseKey{}).(string)
	return base
}
