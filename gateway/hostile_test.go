package gateway

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// longest is how long a test waits for what has to come.
const longest = 20 * time.Second

// proxy stands for both proxies.
type proxy func(w http.ResponseWriter, r *http.Request, c principal.Caller)

type asMCP struct{ proxy }

func (p asMCP) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, _ string) {
	p.proxy(w, r, c)
}

type asTex struct{ proxy }

func (p asTex) Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, _, _ string) {
	p.proxy(w, r, c)
}

// short are bounds that a test can wait for.
func short() bounds {
	b := usualBounds()
	b.stall, b.stranger, b.form, b.message, b.upload = 300*time.Millisecond, 3*time.Second, 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	return b
}

// pod is a Server under test.
type pod struct {
	*Server
	log *output.Buffer
}

func start(t *testing.T, b bounds, change func(*Options)) *pod {
	t.Helper()
	log := &output.Buffer{}
	opt := Options{
		Config: &config.Gateway{
			Listen: "127.0.0.1:0", Internal: config.Internal{Listen: "127.0.0.1:0"},
			Limits: config.Limits{RequestBody: 1 << 20, PerPod: 10},
			Identity: config.Identity{
				Anonymous: &config.Anonymous{Tenant: "dev", Projects: []string{"*"}},
				APIKeys: []config.APIKey{
					{Name: "ann", SHA256: sha256.Sum256([]byte("ann-secret")), Tenants: map[string][]string{"acme": {"*"}}, User: "ann"},
					{Name: "bob", SHA256: sha256.Sum256([]byte("bob-secret")), Tenants: map[string][]string{"beta": {"*"}}, User: "bob"},
				},
			},
		},
		Gatherer: prometheus.NewRegistry(),
		Log:      slog.New(slog.NewTextHandler(log, nil)),
	}
	ok := proxy(func(w http.ResponseWriter, r *http.Request, _ principal.Caller) { _, _ = io.Copy(w, r.Body) })
	opt.MCP, opt.Tex = asMCP{ok}, asTex{ok}
	if change != nil {
		change(&opt)
	}
	state, err := NewState(t.Context(), opt.Config, true, nil, opt.Log)
	if err != nil {
		t.Fatal(err)
	}
	opt.Live = NewLive(state)
	s, err := listen(t.Context(), opt, b)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.CloseClients(ctx)
		_ = s.CloseInternal(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return &pod{s, log}
}

// client makes a client that speaks HTTP/2 where the pod has TLS.
func (p *pod) client(t *testing.T) (c *http.Client, base string) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true} //nolint:gosec // self-signed
	t.Cleanup(tr.CloseIdleConnections)
	base = "http://"
	if p.opt.Certificate != nil {
		base = "https://"
	}
	return &http.Client{Transport: tr, Timeout: longest}, base + p.ClientAddr()
}

func selfSigned(t *testing.T) *Certificate {
	t.Helper()
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	return &Certificate{pair: &srv.TLS.Certificates[0]}
}

func post(t *testing.T, c *http.Client, url, key string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := c.Do(r)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return resp, err
}

// eventually waits until done; what it looks at has no event.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for begun := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > longest {
			t.Fatalf("%s: not within %v", what, longest)
		}
	}
}

// bigPage is a page that no window and no socket buffer takes.
var bigPage = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	for range 64 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return
		}
	}
})

func TestStrangersThatDoNotReadKeepNobodyOut(t *testing.T) {
	const many = 50 // and limits.perPod is 10
	t.Run("over HTTP/1.1", func(t *testing.T) {
		p := start(t, short(), func(o *Options) { o.Page = bigPage })
		for range many {
			c, err := net.Dial("tcp", p.ClientAddr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, "GET /insights/dev/leases HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		callersAreServed(t, p)
	})
	t.Run("over HTTP/2", func(t *testing.T) {
		p := start(t, short(), func(o *Options) { o.Page, o.Certificate = bigPage, selfSigned(t) })
		c, base := p.client(t)
		for range many {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/insights/dev/leases", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close() // and nothing is read of it
			if resp.ProtoMajor != 2 {
				t.Fatal(resp.Proto)
			}
		}
		callersAreServed(t, p)
	})
}

func callersAreServed(t *testing.T, p *pod) {
	t.Helper()
	c, base := p.client(t)
	if resp, err := post(t, c, base+"/mcp/acme/p/browser", "ann-secret"); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("a caller among strangers: %v %v", resp, err)
	}
	eventually(t, "the strangers' places are free again", func() bool {
		n, _ := p.strangers.Taken()
		return n == 0
	})
	if resp, err := post(t, c, base+"/mcp/acme/p/browser", "wrong"); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("a stranger afterwards: %v %v", resp, err)
	}
}

