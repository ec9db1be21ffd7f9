package texproxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/credential"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// scopes is one value for all scopes, or one for a project.
type scopes struct {
	mu    sync.Mutex
	lease map[string]string // project or "" → name
	err   error
}

func (s *scopes) Setting(_ context.Context, _, project, key string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key != settings.TexLease {
		return "", fmt.Errorf("unexpected setting %s", key)
	}
	if s.err != nil {
		return "", s.err
	}
	if v, ok := s.lease[project]; ok {
		return v, nil
	}
	return s.lease[""], nil
}

type definitions map[string]*definition.Definition

func (d definitions) Resolve(_ context.Context, _, _, name string) (*definition.Definition, error) {
	if v, ok := d[name]; ok {
		return v, nil
	}
	return nil, &definition.Error{Lease: name, What: "not defined in any layer", Unknown: true}
}

func (d definitions) Fresh(context.Context, string, string, string) (*definition.Merged, error) {
	return nil, fmt.Errorf("not here")
}

func texDefinition() *definition.Definition {
	return &definition.Definition{
		Name: "tex", Resource: "tex2pdf", TTL: 120 * time.Second, Wait: 50 * time.Millisecond, Label: "tex2pdf",
		Caps: map[definition.Level]definition.Cap{definition.Global: 6, definition.Tenant: 3, definition.Project: 1},
	}
}

// pod is a gateway in front of one service.
type pod struct {
	*Proxy
	url      string // base URL of the service for tenant acme, project thesis, user u1
	server   *httptest.Server
	settings *scopes
	def      *definition.Definition
	log      *bytes.Buffer
	counts   counts
	engine   func(*lease.Options) // changes them
	issuer   string               // of the caller
	also     *definition.Definition
}

type podOption func(*Options, *pod)

// spooled is how many bytes of uploads a pod holds.
func spooled(p *pod) int64 {
	n, _ := p.spool.Taken()
	return n
}

// store is a lease store in memory that several pods can share and that can fail.
type store = storetest.Faulty

func newStore() *store { return storetest.NewFaulty(storetest.NewMemory(time.Now)) }

// calls counts the calls that requests make; engines beat and sweep besides.
func calls(s *store) (n int) {
	for _, verb := range []string{"createHolder", "touch", "setPayload", "deleteHolder", "holders", "claimRecord", "lookupRecord"} {
		n += s.Calls(verb)
	}
	return n
}

