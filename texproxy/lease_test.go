package texproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// wantLost expects LEASE_LOST in the form of a failed tex2pdf job.
func wantLost(t *testing.T, r reply, id, says string) {
	t.Helper()
	if r.status != 200 {
		t.Errorf("LEASE_LOST came with status %d: its clients take nothing but 200", r.status)
	}
	v := r.json(t)
	text, _ := v["error"].(string)
	if v["job_id"] != id || v["status"] != "failed" || !strings.HasPrefix(text, "LEASE_LOST: ") || !strings.Contains(text, says) {
		t.Errorf("LEASE_LOST reads %s", r.body)
	}
}

func TestAnIdleReapIsMadeGoodOnce(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	for range 2 { // each loss has its one try
		for _, h := range store.revoke(lease.ReasonIdle) {
			if err := p.OnRevoked(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
		wantHeld(t, store, 0)
		if r := get(t, p.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "processing" {
			t.Errorf("the poll after an idle reap answered %s", r.body)
		}
		wantHeld(t, store, 1)
	}
	up.set(id, "completed")
	for range 2 { // the marks of the losses do not haunt the ended job
		if r := get(t, p.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "completed" {
			t.Errorf("the end after an idle reap answered %s", r.body)
		}
		wantHeld(t, store, 0)
	}
}

func TestAnIdleReapWithoutAFreeSlotIsALoss(t *testing.T) {
	t.Parallel()
	p, _, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	store.revoke(lease.ReasonIdle)
	other := mustSubmit(t, p.url) // takes the project's one slot
	start := time.Now()
	wantLost(t, get(t, p.url+"/tex2pdf/status/"+id), id, "not used for longer than its TTL")
	if took := time.Since(start); took > storePatience {
		t.Errorf("it waited %v for a slot", took)
	}
	wantHeld(t, store, 1)
	store.mu.Lock()
	for k := range store.holders {
		if store.holders[k].Payload[payloadJob] == other {
			delete(store.holders, k)
		}
	}
	store.mu.Unlock()
	p.jobs.drop(p.jobs.get("tex2pdf/" + other))
	wantLost(t, get(t, p.url+"/tex2pdf/status/"+id), id, "") // one try, not one for each poll
	wantHeld(t, store, 0)
}

func TestManyPollsAfterAnIdleReapTakeOneSlot(t *testing.T) {
	up, store := newUpstream(t), newFakeStore()
	many := func(_ *Options, p *pod) { p.def.Caps = map[definition.Level]definition.Cap{definition.Global: 6} }
	a := newPod(t, &fakeEngine{store, "pod-a"}, store, up.service(), many)
	b := newPod(t, &fakeEngine{store, "pod-b"}, store, up.service(), many)
	id := mustSubmit(t, a.url)
	store.revoke(lease.ReasonIdle)
	var wg sync.WaitGroup
	for i := range 8 {
		p := []*pod{a, b}[i%2]
		wg.Go(func() {
			if r := get(t, p.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "processing" {
				t.Errorf("a poll answered %s", r.body)
			}
		})
	}
	wg.Wait()
	wantHeld(t, store, 1)
}

func TestAnOperatorsRevocationIsFinal(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	for _, h := range store.revoke(lease.ReasonRevoke) {
		if err := p.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	before := len(up.seen())
	for range 2 {
		wantLost(t, get(t, p.url+"/tex2pdf/status/"+id), id, "operator")
	}
	wantHeld(t, store, 0)
	if n := len(up.seen()) - before; n != 0 {
		t.Errorf("a revoked job was polled %d times upstream", n)
	}
}

func TestARevocationEndsTheRunningPoll(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	inside := make(chan struct{})
	up.script(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done()
	})
	got := make(chan reply, 1)
	go func() { got <- get(t, p.url+"/tex2pdf/status/"+id) }()
	<-inside
	for _, h := range store.revoke(lease.ReasonRevoke) {
		if err := p.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	wantLost(t, <-got, id, "operator")
}

func TestARevocationAfterTheEndLeavesNothing(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	h := store.held()[0]
	up.set(id, "completed")
	get(t, p.url+"/tex2pdf/status/"+id)
	h.State, h.Revocation = lease.Revoked, &lease.Revocation{Reason: lease.ReasonRevoke, At: time.Now()}
	if err := p.OnRevoked(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if p.runs.size() != 0 || len(p.jobs.all()) != 0 {
		t.Errorf("it left %d uses and %d jobs", p.runs.size(), len(p.jobs.all()))
	}
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "completed" {
		t.Errorf("the ended job answers %s", r.body)
	}
}

func TestAServiceThatCanCancelIsToldTo(t *testing.T) {
	cancel := func(s *config.TexService) {
		s.Cancel = config.TexRoute{Methods: []string{"DELETE"}, Path: "/tex2pdf/jobs/{job}"}
	}
	for _, reason := range []lease.Reason{lease.ReasonRevoke, lease.ReasonIdle} {
		t.Run("after "+string(reason), func(t *testing.T) {
			p, up, store := onePod(t, cancel)
			id := mustSubmit(t, p.url)
			up.script(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) })
			h := store.revoke(reason)[0]
			if err := p.OnRevoked(t.Context(), h); err == nil {
				t.Error("a cancel that failed counts as done; no sweep would try again")
			}
			up.script(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) })
			if err := p.OnRevoked(t.Context(), h); err != nil {
				t.Errorf("a job that is gone cannot be cancelled: %v", err)
			}
			seen := up.seen()
			if last := seen[len(seen)-1]; last.Method != "DELETE" || last.URL.Path != "/tex2pdf/jobs/"+id || last.Header.Get("X-API-Key") != "up-secret" {
				t.Errorf("the cancel was %s %s", last.Method, last.URL)
			}
			wantLost(t, get(t, p.url+"/tex2pdf/status/"+id), id, "") // a cancelled job is not taken up again
			h.Revocation.At = time.Now().Add(-time.Hour)
			up.Close()
			if err := p.OnRevoked(t.Context(), h); err != nil {
				t.Errorf("a sweep goes on for a compile that must have ended: %v", err)
			}
		})
	}
	t.Run("by its client", func(t *testing.T) {
		p, up, store := onePod(t, cancel)
		id := mustSubmit(t, p.url)
		up.script(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })
		if r := do(t, request1(t, "DELETE", p.as("acme", "thesis", "u2")+"/tex2pdf/jobs/"+id, nil)); r.status != 404 {
			t.Errorf("another user's cancel answered %d", r.status)
		}
		wantHeld(t, store, 1)
		if r := do(t, request1(t, "DELETE", p.url+"/tex2pdf/jobs/"+id, nil)); r.status != 204 {
			t.Errorf("the cancel answered %d", r.status)
		}
		wantHeld(t, store, 0)
	})
}

func TestARevocationDuringTheSubmit(t *testing.T) {
	p, up, store := onePod(t, func(s *config.TexService) {
		s.Cancel = config.TexRoute{Methods: []string{"DELETE"}, Path: "/tex2pdf/jobs/{job}"}
	})
	up.script(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			store.revoke(lease.ReasonRevoke)
		}
		up.tex2pdf(w, r)
	})
	r := submit(t, p.url)
	wantLost(t, r, "job-1", "operator")
	seen := up.seen()
	if last := seen[len(seen)-1]; last.Method != "DELETE" || last.URL.Path != "/tex2pdf/jobs/job-1" {
		t.Errorf("the job was not cancelled: %s %s", last.Method, last.URL)
	}
}