func TestAStrangerWithoutAPlaceGetsAHeadOnly(t *testing.T) {
	p := start(t, short(), func(o *Options) {
		o.Config.Identity.APIKeys[0].Roles = []string{config.RoleTenantAdmin}
		o.Tenant = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		o.Page = o.Tenant
		o.PageAdmin = func(r *http.Request, tenant string) string {
			if tenant == "acme" {
				return "ann"
			}
			return ""
		}
	})
	who := quota.Of("127.0.0.1", "", "")
	for p.strangers.Take(who, 1) {
	}
	c, base := p.client(t)
	for what, url := range map[string]string{"a page": "/insights/dev/leases", "a wrong key": "/mcp/acme/p/browser", "nothing": "/x", "a method of metadata": "/.well-known/oauth-protected-resource/mcp/a/b/c"} {
		resp, err := post(t, c, base+url, "wrong")
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.ContentLength != 0 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %v %v", what, resp, err)
		}
	}
	if resp, err := post(t, c, base+"/mcp/acme/p/browser", "ann-secret"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a caller: %v %v", resp, err)
	}
	for key, want := range map[string]int{"ann-secret": http.StatusNoContent, "bob-secret": http.StatusServiceUnavailable, "": http.StatusServiceUnavailable} {
		if resp, err := post(t, c, base+"/brain/acme/admin/leases", key); err != nil || resp.StatusCode != want {
			t.Errorf("the admin API with %q: %v %v, want %d", key, resp, err, want)
		}
	}
	if resp, err := post(t, c, base+"/insights/acme/leases", ""); err != nil || resp.StatusCode != http.StatusNoContent {
		t.Errorf("the page of an admin who is signed in: %v %v", resp, err)
	}
}

func TestWhomAStrangersPlaceCountsFor(t *testing.T) {
	of := func(remote string) quota.Key { return addressOf(&http.Request{RemoteAddr: remote}) }
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"two ports of one address":       {"10.0.0.1:1", "10.0.0.1:2", true},
		"two addresses":                  {"10.0.0.1:1", "10.0.0.2:1", false},
		"two addresses of a /64":         {"[2001:db8::1]:1", "[2001:db8::2]:1", true},
		"two networks":                   {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		"an IPv4 address in IPv6":        {"[::ffff:10.0.0.1]:1", "10.0.0.1:9", true},
		"what is no address is one each": {"pipe", "@", false},
	} {
		if same := of(c.a) == of(c.b); same != c.same {
			t.Errorf("%s: %v", name, same)
		}
	}
}

// drip sends a byte now and then and returns how long the connection lasted.
func drip(t *testing.T, addr, head string) time.Duration {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	_ = c.SetDeadline(begun.Add(longest))
	if _, err := io.WriteString(c, head); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	dripped := make(chan struct{})
	go func() {
		defer close(dripped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				if _, err := io.WriteString(c, "a"); err != nil {
					return
				}
			}
		}
	}()
	_, _ = io.Copy(io.Discard, c)
	close(stop)
	<-dripped
	return time.Since(begun)
}

func TestABodyThatDripsEndsInTime(t *testing.T) {
	p := start(t, short(), func(o *Options) {
		o.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				panic(http.ErrAbortHandler)
			}
		})
		read := proxy(func(w http.ResponseWriter, r *http.Request, _ principal.Caller) { o.Page.ServeHTTP(w, r) })
		o.MCP, o.Tex = asMCP{read}, asTex{read}
	})
	for name, begin := range map[string]string{
		"a form of a stranger":  "POST /insights/x/leases/sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000\r\n\r\n",
		"a message of a caller": "POST /mcp/dev/p/browser HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000\r\n\r\n",
		"an upload in chunks":   "POST /tex/dev/p/tex2pdf/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if took := drip(t, p.ClientAddr(), begin); took > longest/2 {
				t.Errorf("it lasted %v", took)
			}
		})
	}
}

