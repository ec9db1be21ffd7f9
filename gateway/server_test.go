package gateway_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

const token = "internal-token-of-this-test"

// backend is both proxies: it says what reached it, and holds a request until
// it is let go where the test asks for it.
type backend struct {
	mu      sync.Mutex
	headers http.Header
	hold    chan struct{}
	reached chan struct{}
	fail    atomic.Bool
}

type reached struct {
	Tenant, Project, User, Issuer, Name, Rest, Body string
}

func (b *backend) answer(w http.ResponseWriter, r *http.Request, c principal.Caller, name, rest string) {
	if b.fail.Load() {
		panic("the handler has a bug")
	}
	b.mu.Lock()
	b.headers = r.Header.Clone()
	hold := b.hold
	b.mu.Unlock()
	if hold != nil {
		b.reached <- struct{}{}
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	_ = json.NewEncoder(w).Encode(reached{c.Tenant, c.Project, c.User, c.Issuer, name, rest, string(body)})
}

type mcp struct{ *backend }

func (m mcp) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, server string) {
	m.answer(w, r, c, "mcp "+server, "")
}

type tex struct{ *backend }

func (x tex) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, service, rest string) {
	x.answer(w, r, c, "tex "+service, rest)
}

// pod is a Server under test with its addresses.
type pod struct {
	*gateway.Server
	backend  *backend
	url      string
	internal string
	live     *gateway.Live
	log      *output.Buffer
	served   chan error
}

func gatewayConfig() *config.Gateway {
	return &config.Gateway{
		Listen:   "127.0.0.1:0",
		Internal: config.Internal{Listen: "127.0.0.1:0", Tokens: []string{token, "a-second-token"}},
		Limits:   config.Limits{RequestBody: 1024, PerPod: 100},
		Origins:  []string{"https://app.example"},
		Identity: config.Identity{
			Anonymous: &config.Anonymous{Tenant: "dev", Projects: []string{"*"}, User: "ada"},
			APIKeys: []config.APIKey{
				{Name: "brain", SHA256: sha256.Sum256([]byte("brain-secret")), Tenants: map[string][]string{"acme": {"*"}}, UserHeader: "X-Vance-User"},
			},
		},
	}
}

