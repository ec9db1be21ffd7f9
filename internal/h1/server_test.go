package h1_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vancetope/mcp-lease-gateway/internal/h1"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const longest = 20 * time.Second

func behind(h http.Handler, l *output.Buffer) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: longest, IdleTimeout: longest, ErrorLog: log.New(l, "", 0)}
}

// serve starts a server of h and returns its address.
func serve(t *testing.T, h http.Handler) (addr string, s *h1.Server, l *output.Buffer) {
	t.Helper()
	l = &output.Buffer{}
	s = h1.NewServer(behind(h, l))
	return run(t, s.Serve, s.Close), s, l
}

func run(t *testing.T, serve func(net.Listener) error, end func() error) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serve(listener) }()
	t.Cleanup(func() {
		_ = end()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return listener.Addr().String()
}

func dial(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(longest))
	return c, bufio.NewReader(c)
}

func post(path, body string, lines ...string) string {
	more := ""
	for _, l := range lines {
		more += l + "\r\n"
	}
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\n%s\r\n%s", path, len(body), more, body)
}

func answer(t *testing.T, br *bufio.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// short reports by which way a request came.
func short(w http.ResponseWriter) bool {
	return fmt.Sprintf("%T", w) == "*h1.response"
}

// theHandler does by path what handlers do.
func theHandler(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	big := strings.Repeat("0123456789abcdef", 20_000) // 320 kB
	switch r.URL.Path {
	case "/echo":
		fmt.Fprintf(w, "%s %s %s %d %v %v %q %q", r.Method, r.RequestURI, r.Host, r.ContentLength, r.Header["X-A"], r.Header["X-B"], r.TransferEncoding, body)
	case "/length":
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "12345")
	case "/longer":
		w.Header().Set("Content-Length", "5")
		_, err := io.WriteString(w, "123456")
		if !errors.Is(err, http.ErrContentLength) {
			panic("no error")
		}
		_, _ = io.WriteString(w, "12345")
	case "/shorter":
		w.Header().Set("Content-Length", "9")
		_, _ = io.WriteString(w, "12345")
	case "/nothing":
	case "/accepted":
		w.WriteHeader(http.StatusAccepted)
	case "/none":
		w.Header().Set("X-Other", "1")
		w.WriteHeader(http.StatusNoContent)
		if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
			panic("no error")
		}
	case "/typed":
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
		}
	case "/big":
		_, _ = io.WriteString(w, big)
	case "/pieces":
		for i := 0; i < len(big); i += 5000 {
			_, _ = io.WriteString(w, big[i:min(i+5000, len(big))])
		}
	case "/bigflushed":
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, big)
		_, _ = io.WriteString(w, "end")
	case "/biglength":
		w.Header().Set("Content-Length", fmt.Sprint(len(big)))
		_, _ = io.WriteString(w, big[:1000])
		_, _ = io.WriteString(w, big[1000:])
	case "/closes":
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "bye")
	case "/inject":
		w.Header().Set("X-Evil", "a\r\nSet-Cookie: b\r\n\r\nHTTP/1.1 200 OK")
		w.Header().Set("Bad Name\r\n", "x")
		_, _ = io.WriteString(w, "ok")
	case "/twice":
		w.WriteHeader(http.StatusTeapot)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "ok")
	case "/odd":
		w.WriteHeader(799)
	case "/early":
		w.Header().Set("Link", "x")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "ok")
	case "/abort":
		panic(http.ErrAbortHandler)
	case "/abortlate":
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, "part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	default:
		http.NotFound(w, r)
	}
}

var (
	dated = regexp.MustCompile(`Date: [^\r]+\r\n`)
	heads = regexp.MustCompile(`(HTTP/1\.1 \d+ [^\r]*\r\n)((?:[^\r]+\r\n)*)\r\n`)
)

// alike takes out what two servers may do differently: the time, and the order
// of the fields.
func alike(text string) string {
	text = dated.ReplaceAllString(text, "Date: now\r\n")
	return heads.ReplaceAllStringFunc(text, func(head string) string {
		lines := strings.SplitAfter(strings.TrimSuffix(head, "\r\n"), "\r\n")
		slices.Sort(lines[1:])
		return strings.Join(lines, "") + "\r\n"
	})
}

// everything sends bytes and returns all that comes until the server closes or
// the answers that are expected are there.
func everything(t *testing.T, addr string, pieces ...string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(longest))
	go func() {
		for _, p := range pieces {
			if _, err := io.WriteString(c, p); err != nil {
				return
			}
		}
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	text, _ := io.ReadAll(c) // a reset ends it as well
	return alike(string(text))
}

// last is a request after which both servers close.
const last = "GET /echo HTTP/1.1\r\nHost: last\r\nConnection: close\r\n\r\n"

