package session

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"testing"
)

// An idle session costs no goroutine and at most 5 kB.
func TestAnIdleSessionIsCheap(t *testing.T) {
	r := newRig(t)
	r.limits.Load().PerPrincipal = 100_000
	r.open() // what is made once
	measure := func() (uint64, int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, runtime.NumGoroutine()
	}
	const n = 500
	heap, routines := measure()
	for range n {
		w := httptest.NewRecorder()
		req := httptest.NewRequest("POST", "/browser", strings.NewReader(initBody))
		req.Header.Set("Content-Type", "application/json")
		r.proxy.Serve(w, req, *r.caller.Load(), "browser")
		if w.Code != 200 {
			t.Fatal(w.Body)
		}
	}
	r.up.mu.Lock()
	r.up.seen, r.up.bodies = nil, nil
	r.up.mu.Unlock()
	after, routinesAfter := measure()
	// What the test's own lease engine and upstream keep is in the figure too.
	per := int64(after-heap) / n
	t.Logf("%d bytes a session, %d goroutines more", per, routinesAfter-routines)
	if per > 5<<10 || routinesAfter-routines > 20 {
		t.Errorf("%d bytes a session, %d goroutines more", per, routinesAfter-routines)
	}
}

// BenchmarkCall is one tools/call through the handler, beside the plain reverse
// proxy in front of the same upstream.
func BenchmarkCall(b *testing.B) {
	answer := []byte(`{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"ok"}]}}`)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Mcp-Session-Id", "upstream-1")
		if r.ContentLength == int64(len(initBody)) {
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
			return
		}
		_, _ = w.Write(answer)
	}))
	defer up.Close()
	u, err := url.Parse(up.URL)
	if err != nil {
		b.Fatal(err)
	}
	body := call(7, "echo")
	run := func(b *testing.B, h http.Handler, id string) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				w := &discard{h: http.Header{}}
				req := httptest.NewRequest("POST", "/browser", strings.NewReader(body))
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Accept", "application/json, text/event-stream")
				req.Header.Set("Mcp-Session-Id", id)
				h.ServeHTTP(w, req)
				if w.status != 200 || !bytes.Equal(w.body, answer) {
					b.Fatalf("HTTP %d: %s", w.status, w.body)
				}
			}
		})
	}
	b.Run("gateway", func(b *testing.B) {
		r := benchRig(b, u)
		w := httptest.NewRecorder()
		req := httptest.NewRequest("POST", "/browser", strings.NewReader(initBody))
		req.Header.Set("Content-Type", "application/json")
		r.proxy.Serve(w, req, *r.caller.Load(), "browser")
		run(b, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.proxy.Serve(w, req, *r.caller.Load(), "browser")
		}), w.Header().Get("Mcp-Session-Id"))
	})
	b.Run("reverse proxy", func(b *testing.B) {
		p := httputil.NewSingleHostReverseProxy(u)
		p.Transport = &http.Transport{MaxIdleConnsPerHost: 1024}
		run(b, p, "upstream-1")
	})
}

type discard struct {
	h      http.Header
	status int
	body   []byte
}

func (d *discard) Header() http.Header    { return d.h }
func (d *discard) WriteHeader(status int) { d.status = status }
func (d *discard) Write(b []byte) (int, error) {
	d.body = append(d.body, b...)
	return len(b), nil
}
func (d *discard) Flush() {}