func TestTheStoreIsDownAtSubmit(t *testing.T) {
	t.Parallel()
	p, up, store := onePod(t, nil)
	store.setDown(true)
	r := submit(t, p.url)
	data, _ := r.json(t)["error"].(map[string]any)
	if r.status != 503 || r.header.Get("Retry-After") == "" || data["code"] != "LEASE_UNAVAILABLE" {
		t.Errorf("the submit answered %d %s", r.status, r.body)
	}
	if n := len(up.seen()); n != 0 {
		t.Errorf("the service got %d requests without a lease", n)
	}
}

func TestTheStoreGoesDownDuringTheSubmit(t *testing.T) {
	t.Parallel()
	p, up, store := onePod(t, nil)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			store.setDown(true)
		}
		up.tex2pdf(w, r)
	})
	id := mustSubmit(t, p.url) // the job runs: its client must hear of it
	store.setDown(false)
	wantHeld(t, store, 1)
	if h := store.held()[0]; h.Payload[payloadJob] != "" {
		t.Fatal("the test missed its point: the payload was written")
	}
	get(t, p.url+"/tex2pdf/status/"+id)
	if h := store.held()[0]; h.Payload[payloadJob] != id {
		t.Errorf("the next poll did not write the job to its holder: %v", h.Payload)
	}
	up.set(id, "completed")
	get(t, p.url+"/tex2pdf/status/"+id)
	wantHeld(t, store, 0)
}