// What a client reads is what it would have read of net/http, whatever it sends.
func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	h := http.HandlerFunc(theHandler)
	addr, _, _ := serve(t, h)
	plain := behind(h, &output.Buffer{})
	want := run(t, plain.Serve, plain.Close)
	large, larger := strings.Repeat("l", 20_000), strings.Repeat("L", 200_000)
	for name, pieces := range map[string][]string{
		"echo":                      {post("/echo?a=b", "body", "X-A: 1", "x-a:  2 ", "X-B:")},
		"without a body":            {post("/echo", "")},
		"a large body":              {post("/echo", large)},
		"a larger body":             {post("/echo", larger)},
		"a body in pieces":          {post("/echo", "body")[:40], post("/echo", "body")[40:]},
		"several after one another": {post("/echo", "1"), post("/length", "2"), post("/nothing", ""), post("/accepted", "")},
		"several at once":           {post("/echo", "1") + post("/echo", large) + post("/echo", "3") + post("/echo", "4")},
		"more at once than fit":     {strings.Repeat(post("/echo", "1"), 300)},
		"a GET between":             {post("/echo", "1") + "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n" + post("/echo", "2")},
		"chunks":                    {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"},
		"two lengths":               {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"},
		"no host":                   {"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"},
		"two hosts":                 {post("/echo", "abc", "Host: b")},
		"an old version":            {"POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"},
		"a target that is none":     {post("/%zz", "abc")},
		"bare line ends":            {strings.ReplaceAll(post("/echo", "abc"), "\r\n", "\n")},
		"a folded line":             {post("/echo", "abc", "X-A: 1", " 2")},
		"garbage":                   {"\x00\x01\x02\r\n\r\n"},
		"half a head":               {"POST /echo HT"},
		"half a body":               {post("/echo", "abcd")[:len(post("/echo", "abcd"))-2]},
		"nothing":                   {""},
		"a wait for 100":            {post("/echo", "abc", "Expect: 100-continue")},
		"a long header":             {post("/echo", "abc", "X-A: "+strings.Repeat("x", 30_000))},
		"too long":                  {post("/longer", "")},
		"too short":                 {post("/shorter", "")},
		"no content":                {post("/none", "")},
		"a stream":                  {post("/typed", "")},
		"its own close":             {post("/closes", "")},
		"injected lines":            {post("/inject", "")},
		"two statuses":              {post("/twice", "")},
		"an odd status":             {post("/odd", "")},
		"early hints":               {post("/early", "")},
		"an abort":                  {post("/abort", "")},
		"an abort in the middle":    {post("/abortlate", "")},
		"nobody there":              {post("/other", "")},
		"a length of its own":       {post("/biglength", "")},
	} {
		t.Run(name, func(t *testing.T) {
			pieces := append(pieces, last)
			got, should := everything(t, addr, pieces...), everything(t, want, pieces...)
			if got != should {
				t.Errorf("got\n%.2000q\nwant\n%.2000q", got, should)
			}
		})
	}
	// Here the frames of the chunks may differ, and what they say may not.
	for _, path := range []string{"/big", "/pieces", "/bigflushed"} {
		c, br := dial(t, addr)
		d, dr := dial(t, want)
		for range 2 {
			_, _ = io.WriteString(c, post(path, "x"))
			_, _ = io.WriteString(d, post(path, "x"))
			r1, t1 := answer(t, br)
			r2, t2 := answer(t, dr)
			if t1 != t2 || r1.Header.Get("Content-Type") != r2.Header.Get("Content-Type") || r1.ContentLength != r2.ContentLength {
				t.Errorf("%s: %v %v, %d and %d bytes", path, r1, r2, len(t1), len(t2))
			}
		}
	}
}

// Wherever a request is cut into segments, it arrives.
func TestARequestInTwoSegments(t *testing.T) {
	addr, _, _ := serve(t, http.HandlerFunc(theHandler))
	text := post("/echo", `{"a":1}`, "X-A: b")
	for i := range len(text) {
		c, br := dial(t, addr)
		for range 2 {
			_, _ = io.WriteString(c, text[:i])
			_, _ = io.WriteString(c, text[i:])
			if resp, body := answer(t, br); resp.StatusCode != 200 || !strings.Contains(body, `{\"a\":1}`) {
				t.Fatalf("cut at %d: %d %s", i, resp.StatusCode, body)
			}
		}
		c.Close()
	}
}

// The plain requests of a connection go the short way until one that is not; from
// there on all go the other.
func TestWhichWay(t *testing.T) {
	addr, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, short(w))
	}))
	c, br := dial(t, addr)
	ask := func(text, want string) {
		t.Helper()
		_, _ = io.WriteString(c, text)
		if _, got := answer(t, br); got != want {
			t.Errorf("%.40q went the short way: %s", text, got)
		}
	}
	ask(post("/", "a"), "true")
	ask(post("/", strings.Repeat("a", 70_000)), "false")
	ask(post("/", "a"), "false")
	c, br = dial(t, addr)
	ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "false")
}

