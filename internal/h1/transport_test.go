package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// inMemory is a body that remembers whether it was closed.
type inMemory struct {
	*bytes.Reader
	b      []byte
	closed atomic.Int32
}

func (m *inMemory) Bytes() []byte { return m.b }
func (m *inMemory) Close() error  { m.closed.Add(1); return nil }

func memory(s string) *inMemory { return &inMemory{Reader: bytes.NewReader([]byte(s)), b: []byte(s)} }

// server is a raw HTTP server: a test says what goes over the wire.
type server struct {
	l     net.Listener
	conns atomic.Int32
}

// serve lets talk answer each connection.
func serve(t testing.TB, talk func(c net.Conn, r *bufio.Reader)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{l: l}
	done := make(chan struct{})
	open := make(chan net.Conn, 1000)
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open <- c
			s.conns.Add(1)
			go func() {
				defer func() { _ = c.Close() }()
				talk(c, bufio.NewReader(c))
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		close(open)
		for c := range open {
			_ = c.Close()
		}
	})
	return s
}

// always answers every request on a connection with the same bytes.
func always(answer string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	}
}

func transport(t testing.TB) *Transport {
	d := &net.Dialer{}
	tr := NewTransport(&http.Transport{DialContext: d.DialContext, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 8 << 10})
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func post(ctx context.Context, s *server, body string, header ...string) *http.Request {
	u := &url.URL{Scheme: "http", Host: s.l.Addr().String(), Path: "/mcp", RawQuery: "a=b"}
	h := http.Header{"User-Agent": nil}
	for i := 0; i+1 < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return (&http.Request{Method: "POST", URL: u, Header: h, Body: memory(body), ContentLength: int64(len(body))}).WithContext(ctx)
}

func read(t *testing.T, resp *http.Response, err error) (string, error) {
	t.Helper()
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestWhatGoesOverTheWire(t *testing.T) {
	got := make(chan string, 1)
	s := serve(t, func(c net.Conn, r *bufio.Reader) {
		b := make([]byte, 4096)
		n, _ := c.Read(b) // one write arrives as one read
		got <- string(b[:n])
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	tr := transport(t)
	req := post(t.Context(), s, "hello", "X-One", "a", "X-One", "b")
	resp, err := tr.RoundTrip(req)
	if b, err := read(t, resp, err); err != nil || b != "ok" {
		t.Fatal(b, err)
	}
	want := "POST /mcp?a=b HTTP/1.1\r\nHost: " + s.l.Addr().String() + "\r\nX-One: a\r\nX-One: b\r\nContent-Length: 5\r\n\r\nhello"
	if g := <-got; g != want {
		t.Errorf("got %q\nwant %q", g, want)
	}
	if n := req.Body.(*inMemory).closed.Load(); n != 1 {
		t.Errorf("the body was closed %d times", n)
	}
}

func TestAConnectionIsUsedAgain(t *testing.T) {
	for _, c := range []struct {
		name, answer, body string
		again              bool
	}{
		{"after a length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", true},
		{"after no content", "HTTP/1.1 204 No Content\r\n\r\n", "", true},
		{"after a length of zero", "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", "", true},
		{"after chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", "ok", true},
		{"after an interim answer", "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", true},
		{"not where the server closes it", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", "ok", false},
		{"not with HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", false},
		{"not where more came than the answer", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "ok", false},
		{"not where more came than chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "ok", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, always(c.answer))
			tr := transport(t)
			for i := range 3 {
				resp, err := tr.RoundTrip(post(t.Context(), s, "x"))
				if b, err := read(t, resp, err); err != nil || b != c.body {
					t.Fatalf("request %d: %q, %v", i, b, err)
				}
			}
			want := int32(3)
			if c.again {
				want = 1
			}
			if n := s.conns.Load(); n != want {
				t.Errorf("%d connections, want %d", n, want)
			}
		})
	}
}

func TestAConnectionWhoseAnswerWasNotReadIsClosed(t *testing.T) {
	s := serve(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	tr := transport(t)
	for range 2 {
		resp, err := tr.RoundTrip(post(t.Context(), s, "x"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		_ = resp.Body.Close()
		if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("read %d bytes of a closed body, %v", n, err)
		}
	}
	if n := s.conns.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":                      "",
		"half a status line":           "HTTP/1.1 20",
		"not HTTP":                     "220 smtp ready\r\n\r\n",
		"a status that is no number":   "HTTP/1.1 2x0 OK\r\n\r\n",
		"half a head":                  "HTTP/1.1 200 OK\r\nContent-Le",
		"two lengths":                  "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"a negative length":            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"a length with a sign":         "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
		"an unknown transfer encoding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"a header without a colon":     "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
		"a head without an end":        "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: 0123456789\r\n", 1000),
		"other protocols":              "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
		"interim answers without end":  strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 50),
		"a body that ends early":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok",
		"chunks that end early":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok",
		"a chunk of a wrong length":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(c net.Conn, r *bufio.Reader) {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				_, _ = io.WriteString(c, answer)
			})
			resp, err := transport(t).RoundTrip(post(t.Context(), s, "x"))
			if b, err := read(t, resp, err); err == nil {
				t.Errorf("taken as %q", b)
			}
			if n := s.conns.Load(); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}

func TestAnAnswerThatTheConnectionsEndDelimits(t *testing.T) {
	s := serve(t, func(c net.Conn, r *bufio.Reader) {
		_, _ = http.ReadRequest(r)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nup to the end")
	})
	resp, err := transport(t).RoundTrip(post(t.Context(), s, "x"))
	if b, err := read(t, resp, err); err != nil || b != "up to the end" {
		t.Errorf("%q, %v", b, err)
	}
}

// What a server says on an idle connection is nobody's answer, and one that it
// has closed is not used: both are found before anything is sent.
func TestAnIdleConnectionThatChangedIsNotUsed(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(c net.Conn)
	}{
		{"the server closed it", func(c net.Conn) { _ = c.Close() }},
		{"the server spoke unasked", func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			answered := make(chan net.Conn, 10)
			s := serve(t, func(nc net.Conn, r *bufio.Reader) {
				for {
					if _, err := http.ReadRequest(r); err != nil {
						return
					}
					_, _ = r.Discard(1)
					_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					answered <- nc
				}
			})
			tr := transport(t)
			resp, err := tr.RoundTrip(post(t.Context(), s, "x"))
			if b, err := read(t, resp, err); err != nil || b != "ok" {
				t.Fatal(b, err)
			}
			idle := tr.pool.idle[s.l.Addr().String()][0]
			c.then(<-answered)
			// Wait until it has arrived here: a look from outside, without taking it.
			_ = idle.SetReadDeadline(time.Now().Add(10 * time.Second))
			for idle.silent() {
			}
			_ = idle.SetReadDeadline(time.Time{})
			resp, err = tr.RoundTrip(post(t.Context(), s, "x"))
			if b, err := read(t, resp, err); err != nil || b != "ok" {
				t.Errorf("%q, %v", b, err)
			}
			if n := s.conns.Load(); n != 2 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

func TestARequestThatMayHaveArrivedIsNotRepeated(t *testing.T) {
	var arrived atomic.Int32
	s := serve(t, func(c net.Conn, r *bufio.Reader) {
		for i := 0; ; i++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			arrived.Add(1)
			if i == 1 {
				return // closes without an answer
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	tr := transport(t)
	resp, err := tr.RoundTrip(post(t.Context(), s, "x"))
	if _, err := read(t, resp, err); err != nil {
		t.Fatal(err)
	}
	resp, err = tr.RoundTrip(post(t.Context(), s, "x"))
	if b, err := read(t, resp, err); err == nil {
		t.Errorf("got %q", b)
	}
	if n := arrived.Load(); n != 2 {
		t.Errorf("%d requests arrived", n)
	}
}

var errMine = errors.New("mine")

func TestTheContextEndsARequest(t *testing.T) {
	const body = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
	for _, c := range []struct{ name, answer string }{{"before its answer", ""}, {"in its answer", body}} {
		t.Run(c.name, func(t *testing.T) {
			in := make(chan struct{})
			s := serve(t, func(c2 net.Conn, r *bufio.Reader) {
				_, _ = http.ReadRequest(r)
				_, _ = io.WriteString(c2, c.answer)
				close(in)
				_, _ = r.ReadByte()
				_, _ = r.ReadByte()
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() { <-in; cancel(errMine) }()
			resp, err := transport(t).RoundTrip(post(ctx, s, "x"))
			if b, err := read(t, resp, err); !errors.Is(err, errMine) {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	t.Run("before it is sent", func(t *testing.T) {
		s := serve(t, always(""))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errMine)
		req := post(ctx, s, "x")
		if _, err := transport(t).RoundTrip(req); !errors.Is(err, errMine) { //nolint:bodyclose // there is none
			t.Error(err)
		}
		if n := req.Body.(*inMemory).closed.Load(); n != 1 || s.conns.Load() != 0 {
			t.Errorf("closed %d times, %d connections", n, s.conns.Load())
		}
	})
}

// Whatever is unusual is net/http's to send or to refuse.
func TestWhatNetHTTPSends(t *testing.T) {
	s := serve(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	for _, c := range []struct {
		name string
		edit func(*http.Request)
		ok   bool
	}{
		{"a large body", func(r *http.Request) {
			r.Body, r.ContentLength = memory(strings.Repeat("x", MaxBody+1)), MaxBody+1
		}, true},
		{"a body that is not in memory", func(r *http.Request) { r.Body = io.NopCloser(iotest.OneByteReader(strings.NewReader("x"))) }, true},
		{"no body", func(r *http.Request) { r.Body, r.ContentLength = nil, 0 }, true},
		{"a GET", func(r *http.Request) { r.Method, r.Body, r.ContentLength = "GET", nil, 0 }, true},
		{"a DELETE with a body", func(r *http.Request) { r.Method = "DELETE" }, true},
		{"one that closes", func(r *http.Request) { r.Close = true }, true},
		{"a length that is not the body's", func(r *http.Request) { r.ContentLength = 2 }, false},
		{"a line break in a value", func(r *http.Request) { r.Header.Set("X-A", "a\r\nX-B: b") }, false},
		{"a line break in a name", func(r *http.Request) { r.Header["X-A: a\r\nX-B"] = []string{"b"} }, false},
		{"a space in a name", func(r *http.Request) { r.Header["Content-Length "] = []string{"7"} }, false},
		{"an empty name", func(r *http.Request) { r.Header[""] = []string{"b"} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := post(t.Context(), s, "x")
			c.edit(req)
			resp, err := transport(t).RoundTrip(req)
			if b, err := read(t, resp, err); (err == nil && b == "ok") != c.ok {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
}

// Framing is never a caller's.
func TestHeadersThatFrameAreNotCopied(t *testing.T) {
	for _, name := range []string{"Content-Length", "content-length", "Transfer-Encoding", "Host", "Trailer", "Connection", "Upgrade", "Expect"} {
		req := &http.Request{Method: "POST", URL: &url.URL{Scheme: "http", Host: "a"}, Header: http.Header{name: {"5"}}, ContentLength: 1}
		if appendRequest(new(bytes.Buffer), req, []byte("x")) {
			t.Errorf("%s was copied", name)
		}
	}
}

func TestIdleConnectionsAreDropped(t *testing.T) {
	s := serve(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	tr := transport(t)
	resp, err := tr.RoundTrip(post(t.Context(), s, "x"))
	if _, err := read(t, resp, err); err != nil {
		t.Fatal(err)
	}
	addr := s.l.Addr().String()
	tr.pool.idle[addr][0].idle = time.Now().Add(-time.Hour)
	tr.pool.drop()
	if len(tr.pool.idle) != 0 || tr.pool.sweep != nil {
		t.Errorf("%d addresses left, timer %v", len(tr.pool.idle), tr.pool.sweep)
	}
	resp, err = tr.RoundTrip(post(t.Context(), s, "x"))
	if _, err := read(t, resp, err); err != nil {
		t.Fatal(err)
	}
	tr.CloseIdleConnections()
	if c := tr.pool.get(addr); c != nil {
		t.Error("a connection survived")
	}
}

// FuzzRequest: whatever headers and path a request has, a server that reads what
// was written sees one request with this very body, and net/http agrees.
func FuzzRequest(f *testing.F) {
	f.Add("/mcp", "a=b", "X-A", "b", "body")
	f.Add("/a b", "", "Content-Length ", "7", "{}")
	f.Add("/\r\nX: y", "\x00", "X-A\r\nB", "c\r\n\r\nGET / HTTP/1.1", "x")
	f.Add("//evil", "?", "Transfer-encoding", "chunked", "0\r\n\r\n")
	f.Fuzz(func(t *testing.T, path, query, name, value, body string) {
		if body == "" {
			return
		}
		req := &http.Request{Method: "POST", URL: &url.URL{Scheme: "http", Host: "upstream:80", Path: path, RawQuery: query},
			Header: http.Header{name: {value}}, ContentLength: int64(len(body))}
		var out bytes.Buffer
		if !appendRequest(&out, req, []byte(body)) {
			return
		}
		r := bufio.NewReader(bytes.NewReader(out.Bytes()))
		got, err := http.ReadRequest(r)
		if err != nil {
			t.Fatalf("%v: %q", err, out.Bytes())
		}
		b, err := io.ReadAll(got.Body)
		if err != nil || string(b) != body || got.Host != "upstream:80" || len(got.TransferEncoding) > 0 {
			t.Fatalf("%q, %v: %q", b, err, out.Bytes())
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Fatalf("more than one request: %q", out.Bytes())
		}
		if h := got.Header.Get(name); h != value {
			t.Fatalf("the header says %q, not %q", h, value)
		}
	})
}

// FuzzAnswer: whatever a server answers, it is read to an end within its bounds,
// and a second request never sees a byte of it.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.0 200\r\n\r\nx", "HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\nhello",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var used []*wire
		next := &http.Transport{MaxResponseHeaderBytes: 4 << 10, DialContext: func(context.Context, string, string) (net.Conn, error) {
			w := &wire{in: bytes.NewReader(raw)}
			used = append(used, w)
			return w, nil
		}}
		tr := NewTransport(next)
		for i := range 2 {
			req := &http.Request{Method: "POST", URL: &url.URL{Scheme: "http", Host: "a"}, Header: http.Header{}, Body: memory("x"), ContentLength: 1}
			resp, err := tr.RoundTrip(req.WithContext(t.Context()))
			if err == nil {
				if resp.StatusCode < 200 {
					t.Fatalf("status %d", resp.StatusCode)
				}
				if n, _ := io.Copy(io.Discard, resp.Body); n > int64(len(raw)) {
					t.Fatalf("%d bytes of %d", n, len(raw))
				}
				_ = resp.Body.Close()
			}
			if len(used) != i+1 {
				t.Fatal("a connection that cannot be looked at was used twice")
			}
		}
		tr.CloseIdleConnections()
		for _, w := range used {
			if !w.closed {
				t.Fatal("a connection was left open")
			}
		}
	})
}

// wire is a connection whose other side has said everything already.
type wire struct {
	net.Conn
	in     io.Reader
	closed bool
}

func (w *wire) Read(p []byte) (int, error)  { return w.in.Read(p) }
func (w *wire) Write(p []byte) (int, error) { return len(p), nil }
func (w *wire) Close() error                { w.closed = true; return nil }

func BenchmarkPost(b *testing.B) {
	s := serve(b, always("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"))
	run := func(b *testing.B, rt http.RoundTripper) {
		b.ReportAllocs()
		for b.Loop() {
			req := post(b.Context(), s, "x", "Content-Type", "application/json", "Accept", "application/json")
			resp, err := rt.RoundTrip(req)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				b.Fatal(err)
			}
			_ = resp.Body.Close()
		}
	}
	tr := transport(b)
	b.Run("h1", func(b *testing.B) { run(b, tr) })
	b.Run("net/http", func(b *testing.B) { run(b, tr.next) })
	if n := s.conns.Load(); n > 4 {
		b.Errorf("%d connections", n)
	}
}