func serve(t *testing.T, c *config.Gateway, change func(*gateway.Options)) *pod {
	t.Helper()
	p := &pod{backend: &backend{reached: make(chan struct{}, 16)}, log: &output.Buffer{}, served: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(p.log, nil))
	state, err := gateway.NewState(t.Context(), c, true, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	p.live = gateway.NewLive(state)
	opt := gateway.Options{Config: c, Live: p.live, MCP: mcp{p.backend}, Tex: tex{p.backend},
		Gatherer: prometheus.NewRegistry(), Log: log}
	if change != nil {
		change(&opt)
	}
	if p.Server, err = gateway.Listen(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	scheme := "http://"
	if opt.Certificate != nil {
		scheme = "https://"
	}
	p.url, p.internal = scheme+p.ClientAddr(), scheme+p.InternalAddr()
	go func() { p.served <- p.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // cut what a failed test has left open
		_ = p.CloseClients(ctx)
		_ = p.CloseInternal(ctx)
		if err := <-p.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return p
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) message() string {
	var v struct{ Error struct{ Message string } }
	_ = json.Unmarshal([]byte(a.body), &v)
	return v.Error.Message
}

// send sends a request with "Name: value" headers; Host is one of them.
func send(t *testing.T, method, url, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func TestRoutes(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	anonymous := reached{Tenant: "dev", Project: "p", User: "ada", Issuer: "anonymous"}
	with := func(r reached, name, rest string) *reached { r.Name, r.Rest = name, rest; return &r }
	const bearer = "Authorization: Bearer brain-secret"
	for _, c := range []struct {
		name, method, path string
		headers            []string
		status             int
		want               *reached
	}{
		{name: "an MCP server", method: "POST", path: "/mcp/dev/p/browser", want: with(anonymous, "mcp browser", "")},
		{name: "a name may be encoded", method: "GET", path: "/mcp/dev/p/b%72owser", want: with(anonymous, "mcp browser", "")},
		{name: "a user in the path", method: "DELETE", path: "/mcp/acme/p/@u7/browser", headers: []string{bearer},
			want: &reached{Tenant: "acme", Project: "p", User: "u7", Issuer: "key:brain", Name: "mcp browser"}},
		{name: "an encoded user in the path", method: "POST", path: "/mcp/acme/p/%40u7%40x.org/browser", headers: []string{bearer},
			want: &reached{Tenant: "acme", Project: "p", User: "u7@x.org", Issuer: "key:brain", Name: "mcp browser"}},
		{name: "a user in a header", method: "POST", path: "/mcp/acme/p/browser", headers: []string{bearer, "X-Vance-User: u7"},
			want: &reached{Tenant: "acme", Project: "p", User: "u7", Issuer: "key:brain", Name: "mcp browser"}},
		{name: "a TeX service", method: "POST", path: "/tex/dev/p/tex2pdf/tex2pdf", want: with(anonymous, "tex tex2pdf", "/tex2pdf")},
		{name: "a TeX service's base", method: "GET", path: "/tex/dev/p/tex2pdf", want: with(anonymous, "tex tex2pdf", "/")},
		{name: "the rest of a TeX path stays as it is", method: "GET", path: "/tex/dev/p/tex2pdf/status/a%2f..%2fb", want: with(anonymous, "tex tex2pdf", "/status/a%2f..%2fb")},
		{name: "dots in the rest of a TeX path are the service's", method: "GET", path: "/tex/dev/p/tex2pdf/a/../b", want: with(anonymous, "tex tex2pdf", "/a/../b")},
		{name: "a user in a TeX path", method: "POST", path: "/tex/acme/p/@u7/tex2pdf/x", headers: []string{bearer},
			want: &reached{Tenant: "acme", Project: "p", User: "u7", Issuer: "key:brain", Name: "tex tex2pdf", Rest: "/x"}},
		{name: "no server", method: "POST", path: "/mcp/dev/p", status: 404},
		{name: "an empty server", method: "POST", path: "/mcp/dev/p/", status: 404},
		{name: "more than a server", method: "POST", path: "/mcp/dev/p/browser/x", status: 404},
		{name: "a slash after the server", method: "POST", path: "/mcp/dev/p/browser/", want: with(anonymous, "mcp browser", "")},
		{name: "a slash after an encoded server of an encoded user", method: "POST", path: "/mcp/acme/p/%40u7/b%72owser/", headers: []string{bearer},
			want: &reached{Tenant: "acme", Project: "p", User: "u7", Issuer: "key:brain", Name: "mcp browser"}},
		{name: "two slashes after the server", method: "POST", path: "/mcp/dev/p/browser//", status: 404},
		{name: "an encoded slash after the server", method: "POST", path: "/mcp/dev/p/browser%2f", status: 404},
		{name: "results of a TeX service have any name", method: "GET", path: "/tex/dev/p/tex2pdf/file/a%20b%2B%C3%A4%3F%23%25.pdf", want: with(anonymous, "tex tex2pdf", "/file/a%20b%2B%C3%A4%3F%23%25.pdf")},
		{name: "an encoded slash in a name", method: "POST", path: "/mcp/dev/p/a%2fb", status: 404},
		{name: "a name of dots", method: "POST", path: "/mcp/dev/../browser", status: 404},
		{name: "a name of encoded dots", method: "POST", path: "/mcp/dev/%2e%2e/browser", status: 404},
		{name: "a name with dots in it", method: "POST", path: "/mcp/dev/a..b/browser", status: 404},
		{name: "a long name", method: "POST", path: "/mcp/dev/p/" + strings.Repeat("a", 65), status: 404},
		{name: "a name with a NUL", method: "POST", path: "/mcp/dev/p/a%00", status: 404},
		{name: "an empty user", method: "POST", path: "/mcp/acme/p/@/browser", headers: []string{bearer}, status: 404},
		{name: "a user of another form", method: "POST", path: "/mcp/acme/p/@a%2fb/browser", headers: []string{bearer}, status: 403},
		{name: "a user and no server", method: "POST", path: "/mcp/acme/p/@u7", headers: []string{bearer}, status: 404},
		{name: "a user in place of the project", method: "POST", path: "/mcp/acme/@u7/browser", headers: []string{bearer}, status: 404},
		{name: "a doubled slash", method: "POST", path: "/mcp//p/browser", status: 404},
		{name: "another method", method: "PUT", path: "/mcp/dev/p/browser", status: 405},
		{name: "HEAD is no MCP", method: "HEAD", path: "/mcp/dev/p/browser", status: 405},
		{name: "OPTIONS that is no preflight", method: "OPTIONS", path: "/mcp/dev/p/browser", status: 405},
		{name: "another tenant", method: "POST", path: "/mcp/acme/p/browser", status: 403},
		{name: "the system tenant", method: "POST", path: "/mcp/_vance/p/browser", status: 403},
		{name: "a wrong key", method: "POST", path: "/mcp/dev/p/browser", headers: []string{"Authorization: Bearer nonsense"}, status: 401},
		{name: "the root", method: "GET", path: "/", status: 404},
		{name: "metrics are not for clients", method: "GET", path: "/metrics", status: 404},
		{name: "probes are not for clients", method: "GET", path: "/readyz", status: 404},
		{name: "/internal is not for clients", method: "POST", path: "/internal/lease/revoked", headers: []string{"X-Vance-Internal-Token: " + token}, status: 404},
		{name: "an admin path without its handler", method: "GET", path: "/brain/dev/admin/leases", status: 404},
		{name: "metadata without an identity provider", method: "GET", path: "/.well-known/oauth-protected-resource/mcp/dev/p/browser", status: 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := send(t, c.method, p.url+c.path, "", c.headers...)
			if c.want == nil {
				if got.status != c.status {
					t.Fatalf("status %d, want %d: %s", got.status, c.status, got.body)
				}
				if c.method != "HEAD" && got.message() == "" {
					t.Errorf("no sentence in %s", got.body)
				}
				if c.status == 405 && got.header.Get("Allow") == "" {
					t.Error("no Allow")
				}
				if c.status == 401 && !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer ") {
					t.Error("no challenge")
				}
				return
			}
			var r reached
			if err := json.Unmarshal([]byte(got.body), &r); err != nil || got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if r != *c.want {
				t.Errorf("reached %+v, want %+v", r, *c.want)
			}
		})
	}
	t.Run("what names the user goes no further", func(t *testing.T) {
		send(t, "POST", p.url+"/mcp/acme/p/browser", "", bearer, "X-Vance-User: u7", "X-Other: stays")
		p.backend.mu.Lock()
		defer p.backend.mu.Unlock()
		if h := p.backend.headers; h.Get("X-Vance-User") != "" || h.Get("X-Other") != "stays" {
			t.Errorf("headers %v", h)
		}
	})
}

func TestPathsBelowThePagesAreNotCleaned(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /brain/{tenant}/admin/leases", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /insights/{tenant}/leases", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /insights/{tenant}/leases/live", func(http.ResponseWriter, *http.Request) {})
	p := serve(t, gatewayConfig(), func(o *gateway.Options) { o.Tenant, o.Page = mux, mux })
	for _, path := range []string{"/insights/dev/leases", "/insights/dev/leases/live", "/brain/dev/admin/leases"} {
		if got := send(t, "GET", p.url+path, ""); got.status != 200 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	for _, path := range []string{"/insights/dev/leases//live", "/insights/dev/leases/x/../live", "/insights/dev/leases/./live", "/insights/dev/leases/%2e%2e/live",
		"/insights/dev/leases//", "/brain/dev/admin/leases//x/revoke", "/brain/dev/admin/leases/../leases", "/brain/dev/admin//leases", "/brain/dev//admin/leases"} {
		if got := send(t, "GET", p.url+path, ""); got.status != 404 || got.header.Get("Location") != "" {
			t.Errorf("%s: %d to %q", path, got.status, got.header.Get("Location"))
		}
	}
}

func TestHostAndOrigin(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	url := p.url + "/mcp/dev/p/browser"
	for _, c := range []struct {
		name    string
		headers []string
		status  int
		shared  string
	}{
		{name: "localhost is loopback", headers: []string{"Host: localhost:8080"}, status: 200},
		{name: "a rebound name is not", headers: []string{"Host: rebind.example:8080"}, status: 403},
		{name: "not with a key either", headers: []string{"Host: rebind.example", "Authorization: Bearer brain-secret"}, status: 403},
		{name: "a page of this machine may call", headers: []string{"Origin: http://localhost:3000"}, status: 200, shared: "http://localhost:3000"},
		{name: "a listed page may call", headers: []string{"Origin: https://app.example"}, status: 200, shared: "https://app.example"},
		{name: "another page may not", headers: []string{"Origin: https://evil.example"}, status: 403},
		{name: "nor one that looks alike", headers: []string{"Origin: https://app.example.evil.example"}, status: 403},
		{name: "nor one without an address", headers: []string{"Origin: null"}, status: 403},
		{name: "nor one that begins like loopback", headers: []string{"Origin: http://localhost.evil.example"}, status: 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := send(t, "POST", url, "", c.headers...)
			if got.status != c.status || got.header.Get("Access-Control-Allow-Origin") != c.shared {
				t.Errorf("%d %v %s", got.status, got.header, got.body)
			}
		})
	}
	t.Run("a preflight needs no credential", func(t *testing.T) {
		got := send(t, "OPTIONS", p.url+"/mcp/acme/p/browser", "", "Origin: https://app.example", "Access-Control-Request-Method: POST")
		if got.status != 204 || !strings.Contains(got.header.Get("Access-Control-Allow-Headers"), "Mcp-Session-Id") {
			t.Errorf("%d %v", got.status, got.header)
		}
	})
	t.Run("a preflight of another page is refused", func(t *testing.T) {
		got := send(t, "OPTIONS", p.url+"/mcp/acme/p/browser", "", "Origin: https://evil.example", "Access-Control-Request-Method: POST")
		if got.status != 403 || got.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%d %v", got.status, got.header)
		}
	})
}

func TestLimits(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	t.Run("headers without end are refused", func(t *testing.T) {
		got := send(t, "POST", p.url+"/mcp/dev/p/browser", "", "X-Long: "+strings.Repeat("x", 80<<10))
		if got.status != 431 {
			t.Errorf("status %d", got.status)
		}
	})
}

// A client that sends all of its body before it reads sees the refusal, and one
// that asks before it sends is answered at once.
func TestARefusalIsReadBySlowAndByPoliteClients(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	dial := func(t *testing.T) net.Conn {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		return c
	}
	const size = 24 << 20
	for _, tc := range []struct{ what, head, begin, end string }{
		{"a long body", "Content-Length: " + strconv.Itoa(size) + "\r\n", "", ""},
		{"a long body on a connection for one request", "Connection: close\r\nContent-Length: " + strconv.Itoa(size) + "\r\n", "", ""},
		{"a long chunked body", "Transfer-Encoding: chunked\r\n", strconv.FormatInt(size, 16) + "\r\n", "\r\n0\r\n\r\n"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			c := dial(t)
			if _, err := io.WriteString(c, "POST /mcp/dev/p/browser HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n"+tc.head+"\r\n"+tc.begin); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(make([]byte, size)); err != nil {
				t.Fatalf("while the body is sent: %v", err)
			}
			_, _ = io.WriteString(c, tc.end)
			answer, err := io.ReadAll(c)
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401") || !strings.Contains(string(answer), "UNAUTHENTICATED") {
				t.Errorf("%v, %q", err, answer)
			}
		})
	}
	t.Run("a body that waits for 100 Continue", func(t *testing.T) {
		c := dial(t)
		_ = c.SetDeadline(time.Now().Add(3 * time.Second)) // sooner than a body is given up
		if _, err := io.WriteString(c, "POST /mcp/dev/p/browser HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 401 || !strings.Contains(string(text), "UNAUTHENTICATED") {
			t.Errorf("%v, %d %q", err, resp.StatusCode, text)
		}
	})
}