func TestTheHandlerSeesItsConnection(t *testing.T) {
	addr, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		_, srv := r.Context().Value(http.ServerContextKey).(*http.Server)
		rc := http.NewResponseController(w)
		fmt.Fprint(w, r.RemoteAddr, " ", local, " ", srv, " ", rc.EnableFullDuplex(), rc.SetReadDeadline(time.Now()), rc.SetWriteDeadline(time.Now().Add(longest)))
	}))
	c, br := dial(t, addr)
	for range 3 {
		_, _ = io.WriteString(c, post("/", "x"))
		if _, got := answer(t, br); got != fmt.Sprint(c.LocalAddr(), " ", addr, " true <nil> <nil> <nil>") {
			t.Error(got)
		}
	}
}

// A client that goes ends its request; one that waits, or sends the next one
// meanwhile, does not, however long it lasts.
func TestTheClientIsWatched(t *testing.T) {
	in, out := make(chan context.Context), make(chan struct{})
	addr, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == "wait" {
			in <- r.Context()
			<-out
		}
		fmt.Fprintf(w, "%s %v", body, r.Context().Err())
	}))
	lasts := func() { time.Sleep(100 * time.Millisecond) } // longer than nobody looks

	t.Run("one that goes", func(t *testing.T) {
		c, _ := dial(t, addr)
		_, _ = io.WriteString(c, post("/", "wait"))
		ctx := <-in
		c.Close()
		select {
		case <-ctx.Done():
		case <-time.After(longest):
			t.Error("it goes on")
		}
		out <- struct{}{}
	})
	t.Run("one that goes at once", func(t *testing.T) {
		c, _ := dial(t, addr)
		_, _ = io.WriteString(c, post("/", "wait"))
		c.Close()
		ctx := <-in
		select {
		case <-ctx.Done():
		case <-time.After(longest):
			t.Error("it goes on")
		}
		out <- struct{}{}
	})
	t.Run("one that waits", func(t *testing.T) {
		c, br := dial(t, addr)
		for range 3 {
			_, _ = io.WriteString(c, post("/", "wait"))
			<-in
			lasts()
			out <- struct{}{}
			if _, got := answer(t, br); got != "wait <nil>" {
				t.Error(got)
			}
			_, _ = io.WriteString(c, post("/", "next"))
			if _, got := answer(t, br); got != "next <nil>" {
				t.Error(got)
			}
		}
	})
	t.Run("one that sends the next", func(t *testing.T) {
		c, br := dial(t, addr)
		_, _ = io.WriteString(c, post("/", "wait"))
		<-in
		lasts()
		_, _ = io.WriteString(c, post("/", "one")+post("/", strings.Repeat("2", 10_000))+post("/", "wait"))
		lasts()
		out <- struct{}{}
		for _, want := range []string{"wait", "one", strings.Repeat("2", 10_000)} {
			if _, got := answer(t, br); got != want+" <nil>" {
				t.Errorf("%.40s", got)
			}
		}
		<-in
		out <- struct{}{}
		if _, got := answer(t, br); got != "wait <nil>" {
			t.Error(got)
		}
	})
	t.Run("one whose next is not plain", func(t *testing.T) {
		c, br := dial(t, addr)
		_, _ = io.WriteString(c, post("/", "wait"))
		<-in
		lasts()
		_, _ = io.WriteString(c, last)
		lasts()
		out <- struct{}{}
		for _, want := range []string{"wait", ""} {
			if _, got := answer(t, br); got != want+" <nil>" {
				t.Errorf("%.40s", got)
			}
		}
	})
	t.Run("one that reads no more", func(t *testing.T) {
		gone := make(chan error, 1)
		addr, _, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					_, again := w.Write([]byte("x"))
					gone <- errors.Join(r.Context().Err(), again)
					return
				}
			}
		}))
		c, _ := dial(t, addr)
		_, _ = io.WriteString(c, post("/", "x"))
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("the context: %v", err)
		}
	})
}

func TestAPanicEndsTheConnectionAndIsLogged(t *testing.T) {
	addr, _, l := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") }))
	c, br := dial(t, addr)
	_, _ = io.WriteString(c, post("/", "x"))
	if _, err := br.ReadByte(); err == nil {
		t.Error("something was answered")
	}
	if got := l.String(); !strings.Contains(got, "oops") || !strings.Contains(got, "server_test.go") {
		t.Errorf("logged: %s", got)
	}
}

