package session

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// sseUpstream is go-sdk's server of the HTTP+SSE transport.
type sseUpstream struct {
	mu      sync.Mutex
	streams int
	cut     context.CancelFunc // ends the newest stream from the server's side
	closed  chan struct{}      // a word for each stream that has ended
}

func (u *sseUpstream) open() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.streams
}

func sseRig(t *testing.T, edit ...func(*rig)) (*rig, *sseUpstream) {
	t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "progress"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		return nil, nil, err
	})
	u := &sseUpstream{closed: make(chan struct{}, 10)}
	handler := mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			ctx, cancel := context.WithCancel(r.Context())
			u.mu.Lock()
			u.streams++
			u.cut = cancel
			u.mu.Unlock()
			defer func() {
				u.mu.Lock()
				defer u.mu.Unlock()
				u.streams--
				u.closed <- struct{}{}
			}()
			r = r.WithContext(ctx)
		}
		handler.ServeHTTP(w, r)
	}))
	at, err := url.Parse(s.URL + "/sse")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	edit = append([]func(*rig){func(r *rig) { r.docs.doc.Transport, r.docs.doc.URL = "sse", at }}, edit...)
	return newRig(t, edit...), u
}

const sseProgress = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"progress","arguments":{},"_meta":{"progressToken":"p"}}}`

func TestASessionInFrontOfAnSSEServer(t *testing.T) {
	r, u := sseRig(t)
	id := r.open()
	if h := r.engine.holders(); len(h) != 1 || !h[0].PodBound || u.open() != 1 {
		t.Errorf("%+v, %d streams", h, u.open())
	}
	if a := r.do("POST", id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); a.status != 202 {
		t.Errorf("%+v", a)
	}
	a := r.do("POST", id, sseProgress)
	if a.status != 200 || !strings.Contains(a.body, "notifications/progress") || !strings.Contains(a.body, `"id":7`) {
		t.Errorf("%+v", a)
	}
	s := r.begin("GET", id, "")
	if s.resp.StatusCode != 200 {
		t.Errorf("%+v", s.resp)
	}
	if a := r.do("DELETE", id, ""); a.status != 204 {
		t.Errorf("%+v", a)
	}
	if _, err := s.rest(); err != nil {
		t.Errorf("the GET stream: %v", err)
	}
	r.childless()
	<-u.closed
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
}

func TestAnSSEServerEndsItsStream(t *testing.T) {
	r, u := sseRig(t)
	id := r.open()
	s := r.begin("GET", id, "")
	u.cut()
	if _, err := s.rest(); err != nil {
		t.Error(err)
	}
	r.childless()
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
}

func TestARevocationClosesTheStreamOfAnSSEServer(t *testing.T) {
	r, u := sseRig(t)
	id := r.open()
	if err := r.proxy.OnRevoked(t.Context(), r.engine.revoke(lease.ReasonRevoke)); err != nil {
		t.Fatal(err)
	}
	<-u.closed
	r.do("POST", id, call(1, "x")).want(t, 404, 410, "LEASE_LOST")
}

func TestAnSSEServerThatIsNoneLeavesNoLease(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		says   string
	}{
		{"a server without that transport", http.NotFound, "it answered HTTP 404"},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "no event stream at this address"},
		{"one that wants another credential", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, "refused the gateway's credential (HTTP 401)"},
		{"one that names another host", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("event: endpoint\ndata: http://127.0.0.2/m\n\n"))
		}, "not at the host"},
		{"one that ends at once", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("event: endpoint\ndata: /m\n\n"))
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(c.answer)
			defer s.Close()
			at, err := url.Parse(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, func(r *rig) { r.docs.doc.Transport, r.docs.doc.URL = "sse", at })
			a := r.do("POST", "", initBody)
			if e := a.want(t, 200, 502, "UPSTREAM_UNAVAILABLE"); !strings.Contains(e.Error.Message, c.says) || a.header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%+v", a)
			}
			r.childless()
		})
	}
}