func TestABodyThatNeverComesHoldsNoConnection(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	for _, tc := range []struct{ what, url, head string }{
		{"without a credential that counts", p.url, "POST /mcp/dev/p/browser HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\nContent-Length: 9\r\n\r\n{"},
		{"in chunks to an address that is none", p.url, "POST /none HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"},
		{"without the internal token", p.internal, "POST /internal/document/changed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", strings.TrimPrefix(tc.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, tc.head); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			answer, err := io.ReadAll(c)
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 40") {
				t.Errorf("%v, %q", err, answer)
			}
		})
	}
}

func TestPanicsAndLog(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	p.backend.fail.Store(true)
	got := send(t, "POST", p.url+"/mcp/dev/p/browser?secret=in-the-query", "", "Authorization: Bearer brain-secret", "Mcp-Session-Id: a-whole-session-id")
	if got.status != 403 { // the key does not open dev
		t.Fatalf("status %d", got.status)
	}
	got = send(t, "POST", p.url+"/mcp/acme/p/browser?secret=in-the-query", "", "Authorization: Bearer brain-secret", "Mcp-Session-Id: a-whole-session-id")
	id := got.header.Get(gateway.RequestIDHeader)
	if got.status != 500 || id == "" || !strings.Contains(got.message(), id) {
		t.Errorf("%d %s", got.status, got.body)
	}
	p.backend.fail.Store(false)
	if got := send(t, "POST", p.url+"/mcp/dev/p/browser", ""); got.status != 200 {
		t.Errorf("after a panic: %d", got.status)
	}
	log := p.log.String()
	for _, want := range []string{id, "the handler has a bug", "by=key:brain", "status=500", "path=/mcp/acme/p/browser"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	for _, secret := range []string{"brain-secret", "a-whole-session-id", "in-the-query"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log shows %q:\n%s", secret, log)
		}
	}
}