// A client that leaves no room ends its own answer, on every way that answers
// take, and nobody else's.
func TestAnAnswerThatIsNotReadEnds(t *testing.T) {
	stalled := make(chan error, 1)
	endless := proxy(func(w http.ResponseWriter, r *http.Request, _ principal.Caller) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.HasSuffix(r.URL.Path, "/small") {
			return
		}
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				stalled <- err
				return
			}
		}
	})
	ended := func(t *testing.T) {
		t.Helper()
		select {
		case err := <-stalled:
			if err == nil {
				t.Error("no error")
			}
		case <-time.After(longest):
			t.Fatal("the handler writes for good")
		}
	}
	t.Run("over HTTP/2, where the connection goes on", func(t *testing.T) {
		p := start(t, short(), func(o *Options) { o.MCP, o.Certificate = asMCP{endless}, selfSigned(t) })
		c, base := p.client(t)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/mcp/acme/p/big", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer ann-secret")
		resp, err := c.Do(r)
		if err != nil || resp.ProtoMajor != 2 {
			t.Fatal(resp, err)
		}
		defer resp.Body.Close()
		ended(t)
		if resp, err := post(t, c, base+"/mcp/acme/p/small", "ann-secret"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("the next on the connection: %v %v", resp, err)
		}
	})
	p := start(t, short(), func(o *Options) { o.MCP = asMCP{endless} })
	for name, request := range map[string]string{
		"over HTTP/1.1 by net/http": "POST /mcp/dev/p/big HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"over HTTP/1.1 without it":  "POST /mcp/dev/p/big HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
		"over HTTP/1.1 after a 100": "POST /mcp/dev/p/big HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", p.ClientAddr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			ended(t)
		})
	}
}

// An event stream that lives is longer than what bounds a stranger's answer.
func TestAnEventStreamOutlivesAStrangersTime(t *testing.T) {
	b := short()
	b.stranger = 50 * time.Millisecond
	goOn := make(chan struct{})
	p := start(t, b, func(o *Options) {
		o.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-goOn
			_, _ = io.WriteString(w, "data: 2\n\n")
		})
	})
	c, base := p.client(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/insights/dev/leases/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	br := bufio.NewReader(resp.Body)
	if line, err := br.ReadString('\n'); err != nil || line != "data: 1\n" {
		t.Fatal(line, err)
	}
	time.AfterFunc(4*b.stranger, func() { close(goOn) })
	if rest, err := io.ReadAll(br); err != nil || !strings.Contains(string(rest), "data: 2") {
		t.Errorf("%q %v", rest, err)
	}
}

