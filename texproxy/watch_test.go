package texproxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// timed makes the jobs of an upstream end by themselves, and says when each did.
type timed struct {
	mu    sync.Mutex
	takes time.Duration
	next  int
	ends  map[string]time.Time
}

func (u *timed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodPost {
		io.Copy(io.Discard, r.Body)
		u.next++
		id := fmt.Sprintf("job-%d", u.next)
		u.ends[id] = time.Now().Add(u.takes)
		fmt.Fprintf(w, `{"job_id":%q,"status":"queued"}`, id)
		return
	}
	status := "processing"
	if time.Now().After(u.ends[strings.TrimPrefix(r.URL.Path, "/tex2pdf/status/")]) {
		status = "completed"
	}
	fmt.Fprintf(w, `{"status":%q}`, status)
}

// ended is when a job ended.
func (u *timed) ended(id string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ends[id]
}

func timedPods(t *testing.T, takes time.Duration, n int, change func(*tex.Service)) ([]*pod, *timed, *store) {
	t.Helper()
	up, store := newUpstream(t), newStore()
	jobs := &timed{takes: takes, ends: map[string]time.Time{}}
	up.script(jobs.ServeHTTP)
	svc := up.service()
	if change != nil {
		change(&svc)
	}
	var pods []*pod
	for i := range n {
		pods = append(pods, newPod(t, store, lease.PodID(fmt.Sprintf("pod-%d", i)), svc, func(_ *Options, p *pod) { p.def.Wait = 10 * time.Second }))
	}
	return pods, jobs, store
}

func (p *pod) watch(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	p.Start(ctx)
}

// Six people press the button at once, in a project with one slot. Their client
// sleeps for 3 s before its first poll, and each compile takes half a second.
func TestNoSlotIdlesUntilAClientsNextPoll(t *testing.T) {
	t.Parallel()
	pods, _, store := timedPods(t, 500*time.Millisecond, 1, nil)
	p := pods[0]
	p.watch(t)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			r := submit(t, p.as("acme", "thesis", fmt.Sprintf("u%d", i)))
			if r.status != 200 {
				t.Errorf("client %d was refused: %d %s", i, r.status, r.body)
			}
		})
	}
	all.Wait()
	eventually(t, "the last slot is back", func() bool { return len(store.Held(t)) == 0 })
}

func TestAVanishedClientsSlotIsBackSoonAfterItsJobsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		pods   int
		change func(*tex.Service)
	}{
		"on its pod":                         {1, nil},
		"on another pod than the waiter's":   {2, nil},
		"where jobs are left to their TTL":   {1, func(s *tex.Service) { s.Abandoned.Mode = tex.Expire }},
		"where the gateway looks but rarely": {2, func(s *tex.Service) { s.Abandoned.Every = time.Minute }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods, jobs, _ := timedPods(t, 2500*time.Millisecond, c.pods, c.change)
			first, last := pods[0], pods[len(pods)-1]
			id := mustSubmit(t, first.url)
			last.watch(t) // nobody on another pod does
			r := submit(t, last.url)
			if late := time.Since(jobs.ended(id)); r.status != 200 || late > 2*time.Second {
				t.Errorf("who waited was answered %d, %s after the job's end", r.status, late)
			}
		})
	}
}

func TestAServiceThatHangsKeepsNoOthersJobsFromEnding(t *testing.T) {
	p, _, _ := onePod(t, nil)
	w := newWatcher(t.Context(), p.Proxy)
	hang := make(chan struct{})
	defer close(hang)
	for i := range watchAtOnce {
		if !w.start("slow", fmt.Sprint(i), func() { <-hang }) {
			t.Fatalf("poll %d was not started", i)
		}
	}
	if w.start("slow", "one more", func() {}) {
		t.Error("one service has more polls under way than it may")
	}
	polled := make(chan struct{})
	if !w.start("quick", "a", func() { close(polled) }) {
		t.Fatal("another service's job is not polled")
	}
	<-polled
	eventually(t, "it can be polled again", func() bool { return w.start("quick", "a", func() { <-hang }) })
	if w.start("quick", "a", func() {}) {
		t.Error("a job is polled twice at once")
	}
}

