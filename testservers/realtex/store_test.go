//go:build external

package realtex

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/flaky"
	mongotest "github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// scripted is a tex2pdf whose jobs end when the test says so. At the places in
// pause it tells the test that it is there and waits until the test has gone on.
type scripted struct {
	*httptest.Server
	mu      sync.Mutex
	jobs    map[string]string // id → status
	submits int
	pause   map[string]chan chan struct{} // "submit", "status", "compile"
}

func script(t *testing.T) *scripted {
	t.Helper()
	s := &scripted{jobs: map[string]string{}, pause: map[string]chan chan struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tex2pdf", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		s.submits++
		id := fmt.Sprintf("job-%d", s.submits)
		s.jobs[id] = "processing"
		s.mu.Unlock()
		s.at("submit")
		s.answer(w, id)
	})
	mux.HandleFunc("GET /tex2pdf/status/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.at("status")
		s.answer(w, r.PathValue("id"))
	})
	mux.HandleFunc("GET /tex2pdf/download/{id}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "%PDF of ", r.PathValue("id"))
	})
	mux.HandleFunc("POST /compile", func(w http.ResponseWriter, _ *http.Request) {
		s.at("compile")
		fmt.Fprint(w, "%PDF")
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *scripted) answer(w http.ResponseWriter, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"job_id":%q,"status":%q}`, id, s.jobs[id])
}

func (s *scripted) at(place string) {
	s.mu.Lock()
	p := s.pause[place]
	s.mu.Unlock()
	if p == nil {
		return
	}
	goOn := make(chan struct{})
	select {
	case p <- goOn:
		<-goOn
	case <-time.After(patience): // nobody asks any more
	}
}

// stop makes the next request to a place wait; there is what the test waits for,
// and calling what it returns lets it and all later ones go on.
func (s *scripted) stop(t *testing.T, place string) (there func() (goOn func())) {
	p := make(chan chan struct{})
	s.mu.Lock()
	s.pause[place] = p
	s.mu.Unlock()
	return func() func() {
		t.Helper()
		select {
		case c := <-p:
			s.mu.Lock()
			delete(s.pause, place)
			s.mu.Unlock()
			return func() { close(c) }
		case <-time.After(patience):
			t.Fatalf("no request came to %s", place)
			return nil
		}
	}
}

func (s *scripted) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[id] = "completed"
}

func (s *scripted) submitted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.submits
}

// outage is a way in which the store goes away and comes back.
type outage struct{ down, up func(t *testing.T) }

const shortLease = "name: tex\nlevels: {global: 6, tenant: 3, project: 1}\nttlSeconds: 4\nwaitMs: 500\n"

// TestTheStoreGoesAway takes the store from two real gateways: killed, and out
// of reach without a word. It does so before a submit, while the service has
// one, at a poll for longer than the lease's TTL, and at the end of a job and of
// a sync compile.
func TestTheStoreGoesAway(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (uris [2]string, o outage){
		"killed": func(t *testing.T) ([2]string, outage) {
			s := mongotest.Start(t, "", freePort(t))
			return [2]string{s.URI, s.URI}, outage{func(t *testing.T) { s.Kill(t) }, func(t *testing.T) { s.Restart(t) }}
		},
		"black hole": func(t *testing.T) ([2]string, outage) {
			s := mongotest.Start(t, "", freePort(t))
			target := strings.TrimSuffix(strings.TrimPrefix(s.URI, "mongodb://"), "/")
			var proxies [2]*flaky.Proxy
			var uris [2]string
			for i := range proxies {
				proxies[i] = flaky.Start(t, target)
				uris[i] = "mongodb://" + proxies[i].Addr + "/?directConnection=true"
			}
			each := func(do func(p *flaky.Proxy)) func(*testing.T) {
				return func(*testing.T) {
					for _, p := range proxies {
						do(p)
					}
				}
			}
			return uris, outage{each(func(p *flaky.Proxy) { p.BlackHole(true) }), each(func(p *flaky.Proxy) { p.BlackHole(false); p.Cut() })}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			uris, o := start(t)
			up := script(t)
			s := &services{jobURL: up.URL, syncURL: up.URL}
			var pods [2]*pod.Process
			for i := range pods {
				c := s.config("kind: mongodb\nuri: "+uris[i]+"\ndatabase: outage", "500ms")
				c.Documents = map[string]string{"_vance/_tenant/_vance/config/lease/tex.yaml": shortLease}
				pods[i] = pod.Start(t, c)
			}
			at := func(i int, service, project string) client {
				return through(t, pods[i].URL, service, "acme", project, "ada")
			}
			// poll asks until a pod has the store again and answers 200.
			poll := func(i int, project, id string) {
				t.Helper()
				eventually(t, "a poll is answered", func() bool {
					r, err := at(i, "tex2pdf", project).do("GET", "/tex2pdf/status/"+id, "", nil)
					if err != nil || (r.status != 200 && r.status != 503) || (r.status == 200 && r.member("job_id") != id) || strings.Contains(string(r.body), "LEASE_LOST") {
						t.Fatalf("a poll of %s answered %d %s %v", project, r.status, r.body, err)
					}
					return r.status == 200
				})
			}
			// held lists the projects that hold a lease.
			held := func() string {
				var projects []string
				for _, h := range holders(t, pods[0]) {
					projects = append(projects, fmt.Sprint(h["project"]))
				}
				return strings.Join(projects, " ")
			}
			// reaped counts leases that were taken back because nobody used them.
			reaped := func() (n int) {
				t.Helper()
				for _, p := range pods {
					n += idleReaps(t, p)
				}
				return n
			}
			refused := func(what string, r reply, err error, took time.Duration) {
				t.Helper()
				if err != nil || r.status != 503 || !strings.Contains(string(r.body), "LEASE_UNAVAILABLE") || r.header.Get("Retry-After") == "" {
					t.Errorf("%s answered %d %s %v; want 503", what, r.status, r.body, err)
				}
				if took > 10*time.Second {
					t.Errorf("%s was told after %s", what, took)
				}
				t.Logf("%s: %d after %s", what, r.status, took.Round(100*time.Millisecond))
			}

			t.Run("before a submit", func(t *testing.T) {
				o.down(t)
				began := time.Now()
				r, err := at(0, "tex2pdf", "early").submit([]byte("zip"))
				refused("a submit", r, err, time.Since(began))
				began = time.Now()
				r, err = at(0, "texsync", "early").do("POST", "/compile", "text/x-tex", []byte("x"))
				refused("a sync compile", r, err, time.Since(began))
				if n := up.submitted(); n != 0 {
					t.Errorf("the service saw %d submits without a lease", n)
				}
				o.up(t)
				eventually(t, "a submit is taken", func() bool {
					r, err := at(0, "tex2pdf", "early").submit([]byte("zip"))
					if err != nil || (r.status != 200 && r.status != 503 && r.status != 429) {
						t.Fatalf("a submit answered %d %s %v", r.status, r.body, err)
					}
					return r.status == 200
				})
				up.end(fmt.Sprintf("job-%d", up.submitted()))
				eventually(t, "no lease is left", func() bool { return held() == "" })
			})

			t.Run("while the service has a submit", func(t *testing.T) {
				there := up.stop(t, "submit")
				type result struct {
					r   reply
					err error
				}
				done := make(chan result)
				go func() {
					r, err := at(0, "tex2pdf", "submit").submit([]byte("zip"))
					done <- result{r, err}
				}()
				goOn := there()
				o.down(t)
				goOn()
				got := <-done
				id := got.r.member("job_id")
				if got.err != nil || got.r.status != 200 || id == "" {
					t.Fatalf("the submit answered %d %s %v; the service has the job", got.r.status, got.r.body, got.err)
				}
				began := time.Now()
				r, err := at(0, "tex2pdf", "submit").do("GET", "/tex2pdf/status/"+id, "", nil)
				refused("its poll", r, err, time.Since(began))
				o.up(t)
				poll(0, "submit", id)
				poll(1, "submit", id) // by now the holder names the job
				if got := held(); got != "submit" {
					t.Errorf("leases are held by %q", got)
				}
				r, err = through(t, pods[1].URL, "tex2pdf", "acme", "submit", "eve").do("GET", "/tex2pdf/status/"+id, "", nil)
				if err != nil || r.status != 404 {
					t.Errorf("another user's poll answered %d %s %v", r.status, r.body, err)
				}
				up.end(id)
				eventually(t, "no lease is left", func() bool { return held() == "" })
			})

			t.Run("at a poll, for longer than the TTL", func(t *testing.T) {
				before := reaped()
				r, err := at(0, "tex2pdf", "poll").submit([]byte("zip"))
				id := r.member("job_id")
				if err != nil || r.status != 200 {
					t.Fatalf("the submit answered %d %s %v", r.status, r.body, err)
				}
				o.down(t)
				for i := range pods {
					began := time.Now()
					r, err := at(i, "tex2pdf", "poll").do("GET", "/tex2pdf/status/"+id, "", nil)
					refused(fmt.Sprintf("a poll at pod %d", i), r, err, time.Since(began))
				}
				time.Sleep(6 * time.Second) // the TTL is 4 s: how long the outage lasts
				o.up(t)
				poll(0, "poll", id)
				poll(1, "poll", id)
				if got := held(); got != "poll" {
					t.Errorf("leases are held by %q", got)
				}
				up.end(id)
				eventually(t, "no lease is left", func() bool { return held() == "" })
				if n := reaped() - before; n != 0 {
					t.Errorf("%d leases were reaped for being idle; want them given back", n)
				}
			})

			t.Run("at the end of a job", func(t *testing.T) {
				before := reaped()
				r, err := at(0, "tex2pdf", "end").submit([]byte("zip"))
				id := r.member("job_id")
				if err != nil || r.status != 200 {
					t.Fatalf("the submit answered %d %s %v", r.status, r.body, err)
				}
				there := up.stop(t, "status")
				done := make(chan reply)
				go func() {
					r, err := at(0, "tex2pdf", "end").do("GET", "/tex2pdf/status/"+id, "", nil)
					if err != nil {
						t.Error(err)
					}
					done <- r
				}()
				goOn := there()
				o.down(t)
				up.end(id)
				goOn()
				if r := <-done; r.status != 200 || r.member("status") != "completed" {
					t.Errorf("the last poll answered %d %s", r.status, r.body)
				}
				// The pod remembers whose it is.
				if r, err := at(0, "tex2pdf", "end").do("GET", "/tex2pdf/download/"+id, "", nil); err != nil || r.status != 200 {
					t.Errorf("a download without the store answered %d %s %v", r.status, r.body, err)
				}
				if r, err := through(t, pods[0].URL, "tex2pdf", "evil", "end", "ada").do("GET", "/tex2pdf/download/"+id, "", nil); err != nil || r.status == 200 {
					t.Errorf("another tenant's download answered %d %s %v", r.status, r.body, err)
				}
				o.up(t)
				eventually(t, "no lease is left", func() bool { return held() == "" })
				if n := reaped() - before; n != 0 {
					t.Errorf("%d leases were reaped for being idle; want them given back", n)
				}
				if r, err := at(1, "tex2pdf", "end").do("GET", "/tex2pdf/download/"+id, "", nil); err != nil || r.status != 200 {
					t.Errorf("a download from the other pod answered %d %s %v", r.status, r.body, err)
				}
			})

			t.Run("at the end of a sync compile", func(t *testing.T) {
				before := reaped()
				there := up.stop(t, "compile")
				done := make(chan reply)
				go func() {
					r, err := at(1, "texsync", "sync").do("POST", "/compile", "text/x-tex", []byte("x"))
					if err != nil {
						t.Error(err)
					}
					done <- r
				}()
				goOn := there()
				o.down(t)
				goOn()
				if r := <-done; r.status != 200 || string(r.body) != "%PDF" {
					t.Errorf("the compile answered %d %s", r.status, r.body)
				}
				o.up(t)
				eventually(t, "no lease is left", func() bool { return held() == "" })
				if n := reaped() - before; n != 0 {
					t.Errorf("%d leases were reaped for being idle; want them given back", n)
				}
			})
		})
	}
}

// idleReaps reads a pod's count of idle reaps.
func idleReaps(t *testing.T, p *pod.Process) int {
	t.Helper()
	return seriesOf(t, p, `vance_lease_reap_total{reason="idle"}`)
}

// seriesOf reads a series of a pod; one that is not there has 0.
func seriesOf(t *testing.T, p *pod.Process, series string) (n int) {
	t.Helper()
	resp, err := http.Get(p.Internal + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