func TestBodiesCountInBytes(t *testing.T) {
	limits := config.Limits{RequestBody: 1 << 20, PerPod: 1}
	b := newBodyBudget(func() config.Limits { return limits })
	ann, bob := quota.Of("acme", "p", "ann"), quota.Of("beta", "p", "bob")
	open := func(who quota.Key, size int) (*http.Request, func()) {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", size)))
		return r, b.charge(r, who)
	}
	var releases []func()
	refused := 0
	for range 100 {
		r, release := open(ann, 1<<20)
		if _, err := io.ReadAll(r.Body); errors.Is(err, quota.ErrFull) {
			refused++
			release()
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	if whole := 100 - refused; whole < 3 || whole > restInTotal {
		t.Errorf("%d bodies of the greatest length of one user were taken", whole)
	}
	if n, _ := b.rest.Taken(); n > restInTotal*limits.RequestBody/quota.Parts {
		t.Errorf("one user has %d bytes", n)
	}
	for _, c := range []struct {
		what string
		who  quota.Key
		size int
	}{{"a small one of the same user", ann, 1000}, {"a small one of another tenant", bob, 1000}, {"a large one of another tenant", bob, 1 << 20}} {
		r, release := open(c.who, c.size)
		if got, err := io.ReadAll(r.Body); err != nil || len(got) != c.size {
			t.Errorf("%s: %d bytes, %v", c.what, len(got), err)
		}
		release()
	}
	for _, release := range releases {
		release()
		release() // which gives nothing back twice
	}
	for _, p := range []*quota.Pool{b.first, b.rest} {
		if n, sharers := p.Taken(); n != 0 || sharers != 0 {
			t.Errorf("%d bytes are still taken by %d", n, sharers)
		}
	}
	r, release := open(ann, 1000)
	body := r.Body
	release()
	if _, err := body.Read(make([]byte, 10)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("a read after the end: %v", err)
	}
	if n, _ := b.first.Taken(); n != 0 {
		t.Errorf("it took %d bytes", n)
	}
}

// A caller whose bodies have no room is refused while it sends, and others are not.
func TestUnfinishedBodiesOfOneUserAreBounded(t *testing.T) {
	over := make(chan error, 64)
	p := start(t, usualBounds(), func(o *Options) {
		o.Config.Limits.RequestBody = 1 << 20
		o.MCP = asMCP{func(w http.ResponseWriter, r *http.Request, _ principal.Caller) {
			if _, err := io.ReadAll(r.Body); err != nil {
				over <- err
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}}
	})
	part := make([]byte, 900<<10)
	for range 2 * restInTotal {
		c, err := net.Dial("tcp", p.ClientAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /mcp/acme/p/browser HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ann-secret\r\nContent-Length: %d\r\n\r\n", 1<<20)
		if _, err := c.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-over:
		if !errors.Is(err, quota.ErrFull) {
			t.Errorf("refused by %v", err)
		}
	case <-time.After(longest):
		t.Fatal("nobody was refused")
	}
	c, base := p.client(t)
	if resp, err := post(t, c, base+"/mcp/beta/p/browser", "bob-secret"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("somebody else: %v %v", resp, err)
	}
	if n, _ := p.bodies.rest.Taken(); n > restInTotal<<20/quota.Parts {
		t.Errorf("one user has %d bytes", n)
	}
}

func TestRefusedRequestsDoNotFillTheLog(t *testing.T) {
	const many = 400
	for _, way := range []string{"HTTP/1.1", "HTTP/2"} {
		for name, c := range map[string]struct{ path, key, sender string }{
			"wrong keys":                       {"/mcp/acme/p/browser", "wrong", ""},
			"no address":                       {"/nothing", "", ""},
			"a key for what it does not open":  {"/mcp/beta/p/browser", "ann-secret", "sender=key:ann"},
			"a tenant's requests that fail":    {"/mcp/acme/p/browser", "ann-secret", "sender=acme"},
			"a page's requests that are wrong": {"/insights/acme/leases", "", ""},
		} {
			t.Run(name+" over "+way, func(t *testing.T) {
				p := start(t, usualBounds(), func(o *Options) {
					o.MCP = asMCP{func(w http.ResponseWriter, _ *http.Request, _ principal.Caller) { w.WriteHeader(http.StatusNotFound) }}
					if way == "HTTP/2" {
						o.Certificate = selfSigned(t)
					}
				})
				client, base := p.client(t)
				for range many {
					if resp, err := post(t, client, base+c.path, c.key); err != nil || resp.StatusCode < 400 {
						t.Fatal(resp, err)
					}
				}
				lines := strings.Count(p.log.String(), "msg=request ")
				if most := ratelog.Burst + ratelog.PerSecond*int(longest/time.Second); lines < ratelog.Burst || lines > most {
					t.Errorf("%d lines of %d requests", lines, many)
				}
				if !strings.Contains(p.log.String(), c.sender) {
					t.Errorf("whose they are is not said: %.2000s", p.log.String())
				}
			})
		}
	}
}

func TestAllScrapesHaveOneBound(t *testing.T) {
	release, in := make(chan struct{}), make(chan struct{}, 3*maxScrapes)
	p := start(t, usualBounds(), func(o *Options) {
		o.Gatherer = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			in <- struct{}{}
			<-release
			return nil, nil
		})
	})
	var refused atomic.Int32
	done := make(chan struct{}, 3*maxScrapes)
	scrape := func() {
		defer func() { done <- struct{}{} }()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.InternalAddr()+"/metrics", nil)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			refused.Add(1)
		}
	}
	for range maxScrapes {
		go scrape()
		<-in
	}
	go scrape()
	select {
	case <-done:
	case <-in:
		t.Error("one scrape more than there may be is gathered")
	case <-time.After(longest):
		t.Error("one scrape more than there may be waits")
	}
	close(release)
	for range maxScrapes {
		<-done
	}
	if n := refused.Load(); n != 1 {
		t.Errorf("%d were refused", n)
	}
}

