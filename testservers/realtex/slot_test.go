//go:build external

package realtex

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// endless is a sync service whose compiles end when they are stopped, whatever
// becomes of who asked for them.
type endless struct {
	*httptest.Server
	began, stopped chan struct{}
}

func newEndless(t *testing.T) *endless {
	t.Helper()
	e := &endless{began: make(chan struct{}, 10), stopped: make(chan struct{}, 10)}
	over := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /compile", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		e.began <- struct{}{}
		<-over
	})
	mux.HandleFunc("POST /compile/stop", func(http.ResponseWriter, *http.Request) { e.stopped <- struct{}{} })
	e.Server = httptest.NewServer(mux)
	t.Cleanup(func() { close(over); e.Close() })
	return e
}

// A sync compile is the service's: a gateway that is killed or told to stop does
// not end it, so its slot stays taken by the next one, and when its TTL is over
// the service is told to stop.
func TestASlotCountsACompileWhoseGatewayIsGone(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, p *pod.Process){
		"killed":       func(_ *testing.T, p *pod.Process) { p.Kill() },
		"told to stop": func(t *testing.T, p *pod.Process) { p.Terminate(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newEndless(t)
			p := pod.Start(t, pod.Config{
				Identity:  identity(),
				Lease:     "reapInterval: 200ms",
				Documents: map[string]string{"_vance/_tenant/_vance/config/lease/tex.yaml": "levels: {project: 1}\nttlSeconds: 5\nwaitMs: 0\n"},
				More: `tex:
  - name: sync
    mode: sync
    upstream: ` + up.URL + `
    submit: {match: {methods: [POST], path: /compile}}
    cancel: {match: {methods: [POST], path: /compile/stop}}
`,
			})
			go through(t, p.URL, "sync", "acme", "thesis", "ada").do("POST", "/compile", "text/x-tex", []byte("x"))
			<-up.began
			end(t, p)
			p = p.Restart(t)
			if n := len(holders(t, p)); n != 1 {
				t.Fatalf("%d leases are held while the compile runs, want 1", n)
			}
			r, err := through(t, p.URL, "sync", "acme", "thesis", "ada").do("POST", "/compile", "text/x-tex", []byte("x"))
			if err != nil || r.status != 429 {
				t.Errorf("a second compile beside it answered %d %s %v", r.status, r.body, err)
			}
			select {
			case <-up.stopped:
			case <-time.After(patience):
				t.Fatal("the service was never told to stop")
			}
			eventually(t, "the slot is back", func() bool { return len(holders(t, p)) == 0 })
			if n := len(up.began); n != 0 {
				t.Errorf("%d compiles more have begun", n)
			}
		})
	}
}

// The first customer's everyday case, with the lease that is bundled: six people
// press the button at once in one project.
func TestSixOfVancesClientsInAProjectWithOneSlot(t *testing.T) {
	s := startServices(t, 0)
	p := pod.Start(t, s.config("", "10s"))
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			pdf, err := through(t, p.URL, "tex2pdf", "acme", "thesis", fmt.Sprintf("user%d", i)).vance(archive(t, document("Hello.")), 3*time.Second)
			if err != nil || !strings.HasPrefix(string(pdf), "%PDF") {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if c := s.job.Engine.Stats()[""]; c.Compiled != 6 || c.Peak != 1 {
		t.Errorf("%+v; want 6 compiles, one at once", c)
	}
	if h := holders(t, p); len(h) != 0 {
		t.Errorf("leases are left: %v", h)
	}
}

func TestAVanishedClientsSlotComesBackWithItsJobsEnd(t *testing.T) {
	t.Parallel()
	up := script(t)
	s := &services{jobURL: up.URL, syncURL: up.URL}
	p := pod.Start(t, s.config("", "10s"))
	c := through(t, p.URL, "tex2pdf", "acme", "thesis", "ada")
	if r, err := c.submit([]byte("zip")); err != nil || r.status != 200 {
		t.Fatalf("the submit answered %d %s %v", r.status, r.body, err)
	}
	got := make(chan time.Time, 1)
	go func() {
		if r, err := c.submit([]byte("zip")); err != nil || r.status != 200 {
			t.Errorf("who waited was answered %d %s %v", r.status, r.body, err)
		}
		got <- time.Now()
	}()
	time.Sleep(3 * time.Second) // the compile takes so long, and nobody polls it
	ended := time.Now()
	up.end("job-1")
	if late := (<-got).Sub(ended); late > 2*time.Second {
		t.Errorf("the slot was back %s after the job's end", late)
	}
}

// What is told to a client is counted.
func TestCompilesWithoutALeaseAndLostOnesAreCounted(t *testing.T) {
	t.Parallel()
	up := script(t)
	s := &services{jobURL: up.URL, syncURL: up.URL}
	c := s.config("", "10s")
	c.Documents = map[string]string{"acme/free/_vance/config/settings.yaml": "tex.lease: none\n"}
	p := pod.Start(t, c)
	free := through(t, p.URL, "tex2pdf", "acme", "free", "ada")
	for range 3 {
		if r, err := free.submit([]byte("zip")); err != nil || r.status != 200 {
			t.Fatalf("a submit without a lease answered %d %s %v", r.status, r.body, err)
		}
	}
	metric(t, p, `vance_lease_acquire_total{outcome="noop",resource="other"}`, 3)
	metric(t, p, `vance_gateway_tex_jobs_total{outcome="ok",service="tex2pdf"}`, 0)

	job := through(t, p.URL, "tex2pdf", "acme", "thesis", "ada")
	r, err := job.submit([]byte("zip"))
	if err != nil || r.status != 200 {
		t.Fatalf("the submit answered %d %s %v", r.status, r.body, err)
	}
	path := "/tex2pdf/status/" + r.member("job_id")
	revokeAll(t, p)
	metric(t, p, `vance_lease_check_total{outcome="lost",resource="tex2pdf"}`, 0)
	for n := range 2 {
		if r, err := job.do("GET", path, "", nil); err != nil || !strings.Contains(string(r.body), "LEASE_LOST") {
			t.Errorf("a poll of the revoked job answered %d %s %v", r.status, r.body, err)
		}
		metric(t, p, `vance_lease_check_total{outcome="lost",resource="tex2pdf"}`, n+1)
	}
	up.end(r.member("job_id"))
	if r, err := job.do("GET", path, "", nil); err != nil || r.member("status") != "completed" {
		t.Errorf("the poll after its end answered %d %s %v", r.status, r.body, err)
	}
	metric(t, p, `vance_gateway_tex_jobs_total{outcome="ok",service="tex2pdf"}`, 1)
}

// metric expects a series of a pod to have a value; one that is not there has 0.
func metric(t *testing.T, p *pod.Process, series string, want int) {
	t.Helper()
	if got := seriesOf(t, p, series); got != want {
		t.Errorf("%s is %d, want %d", series, got, want)
	}
}

// revokeAll takes every TeX lease away as an operator does.
func revokeAll(t *testing.T, p *pod.Process) {
	t.Helper()
	for _, h := range holders(t, p) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", fmt.Sprintf("%s/internal/lease/admin/holders/%v/revoke", p.Internal, h["token"]), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Vance-Internal-Token", pod.Token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode > 299 {
			t.Fatalf("the revocation answered %d", resp.StatusCode)
		}
	}
}
