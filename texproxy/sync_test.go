package texproxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// example is the service of a file in examples/tex, all of whose routes lead to
// upstream.
func example(t testing.TB, name, upstream string) tex.Service {
	t.Helper()
	g, err := config.Load(filepath.Join("..", "examples", "tex", name+".yaml"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Tex) != 1 {
		t.Fatalf("%s describes %d services", name, len(g.Tex))
	}
	s := g.Tex[0]
	s.Upstream = upstream
	for _, r := range append([]*tex.Route{&s.Result}, pointers(s.Other)...) {
		if r.Upstream != "" {
			r.Upstream = upstream
		}
	}
	return s
}

func pointers(routes []tex.Route) []*tex.Route {
	var out []*tex.Route
	for i := range routes {
		out = append(out, &routes[i])
	}
	return out
}

// syncPod is a pod in front of a service that is described in examples/tex.
func syncPod(t *testing.T, name string, handle http.HandlerFunc, opts ...podOption) (*pod, *upstream, *store) {
	t.Helper()
	up, store := newUpstream(t), newStore()
	up.script(handle)
	return newPod(t, store, "pod-a", example(t, name, up.URL+"/base"), opts...), up, store
}

func pdf(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/pdf")
	io.WriteString(w, "%PDF-1.5")
}

func TestASyncCompileHoldsItsLeaseForTheRequest(t *testing.T) {
	var during []lease.Holder
	held := make(chan *store, 1)
	p, up, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		during = (<-held).Held(t)
		pdf(w, r)
	})
	held <- store
	r := do(t, request1(t, "POST", p.url+"/render?input=x.tex", strings.NewReader("x")))
	if r.status != 200 || r.body != "%PDF-1.5" {
		t.Errorf("the compile answered %d %q", r.status, r.body)
	}
	// The compile is a foreign service's: it does not end with this process.
	if len(during) != 1 || during[0].PodBound {
		t.Errorf("during the compile these leases were held: %+v", during)
	}
	wantHeld(t, store, 0)
	if got := up.seen()[0].URL.String(); got != "/base/render?input=x.tex" {
		t.Errorf("the service saw %s", got)
	}
}

func TestSyncRefusalsHaveTheServicesForm(t *testing.T) {
	for name, c := range map[string]struct {
		method, path string
		busy         int
		busyHas      string
		lost         int
		lostHas      string
	}{
		"texd":          {"POST", "/render", 422, `"category":"queue"`, 422, `"category":"compilation"`},
		"clsi":          {"POST", "/project/p1/compile", 503, `"status":"unavailable"`, 200, `"status":"terminated"`},
		"latex-on-http": {"POST", "/builds/sync", 429, `"detail"`, 400, `"logs"`},
		"latex-online":  {"GET", "/compile?text=x", 429, `LEASE_BUSY: no slot for a compile of latex-online: the project limit`, 400, `LEASE_LOST: `},
		"latexcgi":      {"POST", "/cgi-bin/latexcgi", 429, `LEASE_BUSY: no slot for a compile of latexcgi: the project limit`, 200, `LEASE_LOST: `},
	} {
		t.Run(name, func(t *testing.T) {
			inside := make(chan struct{}, 8)
			p, up, store := syncPod(t, name, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				inside <- struct{}{}
				if !strings.HasSuffix(r.URL.Path, "/stop") {
					<-r.Context().Done()
				}
			})
			first := make(chan reply, 1)
			go func() { first <- do(t, request1(t, c.method, p.url+c.path, strings.NewReader("x"))) }()
			<-inside
			r := do(t, request1(t, c.method, p.url+c.path, strings.NewReader("x")))
			if r.status != c.busy || !strings.Contains(r.body, c.busyHas) || r.header.Get("Retry-After") == "" {
				t.Errorf("busy is %d %s", r.status, r.body)
			}
			for _, h := range store.Lose(t, lease.ReasonRevoke) {
				if err := p.OnRevoked(t.Context(), h); err != nil {
					t.Error(err)
				}
			}
			if r := <-first; r.status != c.lost || !strings.Contains(r.body, c.lostHas) || !strings.Contains(r.body, "LEASE_LOST") {
				t.Errorf("lost is %d %s", r.status, r.body)
			}
			wantHeld(t, store, 0)
			if last := up.seen()[len(up.seen())-1]; name == "clsi" && last.URL.Path != "/base/project/p1/compile/stop" {
				t.Errorf("the compile was not stopped: the last request is %s", last.URL.Path)
			}
		})
	}
}

