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
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
)

func TestMain(m *testing.M) {
	stdio.MaybeRunGuard()
	if os.Getenv("SESSION_TEST_CHILD") != "" {
		os.Exit(runTestChild())
	}
	goleak.VerifyTestMain(m)
}

// engine is the real lease engine over a memory store with faults. It is what the
// proxies of a rig ask, so that it knows for how long they would wait.
type engine struct {
	*lease.Manager
	t     testing.TB
	mem   lease.Store
	store *storetest.Faulty
	saw   storetest.Observed
	cap   int           // of the definition's user level, where it is set before the start
	ttl   time.Duration // of the definition, where it is set before the start
	// handles says that the rig's proxy handles revocations, as in a real pod.
	handles bool
	ahead   atomic.Int64 // of the store's clock

	mu    sync.Mutex
	waits []time.Duration
	pods  []lease.Pod
}

func newEngine(t testing.TB) *engine {
	e := &engine{t: t}
	e.mem = storetest.NewMemory(func() time.Time { return time.Now().Add(time.Duration(e.ahead.Load())) })
	return e
}

func (e *engine) start(r *rig) {
	if e.cap > 0 {
		r.setCap(e.cap)
	}
	if e.ttl > 0 {
		r.docs.def.TTL = e.ttl
	}
	e.store = storetest.NewFaulty(e.mem)
	e.Manager = storetest.NewManager(e.t, e.store, r.opt.Pod, func(o *lease.Options) { o.Definitions, o.Observer = fakeDefs{r.docs}, &e.saw })
}

func (e *engine) AcquireNamed(ctx context.Context, n lease.Named, r lease.Request) (*lease.Lease, error) {
	e.mu.Lock()
	e.waits = append(e.waits, r.MaxWait)
	e.mu.Unlock()
	return e.Manager.AcquireNamed(ctx, n, r)
}

func (e *engine) LivingPods(context.Context) ([]lease.Pod, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pods, nil
}

func (e *engine) setPods(pods ...lease.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pods = pods
}

// until waits for a state of the store.
func (e *engine) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	e.store.Until(t, what, ok)
}

// down lets every call of the store fail, or work again.
func (e *engine) down(down bool) {
	var err error
	if down {
		err = storetest.ErrDown
	}
	e.store.Fail(err)
}

// clock sets the store's clock ahead of the pod's, or behind it.
func (e *engine) clock(ahead time.Duration) { e.ahead.Store(int64(ahead)) }

func (e *engine) holders() []lease.Holder { return e.store.Held(e.t) }
func (e *engine) held() int               { return len(e.holders()) }
func (e *engine) checks() int             { return e.store.Calls("touch") }
func (e *engine) peeks() int              { return e.store.Calls("holder") }

func (e *engine) marks() int {
	hs, err := e.mem.Holders(context.Background(), lease.Filter{States: []lease.State{lease.Revoked}})
	if err != nil {
		e.t.Fatal(err)
	}
	return len(hs)
}

// revoke marks the newest holder, as a reap on another pod does, and returns it.
func (e *engine) revoke(reason lease.Reason) lease.Holder {
	e.t.Helper()
	var newest lease.Holder
	for _, h := range e.holders() {
		if newest.Token == "" || h.CreatedAt.After(newest.CreatedAt) {
			newest = h
		}
	}
	return e.store.Lose(e.t, reason, newest.Token)[0]
}

// bystander leaves what a revocation ends to the test.
type bystander struct{}

func (bystander) OnRevoked(context.Context, lease.Holder) error { return nil }

// fill takes a slot of the rig's user that no session has.
func (r *rig) fill() (release func()) {
	r.t.Helper()
	c := r.caller.Load()
	l, err := r.engine.Acquire(r.t.Context(), lease.Request{Type: "test", Definition: r.docs.def, Tenant: c.Tenant, Project: c.Project, User: c.User})
	if err != nil {
		r.t.Fatal(err)
	}
	return func() {
		if err := l.Release(context.Background()); err != nil {
			r.t.Error(err)
		}
	}
}

// setCap changes the cap of the user level.
func (r *rig) setCap(n int) {
	r.docs.mu.Lock()
	defer r.docs.mu.Unlock()
	d := *r.docs.def
	d.Caps = map[definition.Level]definition.Cap{definition.User: definition.Cap(n)}
	r.docs.def = &d
}

// newProxy is another pod's proxy on the rig's engine.
func newProxy(opt Options, e *engine) *Proxy {
	opt.Leases = e
	p, err := New(opt)
	if err != nil {
		panic(err)
	}
	return p
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
	engine *engine
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
	r := &rig{t: t, engine: newEngine(t), up: newTestUpstream(t), counts: &counts{closed: map[string]int{}, served: map[string]int{}}}
	u, _ := url.Parse(r.up.URL + "/mcp")
	r.docs = &fakeDocs{doc: &server.Document{Name: "browser", Layer: document.System, Tenant: "acme", Project: "thesis", Transport: "http", URL: u,
		Timeout: 10 * time.Second, InitTimeout: 5 * time.Second, MaxCall: time.Hour, OnBusy: "refuse", Lease: "browser"},
		def: &definition.Definition{Name: "browser", Resource: "browser", Caps: map[definition.Level]definition.Cap{definition.User: 1000}, TTL: time.Hour}}
	r.limits.Store(&config.Limits{RequestBody: 1 << 20, PerPod: 1000, PerPrincipal: 100, StdioPerTenant: 10})
	r.caller.Store(&principal.Caller{Principal: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}, OnLost: "notFound"})
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
	r.opt.Seal, r.opt.Servers, r.opt.Observer = ring, r.docs, r.counts
	r.opt.Egress, r.opt.Limits = func() *egress.Policy { return policy }, func() config.Limits { return *r.limits.Load() }
	if r.opt.Pod == "" {
		r.opt.Pod = "pod-a"
	}
	if testing.Verbose() && os.Getenv("SESSION_TEST_LOG") != "" {
		r.opt.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	r.engine.start(r)
	r.proxy = newProxy(r.opt, r.engine)
	var handler lease.Handler = bystander{}
	if r.engine.handles {
		handler = r.proxy
	}
	r.engine.Register(HandlerType, handler)
	r.engine.Register("test", bystander{})
	if err := r.engine.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
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
	id := "7"
	if i := bytes.LastIndex(body, []byte(`"id":`)); i >= 0 {
		id, _, _ = strings.Cut(string(body[i+5:]), ",")
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, strings.TrimRight(id, "}"))
}
