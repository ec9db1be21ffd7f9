package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
)

func TestMain(m *testing.M) {
	stdio.MaybeRunGuard()
	if os.Getenv("SESSION_TEST_CHILD") != "" {
		os.Exit(runTestChild())
	}
	goleak.VerifyTestMain(m)
}

// fakeEngine is a lease engine with one cap whose store can be switched off and
// whose leases can be taken away at any moment.
type fakeEngine struct {
	mu      sync.Mutex
	cap     int
	ttl     time.Duration
	down    bool // every call fails
	failing map[string]bool
	next    int
	holders map[lease.Token]*lease.Holder
	marks   map[lease.Token]*lease.Holder
	waits   []time.Duration
	checks  int
	peeks   int
	pods    []lease.Pod
	changed chan struct{} // closed and replaced at each change
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{cap: 1000, ttl: time.Hour, failing: map[string]bool{}, holders: map[lease.Token]*lease.Holder{},
		marks: map[lease.Token]*lease.Holder{}, changed: make(chan struct{})}
}

func (e *fakeEngine) notify() { close(e.changed); e.changed = make(chan struct{}) }

// until waits for a state of the engine.
func (e *fakeEngine) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		e.mu.Lock()
		done, ch := ok(), e.changed
		e.mu.Unlock()
		if done {
			return
		}
		select {
		case <-ch:
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		}
	}
}

func (e *fakeEngine) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	e.notify()
}

func (e *fakeEngine) held() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.holders)
}

var errStore = &lease.UnavailableError{Why: "the lease store could not be reached", Err: errors.New("down")}

func (e *fakeEngine) acquire(_ context.Context, r lease.Request) (slot, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.notify()
	if r.Definition.Noop() {
		return noop{}, nil
	}
	if e.down || e.failing["acquire"] {
		return nil, errStore
	}
	e.waits = append(e.waits, r.MaxWait)
	if len(e.holders) >= e.cap {
		return nil, &lease.BusyError{Resource: "browser", Level: definition.User, Cap: definition.Cap(e.cap), Count: len(e.holders),
			Oldest: 90 * time.Second, RetryAfter: 2 * time.Second, Waited: r.MaxWait}
	}
	e.next++
	h := &lease.Holder{Token: lease.Token(fmt.Sprintf("token-%d", e.next)), State: lease.Held, Type: r.Type, Resource: "browser", Tenant: r.Tenant,
		Project: r.Project, User: r.User, PodBound: r.PodBound, Payload: r.Payload, TTL: e.ttl, CreatedAt: time.Now(), LastSeenAt: time.Now()}
	e.holders[h.Token] = h
	return &fakeSlot{e: e, ref: refOf(h)}, nil
}

func (e *fakeEngine) attach(r lease.Ref) slot {
	if r.Token == "" {
		return noop{}
	}
	return &fakeSlot{e: e, ref: r}
}

func (e *fakeEngine) lostReason(_ context.Context, t lease.Token) lease.Reason {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h := e.marks[t]; h != nil {
		return h.Revocation.Reason
	}
	return ""
}

func (e *fakeEngine) find(_ context.Context, f lease.Filter) ([]lease.Holder, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return nil, errStore
	}
	states := f.States
	if len(states) == 0 {
		states = []lease.State{lease.Held}
	}
	var out []lease.Holder
	for _, m := range []map[lease.Token]*lease.Holder{e.holders, e.marks} {
		for _, h := range m {
			if slices.Contains(states, h.State) && (f.Token == "" || f.Token == h.Token) && (f.Key == "" || f.Key == h.Payload[lease.PayloadKey]) &&
				(f.User == "" || f.User == h.User) {
				out = append(out, *h)
			}
		}
	}
	return out, nil
}

func (e *fakeEngine) livingPods(context.Context) ([]lease.Pod, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return nil, errStore
	}
	return e.pods, nil
}

// revoke marks the newest holder, as a reap does, and returns it.
func (e *fakeEngine) revoke(reason lease.Reason) lease.Holder {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.notify()
	var newest *lease.Holder
	for _, h := range e.holders {
		if newest == nil || h.CreatedAt.After(newest.CreatedAt) {
			newest = h
		}
	}
	delete(e.holders, newest.Token)
	newest.State, newest.Revocation = lease.Revoked, &lease.Revocation{Reason: reason, At: time.Now()}
	e.marks[newest.Token] = newest
	return *newest
}

type fakeSlot struct {
	e   *fakeEngine
	ref lease.Ref
}

func (s *fakeSlot) Noop() bool     { return false }
func (s *fakeSlot) Ref() lease.Ref { return s.ref }

func (s *fakeSlot) is(op string, count *int) error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if count != nil {
		*count++
	}
	defer s.e.notify()
	if s.e.down || s.e.failing[op] {
		return errStore
	}
	if s.e.holders[s.ref.Token] == nil {
		reason := lease.Reason("")
		if m := s.e.marks[s.ref.Token]; m != nil {
			reason = m.Revocation.Reason
		}
		return &lease.LostError{Reason: reason}
	}
	return nil
}

