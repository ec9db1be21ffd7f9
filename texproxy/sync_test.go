package texproxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// syncPod is a pod in front of a preset of a sync service.
func syncPod(t *testing.T, preset string, handle http.HandlerFunc, opts ...podOption) (*pod, *upstream, *fakeStore) {
	t.Helper()
	up, store := newUpstream(t), newFakeStore()
	up.script(handle)
	svc := config.TexService{Name: "svc", Preset: preset, Upstream: up.URL + "/base"}
	return newPod(t, &fakeEngine{store, "pod-a"}, store, svc, opts...), up, store
}

func pdf(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/pdf")
	io.WriteString(w, "%PDF-1.5")
}

func TestASyncCompileHoldsItsLeaseForTheRequest(t *testing.T) {
	var during []lease.Holder
	var store *fakeStore
	p, up, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		during = store.held()
		pdf(w, r)
	})
	r := do(t, request1(t, "POST", p.url+"/render?input=x.tex", strings.NewReader("x")))
	if r.status != 200 || r.body != "%PDF-1.5" {
		t.Errorf("the compile answered %d %q", r.status, r.body)
	}
	if len(during) != 1 || !during[0].PodBound {
		t.Errorf("during the compile these leases were held: %+v", during)
	}
	wantHeld(t, store, 0)
	if got := up.seen()[0].URL.String(); got != "/base/render?input=x.tex" {
		t.Errorf("the service saw %s", got)
	}
}

func TestSyncRefusalsHaveTheServicesForm(t *testing.T) {
	for preset, c := range map[string]struct {
		method, path string
		busy         int
		busyHas      string
		lost         int
		lostHas      string
	}{
		"texd":          {"POST", "/render", 422, `"category":"queue"`, 422, `"category":"compilation"`},
		"clsi":          {"POST", "/project/p1/compile", 503, `"status":"unavailable"`, 200, `"status":"terminated"`},
		"latex-on-http": {"POST", "/builds/sync", 429, `"detail"`, 400, `"logs"`},
		"latex-online":  {"GET", "/compile?text=x", 429, `LEASE_BUSY: the project limit`, 400, `LEASE_LOST: `},
		"latexcgi":      {"POST", "/cgi-bin/latexcgi", 429, `LEASE_BUSY: the project limit`, 200, `LEASE_LOST: `},
	} {
		t.Run(preset, func(t *testing.T) {
			inside := make(chan struct{}, 8)
			p, up, store := syncPod(t, preset, func(w http.ResponseWriter, r *http.Request) {
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
			for _, h := range store.revoke(lease.ReasonRevoke) {
				if err := p.OnRevoked(t.Context(), h); err != nil {
					t.Error(err)
				}
			}
			if r := <-first; r.status != c.lost || !strings.Contains(r.body, c.lostHas) || !strings.Contains(r.body, "LEASE_LOST") {
				t.Errorf("lost is %d %s", r.status, r.body)
			}
			wantHeld(t, store, 0)
			if last := up.seen()[len(up.seen())-1]; preset == "clsi" && last.URL.Path != "/base/project/p1/compile/stop" {
				t.Errorf("the compile was not stopped: the last request is %s", last.URL.Path)
			}
		})
	}
}

func TestASyncCompileIsCheckedWhileItRuns(t *testing.T) {
	var store *fakeStore
	p, _, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		calls := store.callCount()
		eventually(t, "it is checked", func() bool { return store.callCount() >= calls+3 })
		store.revoke(lease.ReasonIdle) // and nobody tells this pod
		<-r.Context().Done()
	}, func(_ *Options, p *pod) { p.def.TTL = 30 * time.Millisecond })
	r := do(t, request1(t, "POST", p.url+"/render", nil))
	if r.status != 422 || !strings.Contains(r.body, "LEASE_LOST") {
		t.Errorf("a lost lease answered %d %s", r.status, r.body)
	}
}

func TestASyncAnswerThatHasBegunIsCutWhenItsLeaseIsLost(t *testing.T) {
	var store *fakeStore
	p, _, store := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/pdf")
		io.WriteString(w, "%PDF")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	resp, err := http.Post(p.url+"/render", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	for _, h := range store.revoke(lease.ReasonRevoke) {
		p.OnRevoked(t.Context(), h)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("half an answer arrived as a whole one")
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
	eventually(t, "the slot is free", func() bool { return len(store.held()) == 0 })
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
			up, store := newUpstream(t), newFakeStore()
			up.script(c.handle)
			p := newPod(t, &fakeEngine{store, "pod-a"}, store, config.TexService{Name: "svc", Preset: "texd", Upstream: up.URL, Timeout: 50 * time.Millisecond})
			if r := do(t, request1(t, "POST", p.url+"/render", strings.NewReader("x"))); r.status != c.status {
				t.Errorf("the client got %d %s", r.status, r.body)
			}
			wantHeld(t, store, c.held)
		})
	}
}