func TestHowOftenTheGatewayPolls(t *testing.T) {
	for name, c := range map[string]struct {
		age, every time.Duration
		wanted     bool
		want       time.Duration
	}{
		"a new job":                     {0, 10 * time.Second, false, time.Second},
		"a job of 8 s":                  {8 * time.Second, 10 * time.Second, false, 2 * time.Second},
		"an old job":                    {time.Hour, 10 * time.Second, false, 10 * time.Second},
		"more often where that is said": {time.Hour, 200 * time.Millisecond, false, 200 * time.Millisecond},
		"an old job that is in the way": {time.Hour, 10 * time.Second, true, time.Second},
		"a new job that is in the way":  {0, 10 * time.Second, true, watchTick},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pauseOf(c.age, c.every, c.wanted); got != c.want {
				t.Errorf("the pause is %s, want %s", got, c.want)
			}
		})
	}
}

func TestWhoWasRefusedCountsAsWaiting(t *testing.T) {
	d := newDemand()
	d.begin("a")
	d.begin("b")
	d.end("a", &lease.BusyError{})
	d.end("b", nil)
	now := time.Now()
	if !d.has("a") || d.has("b") {
		t.Errorf("wanted are %v, want a", d.all(now))
	}
	if all := d.all(now.Add(demandLasts + time.Second)); len(all) != 0 || len(d.resources) != 0 {
		t.Errorf("long after it wanted are %v", all)
	}
}

// What the descriptions say of an end is counted.
func TestEndsAreCountedByTheirOutcome(t *testing.T) {
	cancel := func(s *tex.Service) {
		s.Cancel = tex.Route{Methods: []string{"DELETE"}, Path: "/tex2pdf/jobs/{job}"}
	}
	for outcome, end := range map[string]func(p *pod, up *upstream, id string){
		"ok":    func(p *pod, up *upstream, id string) { up.set(id, "done") },
		"error": func(p *pod, up *upstream, id string) { up.set(id, "failed") },
		"gone":  func(p *pod, up *upstream, id string) { up.set(id, "") },
		"cancelled": func(p *pod, up *upstream, id string) {
			up.script(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })
			do(t, request1(t, "DELETE", p.url+"/tex2pdf/jobs/"+id, nil))
			up.script(nil)
		},
	} {
		t.Run(outcome, func(t *testing.T) {
			p, up, _ := onePod(t, cancel)
			id := mustSubmit(t, p.url)
			end(p, up, id)
			for range 3 {
				get(t, p.url+"/tex2pdf/status/"+id)
			}
			if n := p.counts.of("ended tex2pdf " + outcome); n != 1 {
				t.Errorf("it is counted %d times as %s: %v", n, outcome, p.counts.n)
			}
		})
	}
	t.Run("once, whichever pod sees it first", func(t *testing.T) {
		up, store := newUpstream(t), newStore()
		a, b := newPod(t, store, "pod-a", up.service()), newPod(t, store, "pod-b", up.service())
		id := mustSubmit(t, a.url)
		get(t, b.url+"/tex2pdf/status/"+id)
		up.set(id, "done")
		for range 2 {
			get(t, b.url+"/tex2pdf/status/"+id)
			get(t, a.url+"/tex2pdf/status/"+id)
		}
		if n := a.counts.of("ended tex2pdf ok") + b.counts.of("ended tex2pdf ok"); n != 1 {
			t.Errorf("it is counted %d times", n)
		}
	})
	t.Run("once, after its lease was lost", func(t *testing.T) {
		p, up, store := onePod(t, nil)
		id := mustSubmit(t, p.url)
		store.Lose(t, lease.ReasonRevoke)
		up.set(id, "done")
		for range 3 {
			get(t, p.url+"/tex2pdf/status/"+id)
		}
		if n := p.counts.of("ended tex2pdf ok"); n != 1 {
			t.Errorf("it is counted %d times", n)
		}
	})
	s, err := newService(tex.Service{Name: "s", Preset: "rbehzadan", Upstream: "http://x"})
	if err != nil || fmt.Sprint(s.outcomes()) != "[cancelled error gone ok overdue]" {
		t.Errorf("the outcomes are %v, %v", s.outcomes(), err)
	}
}