func (s *fakeSlot) Check(context.Context) error { return s.is("check", &s.e.checks) }
func (s *fakeSlot) Peek(context.Context) error  { return s.is("peek", &s.e.peeks) }

func (s *fakeSlot) UpdatePayload(_ context.Context, p lease.Payload) error {
	if err := s.is("payload", nil); err != nil {
		return err
	}
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.e.holders[s.ref.Token].Payload = p
	return nil
}

func (s *fakeSlot) Release(context.Context) error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	defer s.e.notify()
	if s.e.down || s.e.failing["release"] {
		return errStore
	}
	delete(s.e.holders, s.ref.Token)
	return nil
}

func (s *fakeSlot) ReleaseUnconfirmed(context.Context) error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	defer s.e.notify()
	if s.e.down || s.e.failing["release"] {
		return errStore
	}
	if h := s.e.holders[s.ref.Token]; h != nil {
		delete(s.e.holders, s.ref.Token)
		h.State, h.Revocation = lease.Revoked, &lease.Revocation{Reason: lease.ReasonClose, At: time.Now()}
		s.e.marks[h.Token] = h
	}
	return nil
}

// fakeDocs resolves one server document and one definition.
type fakeDocs struct {
	mu    sync.Mutex
	doc   *server.Document
	err   error
	def   *definition.Definition
	defEr error
}

func (f *fakeDocs) Resolve(_ context.Context, tenant, project, name string) (*server.Document, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	if f.doc == nil || name != f.doc.Name {
		return nil, server.ErrUnknown
	}
	return f.doc, nil
}

func (f *fakeDocs) Auth(_ context.Context, d *server.Document) (config.Auth, error) {
	return d.Auth, nil
}

func (f *fakeDocs) change(edit func(d *server.Document)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := *f.doc
	edit(&d)
	f.doc = &d
}

type fakeDefs struct{ f *fakeDocs }

func (d fakeDefs) Resolve(context.Context, string, string, string) (*definition.Definition, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	return d.f.def, d.f.defEr
}

func (d fakeDefs) Fresh(context.Context, string, string, string) (*definition.Merged, error) {
	return nil, errors.New("not here")
}

// counts is an Observer.
type counts struct {
	open   atomic.Int64
	mu     sync.Mutex
	closed map[string]int
	served map[string]int
}

func (c *counts) SessionOpened(string) { c.open.Add(1) }
func (c *counts) SessionEnded(string)  { c.open.Add(-1) }
func (c *counts) Served(_, method string, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served[method]++
}
func (c *counts) Closed(outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed[outcome]++
}

// benchRig is a rig in front of a benchmark's upstream.
func benchRig(b *testing.B, u *url.URL) *rig {
	b.Helper()
	return newRig(b, func(r *rig) { r.docs.doc.URL = u })
}

// rig is a gateway pod in front of a test upstream.
type rig struct {
	t      testing.TB
	engine *fakeEngine
	docs   *fakeDocs
	up     *testUpstream
	proxy  *Proxy
	http   *httptest.Server
	counts *counts
	limits atomic.Pointer[config.Limits]
	caller atomic.Pointer[principal.Caller]
	opt    Options
	served atomic.Pointer[func(*http.Request)] // told of each request before it is served
}

var testKey = bytes.Repeat([]byte{7}, seal.KeySize)

func newRig(t testing.TB, edit ...func(*rig)) *rig {
	t.Helper()
	r := &rig{t: t, engine: newFakeEngine(), up: newTestUpstream(t), counts: &counts{closed: map[string]int{}, served: map[string]int{}}}
	u, _ := url.Parse(r.up.URL + "/mcp")
	r.docs = &fakeDocs{doc: &server.Document{Name: "browser", Layer: document.System, Tenant: "acme", Project: "thesis", Transport: "http", URL: u,
		Timeout: 10 * time.Second, InitTimeout: 5 * time.Second, MaxCall: time.Hour, OnBusy: "refuse", Lease: "browser"},
		def: &definition.Definition{Name: "browser", Resource: "browser", Caps: map[definition.Level]definition.Cap{definition.User: 1000}, TTL: time.Hour}}
	r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 1000, PerPrincipal: 100, StdioPerTenant: 10})
	r.caller.Store(&principal.Caller{Principal: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}})
	for _, e := range edit {
		e(r)
	}
	r.start()
	return r
}

func (r *rig) start() {
	ring, err := seal.NewRing(testKey)
	if err != nil {
		r.t.Fatal(err)
	}
	policy, err := egress.New(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.opt.Seal, r.opt.Servers, r.opt.Definitions, r.opt.Observer = ring, r.docs, fakeDefs{r.docs}, r.counts
	r.opt.Egress, r.opt.Limits = func() *egress.Policy { return policy }, func() config.Limits { return *r.limits.Load() }
	if r.opt.Pod == "" {
		r.opt.Pod = "pod-a"
	}
	if testing.Verbose() && os.Getenv("SESSION_TEST_LOG") != "" {
		r.opt.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	r.proxy = newProxy(r.opt, r.engine)
	r.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if f := r.served.Load(); f != nil {
			(*f)(req)
		}
		r.proxy.Serve(w, req, *r.caller.Load(), strings.TrimPrefix(req.URL.Path, "/"))
	}))
	r.t.Cleanup(func() {
		r.stop()
		r.http.CloseClientConnections()
		r.http.Close()
		r.up.close()
	})
}