func TestShutdown(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			in <- struct{}{}
			<-out
		}
		fmt.Fprint(w, "done")
	})
	start := func(t *testing.T) (s *h1.Server, idle, busy *bufio.Reader, addr string) {
		addr, s, _ = serve(t, h)
		c, idle := dial(t, addr)
		_, _ = io.WriteString(c, post("/", "x"))
		answer(t, idle)
		c, busy = dial(t, addr)
		_, _ = io.WriteString(c, post("/wait", "x"))
		<-in
		return s, idle, busy, addr
	}
	t.Run("waits for requests and for nothing else", func(t *testing.T) {
		s, idle, busy, addr := start(t)
		fresh, silent := dial(t, addr) // has said nothing
		_ = fresh
		ended := make(chan error, 1)
		go func() { ended <- s.Shutdown(t.Context()) }()
		for _, br := range []*bufio.Reader{idle, silent} {
			if _, err := br.ReadByte(); err == nil {
				t.Error("an idle connection says something")
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		out <- struct{}{}
		resp, text := answer(t, busy)
		if text != "done" || !resp.Close {
			t.Errorf("%q, close %v", text, resp.Close)
		}
		if _, err := busy.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection goes on: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			t.Error("it takes new connections")
		}
	})
	t.Run("ends with its time, and Close cuts what is left", func(t *testing.T) {
		s, _, busy, _ := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := busy.ReadByte(); err == nil {
			t.Error("an answer after Close")
		}
		out <- struct{}{}
	})
	t.Run("before Serve", func(t *testing.T) {
		s := h1.NewServer(behind(h, &output.Buffer{}))
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// A client that says nothing, and one that asks no more, lose their connections.
func TestSilentConnectionsEnd(t *testing.T) {
	rest := behind(http.HandlerFunc(theHandler), &output.Buffer{})
	rest.ReadHeaderTimeout, rest.IdleTimeout = 50*time.Millisecond, 50*time.Millisecond
	s := h1.NewServer(rest)
	addr := run(t, s.Serve, s.Close)
	_, br := dial(t, addr)
	if _, err := br.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("silent from the start: %v", err)
	}
	c, br := dial(t, addr)
	_, _ = io.WriteString(c, post("/nothing", ""))
	answer(t, br)
	if _, err := br.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("silent after a request: %v", err)
	}
	c, br = dial(t, addr)
	_, _ = io.WriteString(c, "POST /") // net/http judges it then
	if text, err := io.ReadAll(br); err != nil || strings.Contains(string(text), " 200 ") {
		t.Errorf("silent in the middle: %q %v", text, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	addr, _, _ := serve(t, http.HandlerFunc(theHandler))
	var wg sync.WaitGroup
	for i := range 20 {
		c, br := dial(t, addr)
		wg.Go(func() {
			for n := range 30 {
				body := strings.Repeat(fmt.Sprint(i), 1+n*i*10)
				if _, err := io.WriteString(c, post("/echo", body)); err != nil {
					t.Error(err)
					return
				}
				resp, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Error(err)
					return
				}
				text, err := io.ReadAll(resp.Body)
				if err != nil || !strings.HasSuffix(string(text), fmt.Sprintf(" %q", body)) {
					t.Errorf("%v %.100q", err, text)
					return
				}
			}
		})
	}
	wg.Wait()
}

// With TLS all requests are net/http's, of HTTP/2 and of HTTP/1.1.
func TestTLS(t *testing.T) {
	certified := httptest.NewTLSServer(http.NotFoundHandler())
	defer certified.Close()
	rest := behind(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %v", r.Proto, body, short(w))
	}), &output.Buffer{})
	rest.TLSConfig = &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
	s := h1.NewServer(rest)
	addr := run(t, s.Serve, s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	for proto, http2 := range map[string]bool{"HTTP/2.0": true, "HTTP/1.1": false} {
		tr := &http.Transport{ForceAttemptHTTP2: http2, TLSClientConfig: &tls.Config{RootCAs: roots}}
		defer tr.CloseIdleConnections()
		for range 2 {
			resp, err := (&http.Client{Transport: tr, Timeout: longest}).Post("https://"+addr+"/", "text/plain", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(text) != proto+" body false" {
				t.Errorf("%s: %q %v", proto, text, err)
			}
		}
	}
	silent, br := dial(t, addr) // shakes no hands
	odd, oddReader := dial(t, addr)
	if _, err := io.WriteString(odd, "POST / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(oddReader); strings.Contains(string(text), " 200 ") { // an alert, or a reset
		t.Errorf("%q", text)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := br.ReadByte(); err == nil {
		t.Error("a connection in its handshake outlives Close")
	}
	_ = silent
}