func TestTheStoreIsDownAtAPoll(t *testing.T) {
	t.Parallel()
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	store.setDown(true)
	got := make(chan reply, 1)
	go func() { got <- get(t, p.url+"/tex2pdf/status/"+id) }()
	calls := store.callCount()
	eventually(t, "the poll asks the store again", func() bool { return store.callCount() > calls+2 })
	store.setDown(false)
	if r := <-got; r.status != 200 {
		t.Errorf("a short outage was told to the client: %d %s", r.status, r.body)
	}
	store.setDown(true)
	before := len(up.seen())
	start := time.Now()
	r := get(t, p.url+"/tex2pdf/status/"+id)
	if took := time.Since(start); r.status != 503 || took < storePatience || took > 2*storePatience {
		t.Errorf("a long outage answered %d after %v", r.status, took)
	}
	if len(up.seen()) != before {
		t.Error("the service was polled without a check")
	}
	store.setDown(false)
	wantHeld(t, store, 1)
}

func TestTheStoreIsDownAtTheEnd(t *testing.T) {
	t.Parallel()
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		store.setDown(true)
		up.tex2pdf(w, r)
	})
	up.set(id, "completed")
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.status != 200 || r.json(t)["status"] != "completed" {
		t.Errorf("the result is ready and the client got %d %s", r.status, r.body)
	}
	up.script(nil)
	if r := get(t, p.url+"/tex2pdf/download/"+id); r.status != 200 {
		t.Errorf("the download answered %d", r.status)
	}
	wantHeld(t, store, 1)
	store.setDown(false)
	eventually(t, "the lease is released once the store is back", func() bool { return len(store.held()) == 0 })
}