func TestASyncCompileHoldsNoLongerThanHoldMax(t *testing.T) {
	up, store := newUpstream(t), newFakeStore()
	up.script(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	p := newPod(t, &fakeEngine{store, "pod-a"}, store, config.TexService{Name: "svc", Preset: "texd", Upstream: up.URL, HoldMax: 50 * time.Millisecond, Timeout: time.Minute})
	if r := do(t, request1(t, "POST", p.url+"/render", nil)); r.status != 504 {
		t.Errorf("the client got %d %s", r.status, r.body)
	}
	wantHeld(t, store, 0)
}

func TestASyncResultIsReachedThroughTheGateway(t *testing.T) {
	p, up, _ := syncPod(t, "latexcgi", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Location", "/base/latexcgi/document_1A.pdf?x=1#p2")
			w.WriteHeader(301)
			return
		}
		pdf(w, r)
	})
	contentType, body := zipForm(t, []byte("x"))
	r := do(t, request1(t, "POST", p.url+"/cgi-bin/latexcgi", bytes.NewReader(body), "Content-Type", contentType))
	at := r.header.Get("Location")
	if r.status != 301 || at != "/tex/acme/thesis/@u1/svc/latexcgi/document_1A.pdf?x=1#p2" {
		t.Fatalf("the compile answered %d to %q", r.status, at)
	}
	if r := get(t, p.as("evil", "x", "y")+"/latexcgi/document_1A.pdf"); r.status != 404 {
		t.Errorf("another tenant's guess answered %d", r.status)
	}
	if r := get(t, p.server.URL+at); r.status != 200 || r.body != "%PDF-1.5" {
		t.Errorf("the result answered %d %q", r.status, r.body)
	}
	if n := len(up.seen()); n != 2 {
		t.Errorf("the service got %d requests, want 2", n)
	}
}

func TestANamedProjectBelongsToItsFirstUser(t *testing.T) {
	p, up, store := syncPod(t, "clsi", pdf)
	if r := do(t, request1(t, "POST", p.url+"/project/abc/user/0f/compile", strings.NewReader("{}"))); r.status != 200 {
		t.Fatalf("the first compile answered %d %s", r.status, r.body)
	}
	other := p.as("evil", "x", "y")
	for _, r := range []*http.Request{
		request1(t, "POST", other+"/project/abc/compile", strings.NewReader("{}")),
		request1(t, "POST", other+"/project/abc/compile/stop", nil),
		request1(t, "GET", other+"/project/abc/build/1/output/output.pdf", nil),
		request1(t, "DELETE", other+"/project/abc", nil),
	} {
		if got := do(t, r); got.status != 404 {
			t.Errorf("another tenant's %s %s answered %d", r.Method, r.URL.Path, got.status)
		}
	}
	if n := len(up.seen()); n != 1 {
		t.Errorf("the service got %d requests, want 1", n)
	}
	for _, r := range []*http.Request{
		request1(t, "POST", p.url+"/project/abc/compile", strings.NewReader("{}")),
		request1(t, "GET", p.url+"/project/abc/build/1-2/output/a/output.pdf", nil),
		request1(t, "POST", p.url+"/project/abc/compile/stop", nil),
	} {
		if got := do(t, r); got.status != 200 {
			t.Errorf("the owner's %s %s answered %d", r.Method, r.URL.Path, got.status)
		}
	}
	wantHeld(t, store, 0)
}

func TestOtherSyncRoutesNeedNoLease(t *testing.T) {
	p, _, store := syncPod(t, "texd", pdf)
	store.setDown(true)
	if r := get(t, p.url+"/status"); r.status != 200 {
		t.Errorf("the status answered %d", r.status)
	}
}

func TestJobPresetsWithOtherShapes(t *testing.T) {
	t.Run("an arXiv job is its source, checksum and format", func(t *testing.T) {
		p, up, store := syncPod(t, "arxiv", nil)
		status := "in_progress"
		up.script(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			if r.Method == "POST" {
				w.Header().Set("Location", up.URL+"/base/task/17/a1B2-_==/pdf")
				w.WriteHeader(202)
				io.WriteString(w, "{}")
				return
			}
			io.WriteString(w, `{"status":"`+status+`"}`)
		})
		r := do(t, request1(t, "POST", p.url+"/", strings.NewReader("{}")))
		if at := r.header.Get("Location"); r.status != 202 || at != "/tex/acme/thesis/@u1/svc/task/17/a1B2-_==/pdf" {
			t.Errorf("the submit answered %d to %q", r.status, at)
		}
		wantHeld(t, store, 1)
		if r := get(t, p.as("evil", "x", "y")+"/17/a1B2-_==/pdf/product"); r.status != 404 {
			t.Errorf("another tenant got %d", r.status)
		}
		get(t, p.url+"/17/a1B2-_==/pdf")
		wantHeld(t, store, 1)
		status = "completed"
		get(t, p.url+"/task/17/a1B2-_==/pdf")
		wantHeld(t, store, 0)
		if r := get(t, p.url+"/17/a1B2-_==/pdf/log"); r.status != 200 {
			t.Errorf("the log answered %d", r.status)
		}
	})
	t.Run("a typst compile may end in its submit", func(t *testing.T) {
		p, up, store := syncPod(t, "typst", pdf)
		if r := do(t, request1(t, "POST", p.url+"/compile", strings.NewReader("x"))); r.status != 200 || r.body != "%PDF-1.5" {
			t.Errorf("the compile answered %d %q", r.status, r.body)
		}
		wantHeld(t, store, 0)
		up.script(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"batchId":"b-1","status":"completed"}`)
		})
		do(t, request1(t, "POST", p.url+"/batch", strings.NewReader("x")))
		wantHeld(t, store, 1)
		get(t, p.url+"/status/b-1")
		wantHeld(t, store, 0)
	})
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
