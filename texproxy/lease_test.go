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

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
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

func TestAnIdleReapIsMadeGood(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	for range 2 {
		for _, h := range store.Lose(t, lease.ReasonIdle) {
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

func TestAJobThatRunsWithoutASlotIsLost(t *testing.T) {
	p, _, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	store.Lose(t, lease.ReasonIdle)
	mustSubmit(t, p.url) // takes the project's one slot
	for range 2 {
		before := p.counts.of("check lost")
		wantLost(t, get(t, p.url+"/tex2pdf/status/"+id), id, "not used for longer than its TTL")
		if n := p.counts.of("check lost") - before; n != 1 {
			t.Errorf("a poll that was answered LEASE_LOST counted %d lost checks, want 1", n)
		}
	}
	if n := p.counts.of("acquire busy"); n != 0 {
		t.Errorf("%d tries to take a slot anew are counted as refusals", n)
	}
	wantHeld(t, store, 1)
	// Once there is a slot again the job has it.
	store.Lose(t, lease.ReasonRevoke)
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "processing" {
		t.Errorf("with a free slot the poll answered %s", r.body)
	}
	wantHeld(t, store, 1)
}

// Whatever became of its lease: the compile is over and the PDF is there.
func TestTheEndOfAJobPassesWithoutItsLease(t *testing.T) {
	for name, why := range map[string]lease.Reason{"after an idle reap": lease.ReasonIdle, "after its pod's death": lease.ReasonPod, "after an operator's revocation": lease.ReasonRevoke} {
		for end, status := range map[string]string{"completed": "completed", "failed": "failed"} {
			t.Run(end+" "+name, func(t *testing.T) {
				p, up, store := onePod(t, nil)
				id := mustSubmit(t, p.url)
				store.Lose(t, why)
				mustSubmit(t, p.url) // takes the project's one slot
				up.set(id, status)
				r := get(t, p.url+"/tex2pdf/status/"+id)
				if r.json(t)["status"] != status || strings.Contains(r.body, "LEASE_LOST") {
					t.Errorf("the poll answered %s", r.body)
				}
				if r := get(t, p.url+"/tex2pdf/download/"+id); r.status != 200 {
					t.Errorf("the download answered %d", r.status)
				}
				wantHeld(t, store, 1)
			})
		}
	}
}

func TestManyPollsAfterAnIdleReapTakeOneSlot(t *testing.T) {
	up, store := newUpstream(t), newStore()
	many := func(_ *Options, p *pod) { p.def.Caps = map[definition.Level]definition.Cap{definition.Global: 6} }
	a := newPod(t, store, "pod-a", up.service(), many)
	b := newPod(t, store, "pod-b", up.service(), many)
	id := mustSubmit(t, a.url)
	store.Lose(t, lease.ReasonIdle)
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
	p, _, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	for _, h := range store.Lose(t, lease.ReasonRevoke) {
		if err := p.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		wantLost(t, get(t, p.url+"/tex2pdf/status/"+id), id, "operator")
	}
	wantHeld(t, store, 0)
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
	for _, h := range store.Lose(t, lease.ReasonRevoke) {
		if err := p.OnRevoked(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	wantLost(t, <-got, id, "operator")
}

func TestARevocationAfterTheEndLeavesNothing(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	h := store.Held(t)[0]
	up.set(id, "completed")
	get(t, p.url+"/tex2pdf/status/"+id)
	h.State, h.Revocation = lease.Revoked, &lease.Revocation{Reason: lease.ReasonRevoke, At: time.Now()}
	if err := p.OnRevoked(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if p.uses.size() != 0 || len(p.jobs.all()) != 0 {
		t.Errorf("it left %d uses and %d jobs", p.uses.size(), len(p.jobs.all()))
	}
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.json(t)["status"] != "completed" {
		t.Errorf("the ended job answers %s", r.body)
	}
}

func TestAServiceThatCanCancelIsToldTo(t *testing.T) {
	cancel := func(s *tex.Service) {
		s.Cancel = tex.Route{Methods: []string{"DELETE"}, Path: "/tex2pdf/jobs/{job}"}
	}
	for _, reason := range []lease.Reason{lease.ReasonRevoke, lease.ReasonIdle} {
		t.Run("after "+string(reason), func(t *testing.T) {
			p, up, store := onePod(t, cancel)
			id := mustSubmit(t, p.url)
			up.script(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) })
			h := store.Lose(t, reason)[0]
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
			up.script(nil)
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
	p, up, store := onePod(t, func(s *tex.Service) {
		s.Cancel = tex.Route{Methods: []string{"DELETE"}, Path: "/tex2pdf/jobs/{job}"}
	})
	up.script(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			store.Lose(t, lease.ReasonRevoke)
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
	store.Fail(storetest.ErrDown)
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
			store.Fail(storetest.ErrDown)
		}
		up.tex2pdf(w, r)
	})
	id := mustSubmit(t, p.url) // the job runs: its client must hear of it
	store.Fail(nil)
	wantHeld(t, store, 1)
	if h := store.Held(t)[0]; h.Payload[payloadJob] != "" {
		t.Fatal("the test missed its point: the payload was written")
	}
	get(t, p.url+"/tex2pdf/status/"+id)
	if h := store.Held(t)[0]; h.Payload[payloadJob] != id {
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
	store.Fail(storetest.ErrDown)
	got := make(chan reply, 1)
	go func() { got <- get(t, p.url+"/tex2pdf/status/"+id) }()
	asked := calls(store)
	eventually(t, "the poll asks the store again", func() bool { return calls(store) > asked+2 })
	store.Fail(nil)
	if r := <-got; r.status != 200 {
		t.Errorf("a short outage was told to the client: %d %s", r.status, r.body)
	}
	store.Fail(storetest.ErrDown)
	before := len(up.seen())
	start := time.Now()
	r := get(t, p.url+"/tex2pdf/status/"+id)
	if took := time.Since(start); r.status != 503 || took < storePatience || took > 2*storePatience {
		t.Errorf("a long outage answered %d after %v", r.status, took)
	}
	if len(up.seen()) != before+1 {
		t.Error("the service was not asked whether the job runs")
	}
	store.Fail(nil)
	wantHeld(t, store, 1)
}

func TestTheStoreIsDownAtTheEnd(t *testing.T) {
	t.Parallel()
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		store.Fail(storetest.ErrDown)
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
	store.Fail(nil)
	eventually(t, "the lease is released once the store is back", func() bool { return len(store.Held(t)) == 0 })
}

func TestAnyPodServesTheNextPoll(t *testing.T) {
	up, store := newUpstream(t), newStore()
	a := newPod(t, store, "pod-a", up.service(), func(o *Options, _ *pod) { o.Pod = "pod-a" })
	b := newPod(t, store, "pod-b", up.service(), func(o *Options, _ *pod) { o.Pod = "pod-b" })
	id := mustSubmit(t, a.url)
	if r := get(t, b.url+"/tex2pdf/status/"+id); r.status != 200 {
		t.Errorf("the other pod answered %d %s", r.status, r.body)
	}
	if h := store.Held(t)[0]; h.Pod != "pod-b" {
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
	up, store := newUpstream(t), newStore()
	fast := func(s *tex.Service) { s.Abandoned.Every = 5 * time.Millisecond }
	svc := up.service()
	fast(&svc)
	a := newPod(t, store, "pod-a", svc)
	id := mustSubmit(t, a.url)
	a.server.Close()
	b := newPod(t, store, "pod-b", svc)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	b.Start(ctx)
	h := store.Held(t)[0]
	if moved, err := store.AdoptHolder(t.Context(), h.Token, "pod-a", "pod-b"); !moved || err != nil {
		t.Fatal(moved, err)
	}
	if err := b.Adopt(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the adopting pod polls the job", func() bool {
		seen := up.seen()
		return seen[len(seen)-1].URL.Path == "/tex2pdf/status/"+id
	})
	wantHeld(t, store, 1)
	up.set(id, "completed")
	eventually(t, "its slot is free", func() bool { return len(store.Held(t)) == 0 })
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
				reads := calls(store)
				for _, path := range []string{"/tex2pdf/status/", "/tex2pdf/download/"} {
					if r := get(t, p.url+path+id); r.status != 200 {
						t.Errorf("%s answered %d", path, r.status)
					}
					if r := get(t, p.as("evil", "thesis", "u1")+path+id); r.status != 404 {
						t.Errorf("another tenant got %d from %s", r.status, path)
					}
				}
				if n := calls(store) - reads; n != 0 {
					t.Errorf("%d store calls were made for a job that this pod knows", n)
				}
			}
			if n, m := store.Calls("createHolder"), p.counts.of("acquire noop"); n != 0 || m != 3 {
				t.Errorf("three compiles without a lease made %d holders and were counted %d times as noop", n, m)
			}
		})
	}
}

func TestAScopeWithoutALeaseSeesNoOthersJobs(t *testing.T) {
	up, store := newUpstream(t), newStore()
	a := newPod(t, store, "pod-a", up.service())
	b := newPod(t, store, "pod-b", up.service())
	b.settings.lease["free"] = "none"
	id := mustSubmit(t, a.url)
	before := len(up.seen())
	for _, job := range []string{id, "other"} {
		if r := get(t, b.as("acme", "free", "u1")+"/tex2pdf/status/"+job); r.status != 404 {
			t.Errorf("a project that switched its lease off got %d for %s", r.status, job)
		}
	}
	if n := len(up.seen()) - before; n != 0 {
		t.Errorf("the service got %d requests", n)
	}
}

func TestAServiceMayHaveALeaseOfItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		lease, setting string
		optional       bool
		held, noop     int
		resource       string
	}{
		"the setting's, where it says none":                  {"", "tex", false, 1, 0, "tex2pdf"},
		"its own":                                            {"own", "tex", false, 1, 0, "engines"},
		"its own, where a setting says none":                 {"own", "none", false, 1, 0, "engines"},
		"its own, where no setting says anything":            {"own", "", false, 1, 0, "engines"},
		"none, where a setting says none of an optional one": {"own", "none", true, 0, 1, ""},
		"none, where no setting names an optional one":       {"own", "", true, 0, 1, ""},
		"its own, where a setting names another":             {"own", "tex", true, 1, 0, "engines"},
		"none, where gateway.yaml says so":                   {"none", "tex", false, 0, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			own := texDefinition()
			own.Name, own.Resource = "own", "engines"
			p, _, store := onePod(t, func(s *tex.Service) { s.Lease, s.Optional = c.lease, c.optional }, func(_ *Options, p *pod) { p.also = own })
			p.settings.lease[""] = c.setting
			mustSubmit(t, p.url)
			wantHeld(t, store, c.held)
			if n := p.counts.of("acquire noop"); n != c.noop {
				t.Errorf("%d acquires are counted as noop, want %d", n, c.noop)
			}
			if c.held == 0 {
				return
			}
			if h := store.Held(t)[0]; h.Resource != c.resource {
				t.Errorf("the slot is one of %s", h.Resource)
			}
			if r := submit(t, p.url); r.status != 429 || !strings.Contains(r.body, "tex2pdf") || !strings.Contains(r.body, c.resource) {
				t.Errorf("a refusal reads %s; it has to name the service and the resource", r.body)
			}
		})
	}
}

func TestOneServiceDoesNotTakeTheSlotsOfAnother(t *testing.T) {
	own := texDefinition()
	own.Name, own.Resource = "own", "engines"
	up, store := newUpstream(t), newStore()
	a := newPod(t, store, "pod-a", up.service())
	b := newPod(t, store, "pod-b", up.service(), func(o *Options, p *pod) { o.Services[0].Lease, p.also = "own", own })
	mustSubmit(t, a.url)
	mustSubmit(t, b.url)
	wantHeld(t, store, 2)
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
		asked := calls(store)
		eventually(t, "the lease is checked while the service is at work", func() bool { return calls(store) >= asked+3 })
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