func TestAnyPodServesTheNextPoll(t *testing.T) {
	up, store := newUpstream(t), newFakeStore()
	a := newPod(t, &fakeEngine{store, "pod-a"}, store, up.service(), func(o *Options, _ *pod) { o.Pod = "pod-a" })
	b := newPod(t, &fakeEngine{store, "pod-b"}, store, up.service(), func(o *Options, _ *pod) { o.Pod = "pod-b" })
	id := mustSubmit(t, a.url)
	if r := get(t, b.url+"/tex2pdf/status/"+id); r.status != 200 {
		t.Errorf("the other pod answered %d %s", r.status, r.body)
	}
	if h := store.held()[0]; h.Pod != "pod-b" {
		t.Errorf("the holder's pod is %s", h.Pod)
	}
	if !a.servedElsewhere(t.Context(), a.jobs.get("tex2pdf/"+id)) || b.servedElsewhere(t.Context(), b.jobs.get("tex2pdf/"+id)) {
		t.Error("both pods watch the job, or none")
	}
	up.set(id, "completed")
	get(t, b.url+"/tex2pdf/status/"+id)
	wantHeld(t, store, 0)
	if r := get(t, a.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "completed" {
		t.Errorf("the first pod does not know of the end: %s", r.body)
	}
	if r := get(t, a.url+"/tex2pdf/download/"+id); r.status != 200 {
		t.Errorf("the first pod's download answered %d", r.status)
	}
}

func TestADeadPodsJobIsAdopted(t *testing.T) {
	up, store := newUpstream(t), newFakeStore()
	fast := func(s *config.TexService) { s.Abandoned.Every = 5 * time.Millisecond }
	svc := up.service()
	fast(&svc)
	a := newPod(t, &fakeEngine{store, "pod-a"}, store, svc)
	id := mustSubmit(t, a.url)
	a.server.Close()
	b := newPod(t, &fakeEngine{store, "pod-b"}, store, svc)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	b.Start(ctx)
	if err := b.Adopt(t.Context(), store.held()[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the adopting pod polls the job", func() bool {
		seen := up.seen()
		return seen[len(seen)-1].URL.Path == "/tex2pdf/status/"+id
	})
	wantHeld(t, store, 1)
	up.set(id, "completed")
	eventually(t, "its slot is free", func() bool { return len(store.held()) == 0 })
	if r := get(t, b.url+"/tex2pdf/download/"+id); r.status != 200 {
		t.Errorf("the download answered %d", r.status)
	}
	if err := b.Adopt(t.Context(), lease.Holder{Token: "x", Payload: lease.Payload{payloadService: "tex2pdf"}}); err != nil || len(b.jobs.all()) != 0 {
		t.Errorf("a submit that died with its pod is watched: %v", err)
	}
}

func TestAScopeWithoutALease(t *testing.T) {
	for _, value := range []string{"none", ""} {
		t.Run("by "+value, func(t *testing.T) {
			p, up, store := onePod(t, nil)
			p.settings.lease[""] = value
			for range 3 { // no cap holds them back
				id := mustSubmit(t, p.url)
				up.set(id, "completed")
				for _, path := range []string{"/tex2pdf/status/", "/tex2pdf/download/"} {
					if r := get(t, p.url+path+id); r.status != 200 {
						t.Errorf("%s answered %d", path, r.status)
					}
					if r := get(t, p.as("evil", "thesis", "u1")+path+id); r.status != 404 {
						t.Errorf("another tenant got %d from %s", r.status, path)
					}
				}
			}
			if n := store.callCount(); n != 0 {
				t.Errorf("%d store calls were made without a lease", n)
			}
		})
	}
}

func TestAScopeWithoutALeaseSeesNoOthersJobs(t *testing.T) {
	up, store := newUpstream(t), newFakeStore()
	a := newPod(t, &fakeEngine{store, "pod-a"}, store, up.service())
	b := newPod(t, &fakeEngine{store, "pod-b"}, store, up.service())
	b.settings.lease["free"] = "none"
	id := mustSubmit(t, a.url)
	if r := get(t, b.as("acme", "free", "u1")+"/tex2pdf/status/"+id); r.status != 404 {
		t.Errorf("a project that switched its lease off got %d for another's job", r.status)
	}
	if r := get(t, b.as("acme", "free", "u1")+"/tex2pdf/status/other"); r.status != 404 || !strings.Contains(r.body, "Job not found") {
		t.Errorf("a job that nobody has is the service's to answer: %d %s", r.status, r.body)
	}
}

func TestALeaseThatNobodyDefined(t *testing.T) {
	p, up, _ := onePod(t, nil)
	p.settings.lease[""] = "typo"
	r := submit(t, p.url)
	data, _ := r.json(t)["error"].(map[string]any)
	if r.status != 503 || data["code"] != "LEASE_UNAVAILABLE" || data["permanent"] != true || !strings.Contains(r.body, "typo") {
		t.Errorf("a typo in tex.lease answered %d %s", r.status, r.body)
	}
	if r.header.Get("Retry-After") != "" {
		t.Error("waiting will not help, and the answer says so")
	}
	if len(up.seen()) != 0 {
		t.Error("a typo lifted the protection")
	}
}

func TestSettingsThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		err       error
		permanent bool
	}{
		"since they are wrong":          {strictyaml.Problems{{File: "secret/place/settings.yaml", What: "a setting is one value"}}, true},
		"since their store is far away": {errors.New("connection refused"), false},
	} {
		t.Run(name, func(t *testing.T) {
			p, up, _ := onePod(t, nil)
			p.settings.err = fmt.Errorf("settings: %w", c.err)
			r := submit(t, p.url)
			data, _ := r.json(t)["error"].(map[string]any)
			if r.status != 503 || data["code"] != "LEASE_UNAVAILABLE" || (data["permanent"] == true) != c.permanent || strings.Contains(r.body, "place") {
				t.Errorf("answered %d %s", r.status, r.body)
			}
			if (r.header.Get("Retry-After") == "") != c.permanent {
				t.Errorf("Retry-After is %q", r.header.Get("Retry-After"))
			}
			if len(up.seen()) != 0 {
				t.Error("unreadable settings lifted the protection")
			}
		})
	}
}

func TestLongSubmitsAndPollsKeepTheirLease(t *testing.T) {
	p, up, store := onePod(t, nil, func(_ *Options, p *pod) { p.def.TTL = 30 * time.Millisecond })
	up.script(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		calls := store.callCount()
		eventually(t, "the lease is checked while the service is at work", func() bool { return store.callCount() >= calls+3 })
		up.tex2pdf(w, r)
	})
	id := mustSubmit(t, p.url)
	get(t, p.url+"/tex2pdf/status/"+id)
	wantHeld(t, store, 1)
}

func TestDrainWaitsForASubmitWithoutItsClient(t *testing.T) {
	p, up, _ := onePod(t, nil)
	inside, goOn := make(chan struct{}), make(chan struct{})
	up.script(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-goOn
		up.tex2pdf(w, r)
	})
	done := make(chan struct{})
	go func() { submit(t, p.url); close(done) }()
	<-inside
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Drain(short); err == nil {
		t.Error("Drain did not wait")
	}
	close(goOn)
	<-done
	if err := p.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}
