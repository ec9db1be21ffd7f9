package texproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

func TestANameBelongsToWhoCompilesUnderItFirst(t *testing.T) {
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

func TestNoReadBindsAName(t *testing.T) {
	p, up, store := syncPod(t, "clsi", pdf)
	evil := p.as("evil", "x", "y")
	for _, method := range []string{"GET", "HEAD"} {
		if r := do(t, request1(t, method, evil+"/project/thesis/build/1/output/output.pdf", nil)); r.status != 404 {
			t.Errorf("%s of a name that nobody has answered %d", method, r.status)
		}
	}
	for _, r := range []*http.Request{request1(t, "DELETE", evil+"/project/thesis", nil), request1(t, "POST", evil+"/project/thesis/compile/stop", nil)} {
		if got := do(t, r); got.status != 404 {
			t.Errorf("%s %s answered %d", r.Method, r.URL.Path, got.status)
		}
	}
	if n := store.Calls("claimRecord"); n != 0 || len(up.seen()) != 0 {
		t.Errorf("they wrote %d records, and the service got %d requests", n, len(up.seen()))
	}
	if r := do(t, request1(t, "POST", p.url+"/project/thesis/compile", strings.NewReader("{}"))); r.status != 200 {
		t.Errorf("the compile of its owner answered %d %s", r.status, r.body)
	}
}

func TestACompileThatTheServiceRefusesBindsNothingForLong(t *testing.T) {
	p, up, store := syncPod(t, "clsi", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(400) })
	do(t, request1(t, "POST", p.as("evil", "x", "y")+"/project/thesis/compile", strings.NewReader("{}")))
	if r, ok, err := store.LookupRecord(t.Context(), recordName, "clsi/p=thesis"); ok || err != nil {
		t.Errorf("it is bound: %+v %v", r, err)
	}
	reserved, ok, err := store.LookupRecord(t.Context(), recordReserved, "clsi/p=thesis")
	if most := p.services["clsi"].HoldMax * 2; !ok || err != nil || reserved.TTL > most {
		t.Errorf("it is reserved %t for %s, want at most %s (%v)", ok, reserved.TTL, most, err)
	}
	up.script(pdf)
}

// Of two who begin under a name at once, one does.
func TestANameIsReservedWhileNobodyKnows(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	p, up, _ := syncPod(t, "clsi", func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-goOn
		pdf(w, r)
	})
	first := make(chan reply, 1)
	go func() { first <- do(t, request1(t, "POST", p.url+"/project/abc/compile", nil)) }()
	<-inside
	if r := do(t, request1(t, "POST", p.as("evil", "x", "y")+"/project/abc/compile", nil)); r.status != 404 {
		t.Errorf("the second one answered %d", r.status)
	}
	if n := len(up.seen()); n != 1 {
		t.Errorf("the service got %d requests", n)
	}
	close(goOn)
	if r := <-first; r.status != 200 {
		t.Errorf("the first one answered %d", r.status)
	}
}

func TestOneUserBindsNoMoreThanSoManyNames(t *testing.T) {
	p, _, store := syncPod(t, "clsi", pdf)
	p.settings.lease[""] = "none"
	compile := func(base, name string) int {
		return do(t, request1(t, "POST", base+"/project/"+name+"/compile", strings.NewReader("{}"))).status
	}
	for i := range namesOfOne {
		if status := compile(p.url, fmt.Sprintf("n%d", i)); status != 200 {
			t.Fatalf("name %d answered %d", i, status)
		}
	}
	writes := store.Calls("claimRecord")
	if status := compile(p.url, "one-more"); status != 429 {
		t.Errorf("one name more answered %d", status)
	}
	if n := store.Calls("claimRecord") - writes; n != 0 {
		t.Errorf("it wrote %d records", n)
	}
	if status := compile(p.url, "n7"); status != 200 {
		t.Errorf("a name that it has answered %d", status)
	}
	if status := compile(p.as("acme", "thesis", "u2"), "another"); status != 200 {
		t.Errorf("another user answered %d", status)
	}
}

// mattj23 creates a session, takes files into it and compiles it at last.
func sessionService(upstream string) tex.Service {
	return tex.Service{
		Name: "sessions", Mode: tex.Job, Upstream: upstream, Owned: []string{"s"},
		Submit: []tex.Route{{Methods: []string{"POST"}, Path: "/session/{s}/finalize", JobID: []tex.Pick{{JSON: "/job"}}}},
		Poll:   tex.Route{Path: "/job/{job}", Terminal: []tex.End{{JSON: "/status", In: []string{"done"}, Outcome: tex.OK}}},
		Other: []tex.Route{
			{Methods: []string{"POST"}, Path: "/session/{s}/files"},
			{Methods: []string{"GET"}, Path: "/session/{s}/files"},
		},
	}
}