func TestInternal(t *testing.T) {
	var ready atomic.Pointer[error]
	notYet := errors.New("no contact with the store yet")
	ready.Store(&notYet)
	peers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "peers") })
	p := serve(t, gatewayConfig(), func(o *gateway.Options) {
		o.Peers = peers
		o.Ready = func() error { return *ready.Load() }
		o.Admin = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "admin judges for itself") })
	})
	const revoked = "/internal/lease/revoked"
	for _, c := range []struct {
		name, method, path string
		headers            []string
		status             int
	}{
		{"the pod lives", "GET", "/healthz", nil, 200},
		{"it is not ready before its first contact with the store", "GET", "/readyz", nil, 503},
		{"metrics need no token", "GET", "/metrics", nil, 200},
		{"metrics take no POST", "POST", "/metrics", nil, 405},
		{"a probe takes no POST", "POST", "/healthz", nil, 405},
		{"the first token is taken", "POST", revoked, []string{"X-Vance-Internal-Token: " + token}, 200},
		{"the second token is taken", "POST", revoked, []string{"X-Vance-Internal-Token: a-second-token"}, 200},
		{"no token is refused", "POST", revoked, nil, 401},
		{"an empty token is refused", "POST", revoked, []string{"X-Vance-Internal-Token: "}, 401},
		{"a wrong token is refused", "POST", revoked, []string{"X-Vance-Internal-Token: nonsense"}, 401},
		{"two tokens are refused", "POST", revoked, []string{"X-Vance-Internal-Token: " + token, "X-Vance-Internal-Token: " + token}, 401},
		{"a client's key is no token", "POST", revoked, []string{"Authorization: Bearer brain-secret"}, 401},
		{"the admin API judges for itself", "GET", "/internal/lease/admin/holders", nil, 200},
		{"a path with dots is not cleaned", "GET", "/internal/lease/admin/x/../holders", nil, 401},
		{"a path with a doubled slash is not cleaned", "GET", "/internal/lease/admin//holders", []string{"X-Vance-Internal-Token: " + token}, 200},
		{"MCP is not here", "POST", "/mcp/dev/p/browser", nil, 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := send(t, c.method, p.internal+c.path, "", c.headers...); got.status != c.status {
				t.Errorf("status %d, want %d: %s", got.status, c.status, got.body)
			}
		})
	}
	t.Run("it is ready after its first contact, and no more when it stops", func(t *testing.T) {
		var none error
		ready.Store(&none)
		if got := send(t, "GET", p.internal+"/readyz", ""); got.status != 200 {
			t.Errorf("ready: %d", got.status)
		}
		p.StopReady()
		if got := send(t, "GET", p.internal+"/readyz", ""); got.status != 503 {
			t.Errorf("stopping: %d", got.status)
		}
		if got := send(t, "GET", p.internal+"/healthz", ""); got.status != 200 {
			t.Errorf("alive: %d", got.status)
		}
	})
	t.Run("a pod without a token refuses everybody", func(t *testing.T) {
		for _, tokens := range [][]string{nil, {""}} {
			c := gatewayConfig()
			c.Internal.Tokens = tokens
			p := serve(t, c, func(o *gateway.Options) { o.Peers = peers })
			for _, h := range []string{"X-Vance-Internal-Token: ", "X-Vance-Internal-Token: x", "X-Other: x"} {
				if got := send(t, "POST", p.internal+revoked, "", h); got.status != 403 {
					t.Errorf("%q: status %d", h, got.status)
				}
			}
		}
	})
}