func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.proxy.Drain(ctx, false); err != nil {
		r.t.Errorf("drain: %v", err)
	}
}

const initBody = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r *rig) do(method, id, body string, header ...string) answer {
	r.t.Helper()
	return r.doCtx(r.t.Context(), method, id, body, header...)
}

func (r *rig) request(ctx context.Context, method, id, body string, header ...string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, r.http.URL+"/browser", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if id != "" {
		req.Header.Set("Mcp-Session-Id", id)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func (r *rig) doCtx(ctx context.Context, method, id, body string, header ...string) answer {
	resp, err := r.http.Client().Do(r.request(ctx, method, id, body, header...))
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// open opens a session and returns its id.
func (r *rig) open() string {
	r.t.Helper()
	a := r.do("POST", "", initBody)
	if a.status != 200 || a.header.Get("Mcp-Session-Id") == "" {
		r.t.Fatalf("open: %+v", a)
	}
	return a.header.Get("Mcp-Session-Id")
}

func call(id any, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%v,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, id, tool)
}

// testUpstream is an MCP server on raw HTTP whose every answer a test decides.
type testUpstream struct {
	*httptest.Server
	t        testing.TB
	mu       sync.Mutex
	sessions map[string]bool
	next     int
	deletes  []http.Header
	seen     []*http.Request
	bodies   []string
	release  chan struct{} // what "slow" waits for
	entered  chan string   // a tool name each time a call has arrived
	push     chan string   // events for the GET stream
	ended    chan string   // a session id each time a DELETE has ended one

	onDelete  int // status; 0 means 200 and the session ends
	onInit    http.HandlerFunc
	onCall    func(w http.ResponseWriter, r *http.Request, tool string, body []byte) bool
	onGet     http.HandlerFunc
	auth      string
	stateless bool
	gone      int // status for unknown sessions
}

func newTestUpstream(t testing.TB) *testUpstream {
	u := &testUpstream{t: t, sessions: map[string]bool{}, release: make(chan struct{}), entered: make(chan string, 100), push: make(chan string), ended: make(chan string, 1000), gone: 404}
	u.Server = httptest.NewUnstartedServer(u)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Listener = l
	u.Start()
	return u
}

func (u *testUpstream) close() {
	u.CloseClientConnections()
	u.Server.Close()
}

func (u *testUpstream) live() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.sessions)
}

func (u *testUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.seen = append(u.seen, r)
	u.bodies = append(u.bodies, string(body))
	id := r.Header.Get("Mcp-Session-Id")
	known := u.sessions[id]
	auth := u.auth
	u.mu.Unlock()
	if auth != "" && r.Header.Get("Authorization") != auth {
		w.Header().Set("WWW-Authenticate", "Bearer realm=upstream")
		w.WriteHeader(401)
		return
	}
	if r.Method == "POST" && bytes.Contains(body, []byte(`"method":"initialize"`)) {
		if u.onInit != nil {
			u.onInit(w, r)
			return
		}
		u.mu.Lock()
		u.next++
		sid := fmt.Sprintf("upstream-%d", u.next)
		u.sessions[sid] = true
		u.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", sid)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("X-Upstream", "yes")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"box","version":"1"}}}`)
		return
	}
	if !known && !u.stateless {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(u.gone)
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}`)
		return
	}
	switch r.Method {
	case "DELETE":
		u.mu.Lock()
		defer u.mu.Unlock()
		u.deletes = append(u.deletes, r.Header)
		if u.onDelete != 0 {
			w.WriteHeader(u.onDelete)
			return
		}
		delete(u.sessions, id)
		u.ended <- id
	case "GET":
		if u.onGet != nil {
			u.onGet(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for {
			select {
			case ev := <-u.push:
				_, _ = io.WriteString(w, ev)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	default:
		u.post(w, r, body)
	}
}

func (u *testUpstream) post(w http.ResponseWriter, r *http.Request, body []byte) {
	_, tool, _ := strings.Cut(string(body), `"name":"`)
	tool, _, _ = strings.Cut(tool, `"`)
	u.mu.Lock()
	onCall := u.onCall
	u.mu.Unlock()
	if onCall != nil && onCall(w, r, tool, body) {
		return
	}
	if !bytes.Contains(body, []byte(`"id"`)) {
		w.WriteHeader(202)
		return
	}
	switch tool {
	case "slow":
		u.entered <- tool
		select {
		case <-u.release:
		case <-r.Context().Done():
			return
		}
	case "stream":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progress\":1}}\n\n")
		w.(http.Flusher).Flush()
		u.entered <- tool
		select {
		case <-u.release:
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
}
