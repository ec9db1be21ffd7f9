package peers_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/gateway/peers"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// stranger is somebody who has written its address into the store: it keeps what
// it is sent, and answers as a pod would.
func stranger(t *testing.T, answer http.HandlerFunc) (pod lease.Pod, got chan *http.Request) {
	t.Helper()
	got = make(chan *http.Request, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		kept := r.Clone(context.Background())
		kept.Body = io.NopCloser(bytes.NewReader(body))
		got <- kept
		answer(w, r)
	}))
	t.Cleanup(srv.Close)
	return lease.Pod{ID: "pod-b", Endpoint: srv.Listener.Addr().String()}, got
}

func TestAStrangerAtAPodsAddressIsNeitherSentTheTokenNorBelieved(t *testing.T) {
	c := client(t, nil)
	caller := principal.Caller{Principal: principal.Principal{Tenant: "acme", Project: "p", Issuer: "key:a"}, Authorization: "Bearer the-callers-own"}
	for name, call := range map[string]func(pod lease.Pod) error{
		"a revocation": func(pod lease.Pod) error { return c.Revoked(t.Context(), pod, "tok") },
		"a changed document": func(pod lease.Pod) error {
			return c.Changed(t.Context(), []lease.Pod{pod}, []document.Change{{Key: document.Key{Tenant: "a", Project: "p", Path: "x"}}})
		},
		"a request": func(pod lease.Pod) error {
			w := httptest.NewRecorder()
			err := c.Forward(w, httptest.NewRequest("POST", "/mcp/acme/p/s", nil), pod, caller, "s", []byte("{}"))
			if w.Body.Len() > 0 {
				t.Errorf("a client was answered %q", w.Body)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, got := stranger(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Vance-Relayed", "1")
				w.Header().Set("X-Vance-Proof", strings.Repeat("0", 64))
				_, _ = io.WriteString(w, "an answer of its own")
			})
			if err := call(pod); err == nil {
				t.Error("it was believed")
			}
			sent := <-got
			body, _ := io.ReadAll(sent.Body)
			for k, v := range sent.Header {
				if strings.Contains(strings.Join(v, " "), token) {
					t.Errorf("the token is in %s", k)
				}
			}
			if bytes.Contains(body, []byte(token)) || bytes.Contains(body, []byte("the-callers-own")) {
				t.Error("a secret is in the body")
			}
		})
	}
}

func TestOnlyTheCallThatWasSignedIsTaken(t *testing.T) {
	var told atomic.Int64
	p := newPod(t, func(o *peers.ServerOptions) {
		o.Revoked = func(context.Context, lease.Token) error { told.Add(1); return nil }
		o.Changed = func(context.Context, []document.Change, bool) { told.Add(1) }
	})
	// A call to the pod, as whoever is on the way would have recorded it.
	pod, got := stranger(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	if err := client(t, nil).Revoked(t.Context(), pod, "tok"); err == nil {
		t.Fatal("no error")
	}
	recorded := <-got
	text, _ := io.ReadAll(recorded.Body)
	fields := strings.Fields(recorded.Header.Get(headers.Signature))
	with := func(i int, value string) string {
		changed := append([]string(nil), fields...)
		changed[i] = value
		return strings.Join(changed, " ")
	}
	ms := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixMilli(), 10) }
	for name, x := range map[string]struct {
		path, pod, body, signature string
		status                     int
	}{
		"as it was signed":             {status: 204},
		"to another address":           {path: peers.ChangedPath, status: 401},
		"to another pod":               {pod: "pod-a", status: 401},
		"to no pod":                    {pod: "-", status: 401},
		"with another body":            {body: strings.Replace(string(text), "tok", "kot", 1), status: 400},
		"with a longer body":           {body: string(text) + " ", status: 400},
		"with a shorter body":          {body: string(text[:len(text)-1]), status: 400},
		"with another time":            {signature: with(1, ms(time.Second)), status: 401},
		"with another length":          {signature: with(2, "1"), status: 401},
		"with another digest":          {signature: with(3, strings.Repeat("0", 64)), status: 401},
		"with a short digest":          {signature: with(3, "00"), status: 401},
		"with another signature":       {signature: with(4, strings.Repeat("0", 64)), status: 401},
		"with no signature at its end": {signature: strings.Join(fields[:4], " "), status: 401},
		"in another version":           {signature: with(0, "v2"), status: 401},
		"with nonsense":                {signature: "nonsense", status: 401},
	} {
		t.Run(name, func(t *testing.T) {
			told.Store(0)
			body := string(text)
			if x.body != "" {
				body = x.body
			}
			path := peers.RevokedPath
			if x.path != "" {
				path = x.path
			}
			r, err := http.NewRequestWithContext(t.Context(), "POST", p.srv.URL+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header = recorded.Header.Clone()
			if x.signature != "" {
				r.Header.Set(headers.Signature, x.signature)
			}
			switch x.pod {
			case "":
			case "-":
				r.Header.Del("X-Vance-Pod")
			default:
				r.Header.Set("X-Vance-Pod", x.pod)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != x.status || (told.Load() > 0) != (x.status == 204) {
				t.Errorf("status %d, want %d; %d times done", resp.StatusCode, x.status, told.Load())
			}
		})
	}
}

// TestASignatureIsGoodForAMinute signs with a key of its own, at times of its own.
func TestASignatureIsGoodForAMinute(t *testing.T) {
	for name, x := range map[string]struct {
		off time.Duration
		ok  bool
	}{
		"now": {0, true}, "half a minute ago": {-30 * time.Second, true}, "in half a minute": {30 * time.Second, true},
		"two minutes ago": {-2 * time.Minute, false}, "in two minutes": {2 * time.Minute, false},
	} {
		r := httptest.NewRequest("POST", peers.RevokedPath, nil)
		peers.SignAt(r, token, "pod-b", time.Now().Add(x.off))
		if err := peers.NewVerifier([]string{token}).Verify(httptest.NewRecorder(), r); (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err := peers.NewVerifier([]string{"another token of this test"}).Verify(httptest.NewRecorder(), r); err == nil {
			t.Errorf("%s: taken with another token", name)
		}
		if err := peers.NewVerifier(nil).Verify(httptest.NewRecorder(), r); err == nil {
			t.Errorf("%s: taken without a token", name)
		}
	}
}

// TestPodsOfAnOlderVersion know the internal token and no signatures.
func TestPodsOfAnOlderVersion(t *testing.T) {
	var told atomic.Int64
	s := peers.NewServer(peers.ServerOptions{Self: "pod-b", Seal: ring(t, 1), Revoked: func(context.Context, lease.Token) error { told.Add(1); return nil }})
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := admin.InternalToken(r, []string{token}); err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		s.ServeHTTP(w, r)
	}))
	defer old.Close()
	pod := lease.Pod{ID: "pod-b", Endpoint: old.Listener.Addr().String()}
	if err := client(t, nil).Revoked(t.Context(), pod, "tok"); err == nil || told.Load() != 0 || errors.Is(err, peers.ErrOtherPod) {
		t.Errorf("without sendToken: %v, %d told", err, told.Load())
	}
	c := client(t, func(o *peers.ClientOptions) { o.SendToken = true })
	if err := c.Revoked(t.Context(), pod, "tok"); err != nil || told.Load() != 1 {
		t.Errorf("with sendToken: %v, %d told", err, told.Load())
	}
	// The other way round its token is taken, by TestServerRefuses and TestChanged.
}