// newPod is a pod with an engine of its own over a store.
func newPod(t testing.TB, s lease.Store, id lease.PodID, svc tex.Service, opts ...podOption) *pod {
	t.Helper()
	p := &pod{settings: &scopes{lease: map[string]string{"": "tex"}}, def: texDefinition(), log: &bytes.Buffer{}}
	var logMu sync.Mutex
	o := Options{
		Services: []tex.Service{svc}, Settings: p.settings, Observer: &p.counts, Pod: id,
		SpoolDir: t.TempDir(), Limits: func() config.Limits { return config.Limits{PerPod: 10000, Spool: 2 << 30} },
		Log: slog.New(slog.NewTextHandler(lockedWriter{&logMu, p.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range opts {
		f(&o, p)
	}
	m := storetest.NewManager(t, s, id, func(o *lease.Options) {
		defs := definitions{"tex": p.def}
		if p.also != nil {
			defs[p.also.Name] = p.also
		}
		o.Definitions, o.Observer = defs, &p.counts
		if p.engine != nil {
			p.engine(o)
		}
	})
	o.Leases, o.Records = m, m.Records()
	p.serve(t, o, svc.Name)
	m.Register(HandlerType, p.Proxy)
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// serve makes the pod's proxy and lets clients reach it until the test's end.
func (p *pod) serve(t testing.TB, o Options, service string) {
	t.Helper()
	proxy, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	p.Proxy = proxy
	p.server = httptest.NewServer(p)
	p.url = p.server.URL + "/tex/acme/thesis/@u1/" + service
	t.Cleanup(func() {
		p.server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Drain(ctx); err != nil {
			t.Error(err)
		}
		p.transport.CloseIdleConnections()
		p.Close()
		if n := p.uses.size(); n != 0 {
			t.Errorf("%d leases are still registered as in use", n)
		}
		// A connection that was cut drops its upload when its writer has noticed.
		eventually(t, "nothing of the spool is taken", func() bool { return spooled(p) == 0 })
		_, n := p.spool.Taken()
		if _, m := p.open.Taken(); n+m != 0 {
			t.Errorf("%d callers still have room in the spool, %d requests under way", n, m)
		}
	})
}

// counts are what a pod's engine and proxy have counted.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[key]++
}

func (c *counts) of(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[key]
}

func (c *counts) Acquired(_ string, outcome lease.Outcome, _ time.Duration) {
	c.add("acquire " + string(outcome))
}
func (c *counts) Checked(_ string, outcome lease.Outcome)              { c.add("check " + string(outcome)) }
func (c *counts) Released(_ string, outcome lease.Outcome)             { c.add("release " + string(outcome)) }
func (c *counts) Reaped(lease.Reason)                                  {}
func (c *counts) EventLost()                                           {}
func (c *counts) Reconciled(lease.Outcome)                             {}
func (c *counts) StoreCalled(string, time.Duration, error)             {}
func (c *counts) Drifted(string, definition.Level, int, time.Duration) {}
func (c *counts) Happened(e lease.Event)                               { c.add("event " + string(e.Kind) + " " + e.Reason) }
func (c *counts) Served(service, kind string, _ time.Duration) {
	c.add("served " + service + " " + kind)
}
func (c *counts) Describes(string, ...string)   {}
func (c *counts) Ended(service, outcome string) { c.add("ended " + service + " " + outcome) }

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// ServeHTTP routes as the gateway does.
func (p *pod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.SplitN(r.URL.EscapedPath(), "/", 7) // "" tex tenant project @user service rest
	if len(parts) < 6 {
		http.NotFound(w, r)
		return
	}
	rest := "/"
	if len(parts) == 7 {
		rest += parts[6]
	}
	c := principal.Caller{Principal: principal.Principal{Tenant: parts[2], Project: parts[3], User: strings.TrimPrefix(parts[4], "@"), Issuer: cmp.Or(p.issuer, "key:test")}}
	p.Serve(w, r, c, parts[5], rest)
}

// as is the base URL for another caller.
func (p *pod) as(tenant, project, user string) string {
	for name := range p.services {
		return p.server.URL + "/tex/" + tenant + "/" + project + "/@" + user + "/" + name
	}
	return ""
}

// upstream is a scripted TeX service.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   [][]byte
	handle   http.HandlerFunc
	next     int
	state    map[string]string // job → status
}

// newUpstream speaks the tex2pdf API: every submit is a new job that is
// processing until the test says otherwise.
func newUpstream(t testing.TB) *upstream {
	t.Helper()
	u := &upstream{state: map[string]string{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		handle := u.handle
		u.requests = append(u.requests, r.Clone(context.Background()))
		u.mu.Unlock()
		if handle != nil {
			handle(w, r)
			return
		}
		u.tex2pdf(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) tex2pdf(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bodies = append(u.bodies, body)
	switch id, _ := strings.CutPrefix(r.URL.Path, "/tex2pdf/status/"); {
	case r.Method == http.MethodPost && r.URL.Path == "/tex2pdf":
		u.next++
		id := fmt.Sprintf("job-%d", u.next)
		u.state[id] = "processing"
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"job_id": %q,  "status":"queued","message":"queued \u00fc"}`, id)
	case id != r.URL.Path:
		w.Header().Set("Content-Type", "application/json")
		if u.state[id] == "" {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"detail":"Job not found"}`)
			return
		}
		fmt.Fprintf(w, `{"job_id":%q,"status":%q,  "progress": 1.0}`, id, u.state[id])
	case strings.HasPrefix(r.URL.Path, "/tex2pdf/download/"):
		http.ServeContent(w, r, "x.pdf", time.Unix(1e9, 0), strings.NewReader("%PDF-1.5 0123456789"))
	default:
		http.NotFound(w, r)
	}
}

func (u *upstream) script(h http.HandlerFunc) {
	u.mu.Lock()
	u.handle = h
	u.mu.Unlock()
}

func (u *upstream) set(job, status string) {
	u.mu.Lock()
	u.state[job] = status
	u.mu.Unlock()
}

func (u *upstream) seen() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]*http.Request(nil), u.requests...)
}

func (u *upstream) service() tex.Service {
	return tex.Service{Name: "tex2pdf", Preset: "rbehzadan", Upstream: u.URL, Auth: credential.Auth{Type: "apiKey", HeaderName: "X-API-Key", Value: "up-secret"}}
}

// zipForm is a multipart upload as tex2pdf wants it.
func zipForm(t testing.TB, content []byte) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	w, err := m.CreateFormFile("zip_file", "x.zip")
	if err != nil {
		t.Fatal(err)
	}
	w.Write(content)
	m.Close()
	return m.FormDataContentType(), b.Bytes()
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) json(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatalf("the answer is not JSON: %q", r.body)
	}
	return v
}

func do(t testing.TB, r *http.Request) reply {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("the answer broke off: %v", err)
	}
	return reply{resp.StatusCode, resp.Header, string(body)}
}

func request1(t testing.TB, method, url string, body io.Reader, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func get(t testing.TB, url string, header ...string) reply {
	t.Helper()
	return do(t, request1(t, http.MethodGet, url, nil, header...))
}

func submit(t testing.TB, base string) reply {
	t.Helper()
	contentType, body := zipForm(t, []byte("PK"))
	return do(t, request1(t, http.MethodPost, base+"/tex2pdf", bytes.NewReader(body), "Content-Type", contentType))
}

// mustSubmit submits and returns the job's id.
func mustSubmit(t testing.TB, base string) string {
	t.Helper()
	r := submit(t, base)
	if r.status != http.StatusOK {
		t.Fatalf("submit answered %d %s", r.status, r.body)
	}
	id, _ := r.json(t)["job_id"].(string)
	return id
}

// eventually waits for a change that another goroutine makes.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func wantHeld(t testing.TB, s *store, n int) {
	t.Helper()
	if held := s.Held(t); len(held) != n {
		t.Errorf("%d leases are held, want %d: %+v", len(held), n, held)
	}
}