func TestClose(t *testing.T) {
	t.Run("a request under way is waited for", func(t *testing.T) {
		p := serve(t, gatewayConfig(), nil)
		release := make(chan struct{})
		p.backend.hold = release
		got := make(chan answer, 1)
		go func() { got <- send(t, "POST", p.url+"/mcp/dev/p/browser", "") }()
		<-p.backend.reached
		closed := make(chan error, 1)
		go func() { closed <- p.CloseClients(t.Context()) }()
		close(release)
		if a := <-got; a.status != 200 {
			t.Errorf("status %d", a.status)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if _, err := net.DialTimeout("tcp", p.ClientAddr(), time.Second); err == nil {
			t.Error("the client listener still takes connections")
		}
		if got := send(t, "GET", p.internal+"/healthz", ""); got.status != 200 {
			t.Error("the internal listener has ended first")
		}
	})
	t.Run("a request that does not end is cut off", func(t *testing.T) {
		p := serve(t, gatewayConfig(), nil)
		p.backend.hold = make(chan struct{})
		failed := make(chan error, 1)
		go func() {
			resp, err := http.Get(p.url + "/mcp/dev/p/browser") //nolint:noctx // the server ends it
			if err == nil {
				resp.Body.Close()
			}
			failed <- err
		}()
		<-p.backend.reached
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.CloseClients(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err := <-failed; err == nil {
			t.Error("the request was answered")
		}
	})
	t.Run("an address in use is said at once", func(t *testing.T) {
		p := serve(t, gatewayConfig(), nil)
		c := gatewayConfig()
		c.Listen = p.ClientAddr()
		if _, err := gateway.Listen(t.Context(), gateway.Options{Config: c, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "listen") {
			t.Errorf("%v", err)
		}
	})
}

func FuzzRoutes(f *testing.F) {
	for _, path := range []string{"/mcp/dev/p/browser", "/mcp/acme/p/@u7/browser", "/tex/dev/p/tex2pdf/a%2f..%2fb", "/mcp/%2e%2e/p/x", "/brain/a/admin/leases/t/revoke", "//", "/mcp/dev/p/@%40/x", "/.well-known/oauth-protected-resource/mcp/dev/p/x"} {
		f.Add(path)
	}
	c := gatewayConfig()
	c.Identity.Anonymous = nil
	c.Identity.APIKeys[0].Tenants = map[string][]string{"*": {"*"}, "_vance": {"_tenant", "*"}}
	log := slog.New(slog.DiscardHandler)
	state, err := gateway.NewState(f.Context(), c, false, nil, log)
	if err != nil {
		f.Fatal(err)
	}
	far := &recorder{}
	s, err := gateway.Listen(f.Context(), gateway.Options{Config: c, Live: gateway.NewLive(state), MCP: far, Tex: texRecorder{far}, Log: log})
	if err != nil {
		f.Fatal(err)
	}
	s.Abandon()
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" {
			return
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/", nil)
		r.URL = u
		r.Header.Set("Authorization", "Bearer brain-secret")
		far.caller, far.name, far.served = principal.Caller{}, "", false
		s.ClientHandler().ServeHTTP(httptest.NewRecorder(), r)
		if !far.served {
			return
		}
		for _, name := range []string{far.caller.Tenant, far.caller.Project, far.name} {
			if !principal.ValidName(name) {
				t.Errorf("%q reached a handler with the name %q", path, name)
			}
		}
		if far.caller.User != "" && !principal.ValidUser(far.caller.User) {
			t.Errorf("%q reached a handler with the user %q", path, far.caller.User)
		}
	})
}

// recorder notes what reached it.
type recorder struct {
	caller principal.Caller
	name   string
	served bool
}

func (r *recorder) Serve(_ http.ResponseWriter, _ *http.Request, c principal.Caller, server string) {
	r.caller, r.name, r.served = c, server, true
}

type texRecorder struct{ *recorder }

func (x texRecorder) Serve(_ http.ResponseWriter, _ *http.Request, c principal.Caller, service, _ string) {
	x.recorder.caller, x.recorder.name, x.recorder.served = c, service, true
}

func TestRefusalsOfTexRoutesSayDetail(t *testing.T) {
	p := serve(t, gatewayConfig(), nil)
	for name, got := range map[string]answer{
		"401": send(t, "POST", p.url+"/tex/dev/p/tex2pdf", "", "Authorization: Bearer nonsense"),
		"403": send(t, "POST", p.url+"/tex/other/p/tex2pdf", "", "X-API-Key: brain-secret"),
	} {
		var v struct{ Detail string }
		if err := json.Unmarshal([]byte(got.body), &v); err != nil || v.Detail == "" || v.Detail != got.message() || fmt.Sprint(got.status) != name {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}