func TestASyncCompileIsCheckedWhileItRuns(t *testing.T) {
	shared := make(chan *store, 1)
	p, _, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		store := <-shared
		asked := calls(store)
		eventually(t, "it is checked", func() bool { return calls(store) >= asked+3 })
		store.Lose(t, lease.ReasonIdle) // and nobody tells this pod
		<-r.Context().Done()
	}, func(_ *Options, p *pod) { p.def.TTL = 30 * time.Millisecond })
	shared <- store
	r := do(t, request1(t, "POST", p.url+"/render", nil))
	if r.status != 422 || !strings.Contains(r.body, "LEASE_LOST") {
		t.Errorf("a lost lease answered %d %s", r.status, r.body)
	}
}

// A service of this kind answers when it has compiled, so what is left is between
// it and the client.
func TestASyncSlotIsFreeWhenItsAnswerBegins(t *testing.T) {
	goOn := make(chan struct{})
	p, _, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/pdf")
		io.WriteString(w, "%PDF")
		http.NewResponseController(w).Flush()
		<-goOn
		io.WriteString(w, "-1.5")
	})
	resp, err := http.Post(p.url+"/render", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, store, 0)
	close(goOn)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "-1.5" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

func TestAClientThatReadsSlowlyHoldsNoSlot(t *testing.T) {
	p, _, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 8<<20)) // more than the buffers of two connections
	}, func(_ *Options, p *pod) { p.def.Wait = 0 })
	slow, err := http.Post(p.url+"/render", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Body.Close() // it has read nothing yet
	wantHeld(t, store, 0)
	if r := do(t, request1(t, "POST", p.url+"/render", nil)); r.status != 200 {
		t.Errorf("the next compile answered %d %s", r.status, r.body)
	}
}

func TestASyncClientThatLeavesFreesItsSlotWhenTheCompileEnds(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	p, _, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(inside)
		<-goOn
		pdf(w, r)
	})
	client, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		r, _ := http.NewRequestWithContext(client, "POST", p.url+"/render", strings.NewReader("x"))
		if resp, err := http.DefaultTransport.RoundTrip(r); err == nil {
			resp.Body.Close()
		}
		close(gone)
	}()
	<-inside
	leave()
	<-gone
	wantHeld(t, store, 1)
	close(goOn)
	eventually(t, "the slot is free", func() bool { return len(store.Held(t)) == 0 })
}

func TestASyncUpstreamThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		handle http.HandlerFunc
		status int
		held   int
	}{
		"refuses": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(422); io.WriteString(w, "no") }, 422, 0},
		"hangs":   {func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() }, 504, 1},
		"closes":  {func(_ http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 502, 0},
	} {
		t.Run(name, func(t *testing.T) {
			up, store := newUpstream(t), newStore()
			up.script(c.handle)
			svc := example(t, "texd", up.URL)
			svc.Timeout = 50 * time.Millisecond
			p := newPod(t, store, "pod-a", svc)
			if r := do(t, request1(t, "POST", p.url+"/render", strings.NewReader("x"))); r.status != c.status {
				t.Errorf("the client got %d %s", r.status, r.body)
			}
			wantHeld(t, store, c.held)
		})
	}
}

// At hold.max the slot is given back, and where the silence that a service may
// keep is not shorter, it is hold.max that ends it: each time alike.
func TestASyncCompileHoldsNoLongerThanHoldMax(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"as long as its timeout": 50 * time.Millisecond, "longer than it": time.Minute} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				up, store := newUpstream(t), newStore()
				up.script(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
				svc := example(t, "texd", up.URL)
				svc.HoldMax, svc.Timeout = 50*time.Millisecond, timeout
				p := newPod(t, store, "pod-a", svc)
				if r := do(t, request1(t, "POST", p.url+"/render", nil)); r.status != 504 {
					t.Errorf("the client got %d %s", r.status, r.body)
				}
				wantHeld(t, store, 0)
			}
		})
	}
}

