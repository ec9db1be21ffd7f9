package session

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config"
)

func TestOpenCallClose(t *testing.T) {
	r := newRig(t)
	id := r.open()
	if got := r.engine.held(); got != 1 {
		t.Fatalf("%d leases held after open", got)
	}
	a := r.do("POST", id, call(7, "echo"))
	if a.status != 200 || a.body != `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}` {
		t.Fatalf("call: %+v", a)
	}
	if a = r.do("DELETE", id, ""); a.status != 204 {
		t.Fatalf("delete: %+v", a)
	}
	if r.engine.held() != 0 || r.up.live() != 0 || r.counts.open.Load() != 0 {
		t.Fatalf("left: %d leases, %d upstream sessions, %d counted", r.engine.held(), r.up.live(), r.counts.open.Load())
	}
	if a = r.do("POST", id, call(8, "echo")); a.status != 404 {
		t.Fatalf("call after delete: %+v", a)
	}
}

// Clients come over few connections that are used again, read the result of
// initialize and leave its stream at once or read it to its end. Each of them has
// its session then.
func TestASessionOutlivesTheStreamOfItsInitialize(t *testing.T) {
	r := newRig(t)
	r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 100000, PerPrincipal: 100000})
	var next atomic.Int64
	r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
		n := next.Add(1)
		id := fmt.Sprintf("stress-%d", n)
		r.up.mu.Lock()
		r.up.sessions[id] = true
		r.up.mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Mcp-Session-Id", id)
		_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-06-18\"}}\n\n")
		if n%3 == 0 {
			return // the result and the end come together
		}
		w.(http.Flusher).Flush()
		for range n % 5 {
			runtime.Gosched()
		}
		_, _ = io.WriteString(w, ": the end\n\n")
	}
	transport := &http.Transport{MaxConnsPerHost: 6, MaxIdleConnsPerHost: 6}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	for worker := range 12 {
		wg.Go(func() {
			for i := range 40 {
				resp, err := client.Do(r.request(t.Context(), "POST", "", initBody))
				if err != nil {
					t.Error(err)
					return
				}
				br := bufio.NewReader(resp.Body)
				if _, err := br.ReadString('\n'); err != nil {
					t.Error(err)
				}
				if (worker+i)%2 == 0 {
					_, _ = io.Copy(io.Discard, br)
				}
				_ = resp.Body.Close()
				id := resp.Header.Get("Mcp-Session-Id")
				resp, err = client.Do(r.request(t.Context(), "POST", id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`))
				if err != nil {
					t.Error(err)
					return
				}
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != 202 {
					t.Errorf("a new session answered %d %s", resp.StatusCode, text)
					return
				}
			}
		})
	}
	wg.Wait()
}

// lateFlush is a connection whose flush of the result returns when the client has
// read it and gone.
type lateFlush struct {
	http.ResponseWriter
	gone   <-chan struct{}
	result bool
}

func (w *lateFlush) Write(b []byte) (int, error) {
	w.result = w.result || bytes.Contains(b, []byte(`"result"`))
	return w.ResponseWriter.Write(b)
}

func (w *lateFlush) Flush() {
	w.ResponseWriter.(http.Flusher).Flush()
	if w.result {
		<-w.gone
	}
}

// The same at the worst moment: the client has left before the gateway knows that
// the result has gone out.
func TestAClientThatLeavesAsItReadsTheResultHasItsSession(t *testing.T) {
	opens := func(t *testing.T, r *rig, begun func()) {
		late := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.proxy.Serve(&lateFlush{ResponseWriter: w, gone: req.Context().Done()}, req, *r.caller.Load(), "browser")
		}))
		defer late.Close()
		req := r.request(t.Context(), "POST", "", initBody)
		req.URL.Host = strings.TrimPrefix(late.URL, "http://")
		resp, err := late.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		begun()
		if line, err := readUntil(bufio.NewReader(resp.Body), "result"); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		_ = resp.Body.Close()
		late.Close() // when the request has been served to its end
		if a := r.do("POST", resp.Header.Get("Mcp-Session-Id"), `{"jsonrpc":"2.0","method":"notifications/initialized"}`); a.status != 202 {
			t.Errorf("its new session answered %+v", a)
		}
	}
	t.Run("over HTTP", func(t *testing.T) {
		r := newRig(t)
		r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
			r.up.mu.Lock()
			r.up.sessions["s"] = true
			r.up.mu.Unlock()
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Mcp-Session-Id", "s")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-06-18\"}}\n\n")
		}
		opens(t, r, func() {})
	})
	t.Run("at a program that starts slowly", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "go-on")
		r := stdioRig(t, "wait", func(r *rig) { r.docs.doc.Env["SESSION_TEST_FILE"] = file })
		r.startsSlowly()
		opens(t, r, func() {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func readUntil(br *bufio.Reader, what string) (line string, err error) {
	for err == nil && !strings.Contains(line, what) {
		line, err = br.ReadString('\n')
	}
	return line, err
}
