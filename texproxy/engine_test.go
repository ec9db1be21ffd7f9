package texproxy

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// These run on an engine that sweeps, and on its embedded store.

func leasesOf(t testing.TB, p *pod) []lease.Holder {
	t.Helper()
	h, err := p.leases.Find(t.Context(), lease.Filter{Type: HandlerType})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestTheUserLevelCountsTheRequestsUser(t *testing.T) {
	p, _, _ := onePod(t, nil, func(_ *Options, p *pod) { p.def.Caps = map[definition.Level]definition.Cap{definition.User: 1} })
	mustSubmit(t, p.as("acme", "thesis", "u1"))
	if r := submit(t, p.as("acme", "other", "u1")); r.status != 429 || !strings.Contains(r.body, "user limit") {
		t.Errorf("the user's second compile, in another project, answered %d %s", r.status, r.body)
	}
	mustSubmit(t, p.as("acme", "thesis", "u2"))
	r := submit(t, p.as("acme", "thesis", ""))
	data, _ := r.json(t)["error"].(map[string]any)
	if r.status != 503 || data["code"] != "LEASE_UNAVAILABLE" || data["level"] != "user" {
		t.Errorf("a compile of nobody answered %d %s; a capped level is never skipped", r.status, r.body)
	}
}

func TestARevocationReachesTheHandler(t *testing.T) {
	up := newUpstream(t)
	p := realPod(t, filepath.Join(t.TempDir(), "leases.db"), "pod-a", up.service())
	id := mustSubmit(t, p.url)
	inside := make(chan struct{})
	up.script(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done()
	})
	got := make(chan reply, 1)
	go func() { got <- get(t, p.url+"/tex2pdf/status/"+id) }()
	<-inside
	if _, err := p.leases.Revoke(t.Context(), leasesOf(t, p)[0].Token, lease.Cause{Reason: lease.ReasonRevoke, By: "ops"}); err != nil {
		t.Fatal(err)
	}
	wantLost(t, <-got, id, "operator") // the running poll
	up.script(nil)
	wantLost(t, get(t, p.url+"/tex2pdf/status/"+id), id, "operator")
}

func TestAnIdleLeaseIsTakenAnewByTheNextPoll(t *testing.T) {
	up := newUpstream(t)
	svc := up.service()
	svc.Abandoned.Mode = tex.Expire
	p := realPod(t, filepath.Join(t.TempDir(), "leases.db"), "pod-a", svc, func(_ *Options, p *pod) { p.def.TTL = 100 * time.Millisecond })
	id := mustSubmit(t, p.url)
	first := leasesOf(t, p)[0].Token
	eventually(t, "the lease is reaped", func() bool { return len(leasesOf(t, p)) == 0 })
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "processing" {
		t.Errorf("the next poll answered %s", r.body)
	}
	if h := leasesOf(t, p); len(h) == 1 && h[0].Token == first {
		t.Errorf("the holders are %+v; want another lease", h)
	}
}

func TestARestartLosesNoJob(t *testing.T) {
	up := newUpstream(t)
	svc := up.service()
	svc.Abandoned.Every = 20 * time.Millisecond
	path := filepath.Join(t.TempDir(), "leases.db")
	var polled, abandoned string
	t.Run("before", func(t *testing.T) {
		p := realPod(t, path, "pod-a", svc)
		polled, abandoned = mustSubmit(t, p.url), mustSubmit(t, p.as("acme", "other", "u1"))
	})
	t.Run("after", func(t *testing.T) {
		p := realPod(t, path, "pod-b", svc)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p.Start(ctx)
		if r := get(t, p.url+"/tex2pdf/status/"+polled); r.status != 200 || r.json(t)["status"] != "processing" {
			t.Errorf("the poll after the restart answered %d %s", r.status, r.body)
		}
		if r := get(t, p.as("evil", "x", "y")+"/tex2pdf/status/"+polled); r.status != 404 {
			t.Errorf("another tenant got %d", r.status)
		}
		if n := len(leasesOf(t, p)); n != 2 {
			t.Errorf("%d leases are held after the restart, want 2", n)
		}
		up.set(polled, "completed")
		up.set(abandoned, "failed")
		eventually(t, "both slots are free, one of a job that nobody polls", func() bool { return len(leasesOf(t, p)) == 0 })
		if r := get(t, p.as("acme", "other", "u1")+"/tex2pdf/download/"+abandoned); r.status != 200 {
			t.Errorf("the download of the abandoned job answered %d", r.status)
		}
	})
}

// A sync compile whose gateway has died goes on at its service: its slot stays
// taken, and when its TTL is over the service is told to stop.
func TestASyncCompileOutlivesItsPod(t *testing.T) {
	up := newUpstream(t)
	stopped := make(chan string, 1)
	up.script(func(w http.ResponseWriter, r *http.Request) { stopped <- r.URL.Path })
	svc := example(t, "clsi", up.URL)
	path := filepath.Join(t.TempDir(), "leases.db")
	short := func(_ *Options, p *pod) { p.def.TTL = time.Second }
	t.Run("before", func(t *testing.T) {
		p := realPod(t, path, "pod-a", svc, short)
		// What a pod that is killed in a compile leaves behind.
		q := &request{p: p.Proxy, r: request1(t, "POST", p.url, nil), s: p.services["clsi"], owner: owner{tenant: "acme", project: "thesis", user: "u1"}}
		q.m, _ = q.s.find("POST", "/project/abc/user/0f/compile")
		if _, err := q.acquire(t.Context(), lease.Request{Payload: q.compilePayload()}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("after", func(t *testing.T) {
		p := realPod(t, path, "pod-b", svc, short)
		eventually(t, "the dead pod's lease is this pod's", func() bool {
			h := leasesOf(t, p)
			return len(h) == 1 && h[0].Pod == "pod-b"
		})
		if at := <-stopped; at != "/project/abc/user/0f/compile/stop" {
			t.Errorf("the service was told %s", at)
		}
		if h := leasesOf(t, p); len(h) != 0 {
			t.Errorf("the leases are %+v", h)
		}
	})
}

func TestEverybodyIsServedInTheEnd(t *testing.T) {
	up := newUpstream(t)
	up.script(pdf)
	p := realPod(t, filepath.Join(t.TempDir(), "leases.db"), "pod-a", example(t, "texd", up.URL),
		func(_ *Options, p *pod) { p.def.Wait = 20 * time.Second })
	done := make(chan int, 12)
	for i := range 12 {
		base := p.as([]string{"a", "b", "c"}[i%3], "p", "u")
		go func() { done <- do(t, request1(t, "POST", base+"/render", nil)).status }()
	}
	for range 12 {
		if status := <-done; status != 200 {
			t.Errorf("a compile answered %d", status)
		}
	}
}