func TestASyncCompileIsCancelledAtHoldMax(t *testing.T) {
	up, store := newUpstream(t), newStore()
	stopped := make(chan struct{})
	up.script(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/stop") {
			close(stopped)
			return
		}
		<-r.Context().Done()
	})
	svc := example(t, "clsi", up.URL)
	svc.HoldMax = 50 * time.Millisecond
	p := newPod(t, store, "pod-a", svc)
	if r := do(t, request1(t, "POST", p.url+"/project/abc/compile", nil)); r.status != 504 {
		t.Errorf("the client got %d %s", r.status, r.body)
	}
	<-stopped
	wantHeld(t, store, 0)
}

func TestASyncResultIsReachedThroughTheGateway(t *testing.T) {
	for name, c := range map[string]struct{ location, want, result string }{
		"in a path": {"/base/latexcgi/document_1A.pdf?x=1#p2", "/latexcgi/document_1A.pdf?x=1#p2", "/latexcgi/document_1A.pdf"},
		"in a query": {"/base/pdfjs/web/viewer.html?file=/base/latexcgi/document_1A.pdf&a=b",
			"/pdfjs/web/viewer.html?file=%2Ftex%2Facme%2Fthesis%2F%40u1%2Flatexcgi%2Flatexcgi%2Fdocument_1A.pdf&a=b", "/latexcgi/document_1A.pdf"},
		"in an escaped query": {"/base/pdfjs/web/viewer.html?file=%2Fbase%2Flatexcgi%2Fdocument_1A.pdf",
			"/pdfjs/web/viewer.html?file=%2Ftex%2Facme%2Fthesis%2F%40u1%2Flatexcgi%2Flatexcgi%2Fdocument_1A.pdf", "/latexcgi/document_1A.pdf"},
	} {
		t.Run(name, func(t *testing.T) {
			p, up, _ := syncPod(t, "latexcgi", func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "POST" {
					io.Copy(io.Discard, r.Body)
					w.Header().Set("Location", c.location)
					w.WriteHeader(301)
					return
				}
				pdf(w, r)
			})
			contentType, body := zipForm(t, []byte("x"))
			r := do(t, request1(t, "POST", p.url+"/cgi-bin/latexcgi", bytes.NewReader(body), "Content-Type", contentType))
			base := "/tex/acme/thesis/@u1/latexcgi"
			if at := r.header.Get("Location"); r.status != 301 || at != base+c.want {
				t.Fatalf("the compile answered %d to %q, want %q", r.status, at, base+c.want)
			}
			if r := get(t, p.as("evil", "x", "y")+c.result); r.status != 404 {
				t.Errorf("another tenant's guess answered %d", r.status)
			}
			if r := get(t, p.url+c.result); r.status != 200 || r.body != "%PDF-1.5" {
				t.Errorf("the result answered %d %q", r.status, r.body)
			}
			if n := len(up.seen()); n != 2 {
				t.Errorf("the service got %d requests, want 2", n)
			}
		})
	}
}

func TestAResultIsBoundWhateverTheStatusOfItsRedirect(t *testing.T) {
	up := newUpstream(t)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/latexcgi/x.pdf")
		w.WriteHeader(307)
	})
	p := newPod(t, newStore(), "pod-a", example(t, "latexcgi", up.URL))
	do(t, request1(t, "POST", p.url+"/cgi-bin/latexcgi", nil))
	up.script(pdf)
	if r := get(t, p.as("evil", "x", "y")+"/latexcgi/x.pdf"); r.status != 404 {
		t.Errorf("another tenant got %d", r.status)
	}
	if r := get(t, p.url+"/latexcgi/x.pdf"); r.status != 200 {
		t.Errorf("its owner got %d", r.status)
	}
}

