package peers_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/gateway/peers"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

const token = "internal-token-of-this-test"

func ring(t *testing.T, b byte) *seal.Ring {
	t.Helper()
	r, err := seal.NewRing(bytes.Repeat([]byte{b}, seal.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pod is the far side: a Server behind the check of the internal token.
type pod struct {
	opt peers.ServerOptions
	srv *httptest.Server
}

func newPod(t *testing.T, change func(*peers.ServerOptions)) *pod {
	t.Helper()
	p := &pod{opt: peers.ServerOptions{Self: "pod-b", Seal: ring(t, 1), Log: slog.New(slog.DiscardHandler),
		MaxBody: func() int64 { return 1 << 20 }}}
	if change != nil {
		change(&p.opt)
	}
	p.srv = httptest.NewServer(trusting(peers.NewServer(p.opt)))
	t.Cleanup(p.srv.Close)
	return p
}

// trusting takes calls with a signature or the token, as the gateway does.
func trusting(s http.Handler) http.Handler {
	v := peers.NewVerifier([]string{"an older token, still taken", token})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		if r.Header.Get(headers.Signature) != "" {
			err = v.Verify(w, r)
		} else {
			err = admin.InternalToken(r, []string{token})
		}
		if err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		s.ServeHTTP(w, r)
	})
}

func (p *pod) registration(id lease.PodID) lease.Pod {
	return lease.Pod{ID: id, Endpoint: p.srv.Listener.Addr().String()}
}

func client(t *testing.T, change func(*peers.ClientOptions)) *peers.Client {
	t.Helper()
	opt := peers.ClientOptions{Token: token, Seal: ring(t, 1)}
	if change != nil {
		change(&opt)
	}
	c := peers.NewClient(opt)
	t.Cleanup(c.Close)
	return c
}

func TestRevoked(t *testing.T) {
	var told []lease.Token
	var fails error
	p := newPod(t, func(o *peers.ServerOptions) {
		o.Revoked = func(_ context.Context, tok lease.Token) error { told = append(told, tok); return fails }
	})
	c := client(t, nil)
	t.Run("the pod that is meant runs the handler", func(t *testing.T) {
		if err := c.Revoked(t.Context(), p.registration("pod-b"), "tok"); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(told, []lease.Token{"tok"}) {
			t.Errorf("told %v", told)
		}
	})
	told = nil
	for _, x := range []struct {
		name   string
		client func(*peers.ClientOptions)
		pod    lease.Pod
		is     error
	}{
		{name: "another pod at the address is unreachable", pod: p.registration("pod-a"), is: peers.ErrOtherPod},
		{name: "a wrong token is", pod: p.registration("pod-b"), client: func(o *peers.ClientOptions) { o.Token = "nonsense" }},
		{name: "no token is", pod: p.registration("pod-b"), client: func(o *peers.ClientOptions) { o.Token = "" }},
		{name: "a pod without an endpoint is", pod: lease.Pod{ID: "pod-b"}},
		{name: "a pod that is gone is", pod: lease.Pod{ID: "pod-b", Endpoint: "127.0.0.1:1"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			err := client(t, x.client).Revoked(t.Context(), x.pod, "tok")
			if err == nil || x.is != nil && !errors.Is(err, x.is) {
				t.Errorf("error %v", err)
			}
			if len(told) > 0 {
				t.Error("the handler ran")
			}
		})
	}
	t.Run("a handler that fails is not done", func(t *testing.T) {
		fails = errors.New("the upstream is down")
		if err := c.Revoked(t.Context(), p.registration("pod-b"), "tok"); err == nil {
			t.Error("done")
		}
		fails = lease.ErrNotFound
		if err := c.Revoked(t.Context(), p.registration("pod-b"), "tok"); err == nil {
			t.Error("a mark that is not there is done")
		}
	})
	t.Run("a pod that hangs ends with the caller's context", func(t *testing.T) {
		entered := make(chan struct{})
		p := newPod(t, func(o *peers.ServerOptions) {
			o.Revoked = func(ctx context.Context, _ lease.Token) error { close(entered); <-ctx.Done(); return ctx.Err() }
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-entered; cancel() }()
		if err := c.Revoked(ctx, p.registration("pod-b"), "tok"); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

func TestServerRefuses(t *testing.T) {
	p := newPod(t, func(o *peers.ServerOptions) {
		o.Revoked = func(context.Context, lease.Token) error { t.Error("the handler ran"); return nil }
		o.Changed = func(context.Context, []document.Change, bool) { t.Error("documents were taken in") }
		o.Serve = func(http.ResponseWriter, *http.Request, principal.Caller, string) { t.Error("a request was served") }
	})
	for _, x := range []struct {
		name, method, path, pod, body string
		status                        int
	}{
		{"another method", "GET", peers.RevokedPath, "pod-b", "", 405},
		{"another path", "POST", "/internal/other", "pod-b", "", 404},
		{"a body that is no JSON", "POST", peers.RevokedPath, "", "{", 400},
		{"a body with an unknown member", "POST", peers.RevokedPath, "", `{"pod":"pod-b","token":"t","more":1}`, 400},
		{"two values", "POST", peers.RevokedPath, "", `{"pod":"pod-b","token":"t"}{}`, 400},
		{"a body without end", "POST", peers.RevokedPath, "", `{"pod":"` + strings.Repeat("x", 5000) + `"}`, 400},
		{"a revocation that names no pod", "POST", peers.RevokedPath, "", `{"token":"t"}`, 421},
		{"a changed document for another pod", "POST", peers.ChangedPath, "pod-a", `{"events":[]}`, 421},
		{"an unknown op", "POST", peers.ChangedPath, "", `{"events":[{"op":"MOVE","tenantId":"a","projectId":"p","path":"x"}]}`, 400},
		{"a document without a place", "POST", peers.ChangedPath, "", `{"events":[{"op":"UPSERT","tenantId":"..","projectId":"p","path":"x"}]}`, 400},
		{"a forwarded request that names no pod", "POST", peers.ForwardPath, "", "", 421},
		{"a forwarded request for another pod", "POST", peers.ForwardPath, "pod-a", "", 421},
		{"a forwarded request without an envelope", "POST", peers.ForwardPath, "pod-b", "", 400},
		{"an envelope that is cut off", "POST", peers.ForwardPath, "pod-b", "\x00\x00\x00\x10abc", 400},
		{"an envelope without end", "POST", peers.ForwardPath, "pod-b", "\xff\xff\xff\xffabc", 400},
		{"an envelope that nobody sealed", "POST", peers.ForwardPath, "pod-b", "\x00\x00\x00\x03abc", 400},
	} {
		t.Run(x.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), x.method, p.srv.URL+x.path, strings.NewReader(x.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(headers.InternalToken, token)
			if x.pod != "" {
				r.Header.Set("X-Vance-Pod", x.pod)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var refused struct {
				Error struct{ Code, Message string }
			}
			if err := json.NewDecoder(resp.Body).Decode(&refused); err != nil {
				t.Fatal(err)
			}
			code := map[int]string{400: "INVALID", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 421: "OTHER_POD"}[x.status]
			if resp.StatusCode != x.status || refused.Error.Code != code || refused.Error.Message == "" {
				t.Errorf("status %d, %+v; want %d and %s", resp.StatusCode, refused.Error, x.status, code)
			}
		})
	}
}

func TestChanged(t *testing.T) {
	type took struct {
		changes []document.Change
		others  bool
	}
	var got []took
	take := func(o *peers.ServerOptions) {
		o.Changed = func(_ context.Context, c []document.Change, others bool) { got = append(got, took{c, others}) }
	}
	p := newPod(t, take)
	change := document.Change{Key: document.Key{Tenant: "acme", Project: "thesis", Path: "_vance/config/lease/browser.yaml"}}
	t.Run("a pod's word is taken in and not passed on", func(t *testing.T) {
		if err := client(t, nil).Changed(t.Context(), []lease.Pod{p.registration("pod-b")}, []document.Change{change}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]took{{[]document.Change{change}, false}}, got, cmp.AllowUnexported(took{})); d != "" {
			t.Error(d)
		}
	})
	t.Run("another system's word is passed on", func(t *testing.T) {
		got = nil
		r, err := http.NewRequestWithContext(t.Context(), "POST", p.srv.URL+peers.ChangedPath,
			strings.NewReader(`{"events":[{"op":"DELETE","tenantId":"acme","projectId":"thesis","path":"_vance/config/lease/browser.yaml"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(headers.InternalToken, token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if d := cmp.Diff([]took{{[]document.Change{change}, true}}, got, cmp.AllowUnexported(took{})); resp.StatusCode != 204 || d != "" {
			t.Errorf("%d %s", resp.StatusCode, d)
		}
	})
	t.Run("one pod that is gone does not keep the others from hearing", func(t *testing.T) {
		got = nil
		err := client(t, nil).Changed(t.Context(), []lease.Pod{{ID: "gone", Endpoint: "127.0.0.1:1"}, p.registration("pod-b")}, []document.Change{change})
		if err == nil || len(got) != 1 {
			t.Errorf("%v, %d told", err, len(got))
		}
	})
}

func TestForward(t *testing.T) {
	caller := principal.Caller{
		Principal: principal.Principal{Tenant: "acme", Project: "thesis", User: "u7", Issuer: "jwt:https://id.example"},
		OnLost:    "reopen", Authorization: "Bearer the-callers-own",
	}
	step := make(chan struct{})
	p := newPod(t, func(o *peers.ServerOptions) {
		o.Serve = func(w http.ResponseWriter, r *http.Request, c principal.Caller, server string) {
			if r.Method == "DELETE" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Add("X-Seen", r.Header.Get("Mcp-Session-Id"))
			w.Header().Add("X-Seen", r.Header.Get("Keep-Alive"))
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintf(w, "%s %s %s %s %q %q %v\n", r.Method, r.URL.Path, server, c.ID(), c.OnLost, c.Authorization.Reveal(), string(body))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-step:
				fmt.Fprint(w, "the second piece\n")
			case <-r.Context().Done():
			}
		}
	})
	// The near side, as session calls it.
	failed := make(chan error, 100)
	c := client(t, nil)
	target := p.registration("pod-b")
	near := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := c.Forward(w, r, target, caller, "browser", body); err != nil {
			failed <- err
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer near.Close()
	post := func(t *testing.T) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", near.URL+"/mcp/acme/thesis/browser", strings.NewReader("the body"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Mcp-Session-Id", "sealed")
		r.Header.Set("Connection", "Keep-Alive")
		r.Header.Set("Keep-Alive", "timeout=5")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	t.Run("request, caller and answer arrive as they are, piece by piece", func(t *testing.T) {
		resp := post(t)
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		line, err := lines.ReadString('\n') // before the second piece exists
		want := fmt.Sprintf("POST /mcp/acme/thesis/browser browser %s %q %q the body\n", caller.ID(), "reopen", "Bearer the-callers-own")
		if err != nil || line != want {
			t.Errorf("%q %v, want %q", line, err, want)
		}
		step <- struct{}{}
		if line, err = lines.ReadString('\n'); err != nil || line != "the second piece\n" {
			t.Errorf("%q %v", line, err)
		}
		if resp.StatusCode != 202 || resp.Header.Get("Content-Type") != "text/event-stream" ||
			!slices.Equal(resp.Header.Values("X-Seen"), []string{"sealed", ""}) || resp.Header.Get("X-Vance-Relayed") != "" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
	})
	t.Run("an answer without a body", func(t *testing.T) {
		r, err := http.NewRequestWithContext(t.Context(), "DELETE", near.URL+"/mcp/acme/thesis/browser", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 204 {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
	t.Run("the far side sees that the client goes", func(t *testing.T) {
		resp := post(t)
		if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close() // the handler over there ends, or Close below hangs
	})
	t.Run("an answer that breaks off is not taken for whole", func(t *testing.T) {
		resp := post(t)
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		p.srv.CloseClientConnections()
		if _, err := io.ReadAll(lines); err == nil {
			t.Error("the end looks like an end")
		}
	})
	for _, x := range []struct {
		name   string
		change func(*peers.ClientOptions)
		pod    lease.Pod
		is     error
	}{
		{name: "another pod at the address is an error before anything is written", pod: p.registration("pod-a"), is: peers.ErrOtherPod},
		{name: "a wrong token is", pod: p.registration("pod-b"), change: func(o *peers.ClientOptions) { o.Token = "nonsense" }},
		{name: "other session keys are", pod: p.registration("pod-b"), change: func(o *peers.ClientOptions) { o.Seal = ring(t, 2) }},
		{name: "a pod that is gone is", pod: lease.Pod{ID: "pod-b", Endpoint: "127.0.0.1:1"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, target = client(t, x.change), x.pod
			resp := post(t)
			resp.Body.Close()
			if resp.StatusCode != http.StatusTeapot {
				t.Fatalf("status %d", resp.StatusCode)
			}
			if err := <-failed; x.is != nil && !errors.Is(err, x.is) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func certificate(t *testing.T, names ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "pods"},
		DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestTLS(t *testing.T) {
	ours, theirs := certificate(t, "pods.internal"), certificate(t, "pods.internal")
	s := peers.NewServer(peers.ServerOptions{Self: "pod-b", Seal: ring(t, 1), Revoked: func(context.Context, lease.Token) error { return nil }})
	srv := httptest.NewUnstartedServer(trusting(s))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{*ours}}
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	pod := lease.Pod{ID: "pod-b", Endpoint: srv.Listener.Addr().String()}
	for _, x := range []struct {
		name string
		own  *tls.Certificate
		ok   bool
	}{
		{"a pod with our certificate is a pod", ours, true},
		{"a stranger's certificate for the same name is not", theirs, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := client(t, func(o *peers.ClientOptions) { o.TLS = peers.ClientTLS(func() *tls.Certificate { return x.own }) })
			if err := c.Revoked(t.Context(), pod, "tok"); (err == nil) != x.ok {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("a plain listener is not spoken to", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		plain := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the token went out in the clear") })}}
		plain.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		plain.Start()
		defer plain.Close()
		c := client(t, func(o *peers.ClientOptions) { o.TLS = peers.ClientTLS(func() *tls.Certificate { return ours }) })
		if err := c.Revoked(t.Context(), lease.Pod{ID: "pod-b", Endpoint: l.Addr().String()}, "tok"); err == nil {
			t.Error("no error")
		}
	})
}

// authority is a CA of pods.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate that parent signs; a nil one signs itself.
func (a *authority) issue(t *testing.T, change func(*x509.Certificate), names ...string) (*tls.Certificate, *authority) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprint("pods ", time.Now().UnixNano())},
		DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true}
	if change != nil {
		change(template)
	}
	by := &authority{template, key}
	if a != nil {
		by = a
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, &key.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, &authority{cert, key}
}

func isCA(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }

// with is a certificate together with those that signed it.
func with(c *tls.Certificate, chain ...*authority) *tls.Certificate {
	out := &tls.Certificate{Certificate: slices.Clone(c.Certificate), PrivateKey: c.PrivateKey}
	for _, a := range chain {
		out.Certificate = append(out.Certificate, a.cert.Raw)
	}
	return out
}

// Pods that each have a certificate of their own know each other by who signed it
// and by the name.
func TestTLSWithAnAuthority(t *testing.T) {
	var none *authority
	_, root := none.issue(t, isCA)
	_, between := root.issue(t, isCA)
	_, stranger := none.issue(t, isCA)
	leaf := func(by *authority, change func(*x509.Certificate), names ...string) *tls.Certificate {
		c, _ := by.issue(t, change, names...)
		return c
	}
	ours := with(leaf(root, nil, "pods.internal"), root)
	for _, x := range []struct {
		name        string
		own, theirs *tls.Certificate
		ok          bool
	}{
		{"another pod of our authority with our name is a pod", ours, leaf(root, nil, "pods.internal"), true},
		{"one of several names is enough", ours, leaf(root, nil, "a.internal", "pods.internal"), true},
		{"an authority in between comes with the certificate", ours, with(leaf(between, nil, "pods.internal"), between), true},
		{"an authority in between that we have is enough", with(leaf(between, nil, "pods.internal"), between), leaf(between, nil, "pods.internal"), true},
		{"another name of our authority is no pod", ours, leaf(root, nil, "web.internal"), false},
		{"our name of another authority is no pod, though it brings that along", ours, with(leaf(stranger, nil, "pods.internal"), stranger), false},
		{"a certificate that has run out is no pod's", ours, leaf(root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "pods.internal"), false},
		{"a certificate for clients only is no pod's", ours, leaf(root, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}, "pods.internal"), false},
		{"without the authority in our own file nobody else is a pod", leaf(root, nil, "pods.internal"), leaf(root, nil, "pods.internal"), false},
		{"another pod's certificate in our file makes nobody an authority", with(leaf(root, nil, "pods.internal"), &authority{cert: mustParse(t, leaf(root, nil, "x"))}), leaf(root, nil, "pods.internal"), false},
		{"without a name of our own nobody else is a pod", with(leaf(root, nil), root), leaf(root, nil, "pods.internal"), false},
	} {
		t.Run(x.name, func(t *testing.T) {
			srv := httptest.NewUnstartedServer(trusting(peers.NewServer(peers.ServerOptions{Self: "pod-b", Seal: ring(t, 1),
				Revoked: func(context.Context, lease.Token) error { return nil }})))
			srv.TLS = &tls.Config{Certificates: []tls.Certificate{*x.theirs}}
			srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			srv.StartTLS()
			defer srv.Close()
			c := client(t, func(o *peers.ClientOptions) { o.TLS = peers.ClientTLS(func() *tls.Certificate { return x.own }) })
			if err := c.Revoked(t.Context(), lease.Pod{ID: "pod-b", Endpoint: srv.Listener.Addr().String()}, "tok"); (err == nil) != x.ok {
				t.Errorf("error %v", err)
			}
		})
	}
}

func mustParse(t *testing.T, c *tls.Certificate) *x509.Certificate {
	t.Helper()
	cert, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