func TestAPageOfAnotherSiteDoesNothingWithoutACredential(t *testing.T) {
	var served atomic.Int32
	p := start(t, usualBounds(), func(o *Options) {
		count := proxy(func(http.ResponseWriter, *http.Request, principal.Caller) { served.Add(1) })
		o.MCP, o.Tex = asMCP{count}, asTex{count}
		o.Config.Origins = []string{"https://app.example"}
	})
	c, base := p.client(t)
	for name, x := range map[string]struct {
		method, path, header string
		status               int
	}{
		"an image that compiles":       {"GET", "/tex/dev/p/online/compile?text=x", "Sec-Fetch-Site: cross-site", 403},
		"a form that compiles":         {"POST", "/tex/dev/p/online/compile", "Sec-Fetch-Site: cross-site", 403},
		"an MCP message":               {"POST", "/mcp/dev/p/browser", "Sec-Fetch-Site: cross-site", 403},
		"a listed page of another one": {"POST", "/mcp/dev/p/browser", "Sec-Fetch-Site: cross-site; Origin: https://app.example", 200},
		"a page of this machine":       {"GET", "/tex/dev/p/online/compile?text=x", "Sec-Fetch-Site: same-site", 200},
		"an address that is typed":     {"GET", "/tex/dev/p/online/compile?text=x", "Sec-Fetch-Site: none", 200},
		"a program":                    {"GET", "/tex/dev/p/online/compile?text=x", "", 200},
		"a link, with a credential":    {"GET", "/tex/acme/p/online/x.pdf", "Sec-Fetch-Site: cross-site; Authorization: Bearer ann-secret", 200},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), x.method, base+x.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for h := range strings.SplitSeq(x.header, "; ") {
				if name, value, ok := strings.Cut(h, ": "); ok {
					r.Header.Set(name, value)
				}
			}
			before := served.Load()
			resp, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != x.status || (served.Load() > before) != (x.status == 200) {
				t.Errorf("%d, served %v", resp.StatusCode, served.Load() > before)
			}
		})
	}
}

func TestARequestOfTheGatewayItselfIsRefused(t *testing.T) {
	p := start(t, usualBounds(), func(o *Options) { o.OwnHop = func(mark string) bool { return mark == "ours" } })
	c, base := p.client(t)
	for mark, want := range map[string]int{"ours": http.StatusLoopDetected, "another gateway's": http.StatusOK} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/mcp/dev/p/browser", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Vance-Hop", mark)
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d", mark, resp.StatusCode)
		}
	}
}

func TestAPreflightNamesTheHeadersOfKeys(t *testing.T) {
	p := start(t, usualBounds(), func(o *Options) {
		o.Config.Identity.APIKeys[0].UserHeader = "X-Our-User"
		o.Config.Origins = []string{"https://app.example"}
	})
	c, base := p.client(t)
	ask := func(method string, headers ...string) http.Header {
		r, err := http.NewRequestWithContext(t.Context(), method, base+"/mcp/dev/p/browser/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", "https://app.example")
		for _, h := range headers {
			r.Header.Set(h, "POST")
		}
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.Header
	}
	allowed := ask(http.MethodOptions, "Access-Control-Request-Method").Get("Access-Control-Allow-Headers")
	for _, name := range []string{"X-Our-User", "X-Vance-User", "Authorization", "Mcp-Session-Id", "Range"} {
		if !strings.Contains(allowed, name) {
			t.Errorf("a page may not send %s: %s", name, allowed)
		}
	}
	readable := ask(http.MethodPost).Get("Access-Control-Expose-Headers")
	for _, name := range []string{"Content-Range", "Content-Disposition", "Accept-Ranges", "Retry-After", "Mcp-Session-Id", "WWW-Authenticate", "X-Request-Id"} {
		if !strings.Contains(readable, name) {
			t.Errorf("a page may not read %s: %s", name, readable)
		}
	}
}

// A token is judged once, and a stream may last for hours.
func TestAStreamEndsWithTheTokenThatOpenedIt(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"k","x":%q}]}`, base64.RawURLEncoding.EncodeToString(public))
	}))
	defer provider.Close()
	const issuer = "https://id.example"
	causes := make(chan error, 1)
	listens := proxy(func(w http.ResponseWriter, r *http.Request, _ principal.Caller) {
		if r.Method == http.MethodGet {
			<-r.Context().Done()
			causes <- context.Cause(r.Context())
		}
	})
	p := start(t, usualBounds(), func(o *Options) {
		o.MCP = asMCP{listens}
		o.Config.Identity.JWT = &config.JWT{Issuer: issuer, Audience: "gateway", JWKSURL: provider.URL, Claims: config.Claims{Tenant: "tenant", Projects: "projects"}}
	})
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"iss": issuer, "aud": "gateway", "tenant": "acme", "projects": "p",
		"exp": time.Now().Add(-28 * time.Second).Unix()}) // of which half a minute is left to clocks that differ
	token.Header["kid"] = "k"
	secret, err := token.SignedString(private)
	if err != nil {
		t.Fatal(err)
	}
	c, base := p.client(t)
	if resp, err := post(t, c, base+"/mcp/acme/p/browser", secret); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/mcp/acme/p/browser", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := c.Do(r)
	if err != nil {
		t.Fatalf("the stream does not end: %v", err)
	}
	_ = resp.Body.Close()
	if cause := <-causes; !errors.Is(cause, errExpired) {
		t.Errorf("it ended for %v", cause)
	}
}