func TestAResultThatCannotBeBoundIsNotOffered(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Location", "/base/pdfjs/web/viewer.html?file=/base/latexcgi/x.pdf")
		w.WriteHeader(301)
	}
	t.Run("since the store is away", func(t *testing.T) {
		t.Parallel()
		p, _, store := syncPod(t, "latexcgi", answer)
		store.Fail(storetest.ErrDown, "claimRecord")
		if r := do(t, request1(t, "POST", p.url+"/cgi-bin/latexcgi", nil)); r.status != 503 || r.header.Get("Location") != "" {
			t.Errorf("the compile answered %d %s to %q", r.status, r.body, r.header.Get("Location"))
		}
	})
	t.Run("since it is another's", func(t *testing.T) {
		p, _, _ := syncPod(t, "latexcgi", answer)
		do(t, request1(t, "POST", p.as("other", "x", "y")+"/cgi-bin/latexcgi", nil))
		if r := do(t, request1(t, "POST", p.url+"/cgi-bin/latexcgi", nil)); r.status != 404 || r.header.Get("Location") != "" {
			t.Errorf("the compile answered %d %s to %q", r.status, r.body, r.header.Get("Location"))
		}
	})
}

func TestOtherSyncRoutesNeedNoLease(t *testing.T) {
	p, _, store := syncPod(t, "texd", pdf)
	store.Fail(storetest.ErrDown)
	if r := get(t, p.url+"/status"); r.status != 200 {
		t.Errorf("the status answered %d", r.status)
	}
}

// A service may have several routes that begin a compile, and its other paths
// take no slot.
func TestSeveralSubmits(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	p, _, store := syncPod(t, "latex-online", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/compile" {
			close(inside)
			<-goOn
		}
		pdf(w, r)
	})
	first := make(chan reply, 1)
	go func() { first <- get(t, p.url+"/compile?text=x") }()
	<-inside
	wantHeld(t, store, 1)
	if r := do(t, request1(t, "POST", p.url+"/data", strings.NewReader("x"))); r.status != 429 {
		t.Errorf("the other submit answered %d beside the first one", r.status)
	}
	acquires := store.Calls("createHolder")
	for _, path := range []string{"/version", "/health.json", "/style.css", "/"} {
		if r := get(t, p.url+path); r.status != 200 {
			t.Errorf("%s answered %d while a compile runs", path, r.status)
		}
	}
	if r := do(t, request1(t, "HEAD", p.url+"/compile?text=x", nil)); r.status != 405 {
		t.Errorf("HEAD of a GET that compiles answered %d", r.status)
	}
	if n := store.Calls("createHolder") - acquires; n != 0 {
		t.Errorf("%d slots were asked for", n)
	}
	close(goOn)
	<-first
	if r := do(t, request1(t, "POST", p.url+"/data", strings.NewReader("x"))); r.status != 200 {
		t.Errorf("the other submit answered %d", r.status)
	}
	wantHeld(t, store, 0)
}

func TestARouteMayHaveAPortOfItsOwn(t *testing.T) {
	compiles, files := newUpstream(t), newUpstream(t)
	compiles.script(pdf)
	files.script(pdf)
	svc := example(t, "clsi", compiles.URL)
	svc.Result.Upstream = files.URL + "/files"
	for i := range svc.Other {
		if svc.Other[i].Upstream != "" {
			svc.Other[i].Upstream = files.URL + "/files"
		}
	}
	p := newPod(t, newStore(), "pod-a", svc)
	if r := do(t, request1(t, "POST", p.url+"/project/abc/compile", strings.NewReader("{}"))); r.status != 200 {
		t.Fatalf("the compile answered %d", r.status)
	}
	for _, path := range []string{"/project/abc/build/1-2/output/output.pdf", "/project/abc/content/1-2/0123456789abcdef"} {
		if r := get(t, p.url+path); r.status != 200 {
			t.Errorf("%s answered %d", path, r.status)
		}
		if seen := files.seen(); len(seen) == 0 || seen[len(seen)-1].URL.Path != "/files"+path {
			t.Errorf("%s did not go to the files", path)
		}
	}
	if n := len(compiles.seen()); n != 1 {
		t.Errorf("the compile port got %d requests, want 1", n)
	}
}

func TestASyncClientThatHasItsPDFFindsItsSlotFree(t *testing.T) {
	p, _, _ := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "200000")
		w.Write(make([]byte, 200000))
	}, func(_ *Options, p *pod) { p.def.Wait = 0 })
	for i := range 20 {
		if r := do(t, request1(t, "POST", p.url+"/render", nil)); r.status != 200 || len(r.body) != 200000 {
			t.Fatalf("compile %d answered %d", i, r.status)
		}
	}
}