func TestASubmitAsksWhoseTheNameIs(t *testing.T) {
	up, store := newUpstream(t), newStore()
	up.script(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"job":"j1","status":"running"}`)
	})
	p := newPod(t, store, "pod-a", sessionService(up.URL))
	bob := p.as("acme", "thesis", "bob")
	if r := get(t, p.url+"/session/s1/files"); r.status != 404 {
		t.Errorf("a session that nobody has answered %d", r.status)
	}
	if r := do(t, request1(t, "POST", p.url+"/session/s1/files", strings.NewReader("x"))); r.status != 200 {
		t.Fatalf("the upload answered %d", r.status)
	}
	seen := len(up.seen())
	for _, r := range []*http.Request{request1(t, "GET", bob+"/session/s1/files", nil), request1(t, "POST", bob+"/session/s1/files", strings.NewReader("x")),
		request1(t, "POST", bob+"/session/s1/finalize", nil)} {
		if got := do(t, r); got.status != 404 {
			t.Errorf("another user's %s %s answered %d", r.Method, r.URL.Path, got.status)
		}
	}
	if n := len(up.seen()) - seen; n != 0 {
		t.Errorf("the service got %d of another's requests", n)
	}
	wantHeld(t, store, 0)
	if r := do(t, request1(t, "POST", p.url+"/session/s1/finalize", nil)); r.status != 200 {
		t.Errorf("the owner's submit answered %d %s", r.status, r.body)
	}
	wantHeld(t, store, 1)
}

// Two credentials may say the same user.
func TestOwnersAreOfTheirIssuer(t *testing.T) {
	for name, lease := range map[string]string{"with a lease": "tex", "without one": "none"} {
		t.Run(name, func(t *testing.T) {
			up, store := newUpstream(t), newStore()
			a, b := newPod(t, store, "pod-a", up.service()), newPod(t, store, "pod-b", up.service())
			a.settings.lease[""], b.settings.lease[""] = lease, lease
			id := mustSubmit(t, a.url)
			for _, p := range []*pod{a, b} {
				p.issuer = "jwt:https://id"
				for _, path := range []string{"/tex2pdf/status/", "/tex2pdf/download/"} {
					if r := get(t, p.url+path+id); r.status != 404 {
						t.Errorf("the same name by another issuer got %d from %s", r.status, path)
					}
				}
				p.issuer = ""
				if r := get(t, p.url+"/tex2pdf/status/"+id); r.status != 200 {
					t.Errorf("the owner got %d", r.status)
				}
			}
		})
	}
}

// A job that a pod of an earlier version has taken names no issuer.
func TestAJobWithoutAnIssuerIsItsUsers(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	h := store.Held(t)[0]
	p.jobs.drop(p.jobs.get("tex2pdf/" + id))
	p.owners.seen.Purge()
	delete(h.Payload, payloadIssuer)
	if ok, err := store.SetPayload(t.Context(), h.Token, h.Payload); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if r := get(t, p.as("acme", "thesis", "u2")+"/tex2pdf/status/"+id); r.status != 404 {
		t.Errorf("another user got %d", r.status)
	}
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.status != 200 {
		t.Errorf("its user got %d", r.status)
	}
	up.set(id, "completed")
	get(t, p.url+"/tex2pdf/status/"+id)
	wantHeld(t, store, 0)
}

// What the store does not know is nobody's, with and without a lease.
func TestAJobOfAScopeWithoutALeaseOutlivesItsPod(t *testing.T) {
	up, store := newUpstream(t), newStore()
	a := newPod(t, store, "pod-a", up.service())
	b := newPod(t, store, "pod-b", up.service())
	a.settings.lease[""], b.settings.lease[""] = "none", "none"
	id := mustSubmit(t, a.url)
	for _, path := range []string{"/tex2pdf/status/", "/tex2pdf/download/"} {
		if r := get(t, b.as("evil", "x", "y")+path+id); r.status != 404 {
			t.Errorf("another tenant got %d from %s", r.status, path)
		}
	}
	for _, path := range []string{"/tex2pdf/status/", "/tex2pdf/download/"} {
		if r := get(t, b.url+path+id); r.status != 200 {
			t.Errorf("the owner got %d from %s on another pod", r.status, path)
		}
		if r := get(t, b.url+path+"unheard-of"); r.status != 404 || strings.Contains(r.body, "Job not found") {
			t.Errorf("a job that nobody has submitted was asked for: %d %s", r.status, r.body)
		}
	}
}

func TestWithoutTheStoreNobodyIsTakenForTheOwner(t *testing.T) {
	t.Parallel()
	p, _, store := syncPod(t, "clsi", pdf)
	store.Fail(storetest.ErrDown)
	if r := get(t, p.url+"/project/abc/build/1/output/output.pdf"); r.status != 503 || !strings.Contains(r.body, "LEASE_UNAVAILABLE") {
		t.Errorf("it answered %d %s", r.status, r.body)
	}
}
