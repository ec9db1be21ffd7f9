package texproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// onePod is a pod in front of a scripted tex2pdf.
func onePod(t testing.TB, change func(*tex.Service), opts ...podOption) (*pod, *upstream, *store) {
	t.Helper()
	up, store := newUpstream(t), newStore()
	svc := up.service()
	if change != nil {
		change(&svc)
	}
	return newPod(t, store, "pod-a", svc, opts...), up, store
}

func TestAJobHoldsItsLeaseFromSubmitToItsEnd(t *testing.T) {
	p, up, store := onePod(t, nil)
	r := submit(t, p.url)
	if want := `{"job_id": "job-1",  "status":"queued","message":"queued \u00fc"}`; r.body != want {
		t.Errorf("the submit's answer is %q, want the service's bytes %q", r.body, want)
	}
	wantHeld(t, store, 1)
	h := store.Held(t)[0]
	if h.PodBound || h.Type != "tex" || h.User != "u1" || h.Tenant != "acme" || h.Payload[lease.PayloadKey] != "tex2pdf/job-1" {
		t.Errorf("the holder is %+v", h)
	}
	if r := get(t, p.url+"/tex2pdf/status/job-1"); r.body != `{"job_id":"job-1","status":"processing",  "progress": 1.0}` {
		t.Errorf("the poll's answer is %q, want the service's bytes", r.body)
	}
	wantHeld(t, store, 1)
	up.set("job-1", "completed")
	if r := get(t, p.url+"/tex2pdf/status/job-1"); r.status != 200 || r.json(t)["status"] != "completed" {
		t.Errorf("the last poll answered %d %s", r.status, r.body)
	}
	wantHeld(t, store, 0)
	for range 2 { // the download holds no lease and can be repeated
		if r := get(t, p.url+"/tex2pdf/download/job-1"); r.status != 200 || !strings.HasPrefix(r.body, "%PDF") {
			t.Errorf("the download answered %d %q", r.status, r.body)
		}
	}
	if r := get(t, p.url+"/tex2pdf/status/job-1"); r.json(t)["status"] != "completed" {
		t.Errorf("a poll after the end answered %s", r.body)
	}
	wantHeld(t, store, 0)
}

func TestEveryPollChecksTheLease(t *testing.T) {
	p, _, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	before, touches := calls(store), store.Calls("touch")
	for range 3 {
		get(t, p.url+"/tex2pdf/status/"+id)
	}
	if n, all := store.Calls("touch")-touches, calls(store)-before; n != 3 || all != 3 {
		t.Errorf("three polls made %d touches and %d store calls; want one touch each", n, all)
	}
}

func TestEndsReleaseAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		typ    string
		held   int
	}{
		"completed":                      {200, `{"status":"completed"}`, "application/json", 0},
		"done":                           {200, `{"status":"done"}`, "application/json; charset=utf-8", 0},
		"failed":                         {200, `{"status":"failed","error":"! Undefined control sequence."}`, "application/json", 0},
		"error":                          {200, `{"status":"error"}`, "application/problem+json", 0},
		"gone":                           {404, `{"detail":"Job not found"}`, "application/json", 0},
		"gone with 410":                  {410, ``, "", 0},
		"running":                        {200, `{"status":"processing"}`, "application/json", 1},
		"a word that only begins alike":  {200, `{"status":"completed-ish"}`, "application/json", 1},
		"the wrong content type":         {200, `{"status":"completed"}`, "text/plain", 1},
		"broken JSON":                    {200, `{"status":"completed"`, "application/json", 1},
		"two JSON values":                {200, `{"status":"completed"}{}`, "application/json", 1},
		"no object":                      {200, `["completed"]`, "application/json", 1},
		"a server error that looks done": {500, `{"status":"completed"}`, "application/json", 1},
		"a server error":                 {502, `bad gateway`, "text/html", 1},
		"too many requests":              {429, `{"detail":"slow down"}`, "application/json", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, up, store := onePod(t, nil)
			id := mustSubmit(t, p.url)
			up.script(func(w http.ResponseWriter, r *http.Request) {
				if c.typ != "" {
					w.Header().Set("Content-Type", c.typ)
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			if r := get(t, p.url+"/tex2pdf/status/"+id); r.status != c.status || r.body != c.body {
				t.Errorf("the client got %d %q, want the service's own answer", r.status, r.body)
			}
			wantHeld(t, store, c.held)
		})
	}
}

func TestSubmitAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header string
		body   string
		held   int
	}{
		"a broken zip ends at once":     {200, "", `{"job_id":"j","status":"failed","message":"not a zip"}`, 0},
		"not multipart":                 {422, "", `{"detail":[{"loc":["body","zip_file"],"msg":"field required"}]}`, 0},
		"a wrong key":                   {401, "", `{"detail":"Invalid API key"}`, 0},
		"too many requests":             {429, "", `{"detail":"Rate limit exceeded"}`, 0},
		"a server error":                {500, "", `Internal Server Error`, 0},
		"a redirect":                    {307, "/elsewhere", ``, 0},
		"a job in a Location":           {202, "/tex2pdf/status/abc-1", `{}`, 1},
		"a see other":                   {303, "/tex2pdf/status/abc-1", ``, 1},
		"no job at all":                 {200, "", `{"message":"thanks"}`, 1},
		"no JSON":                       {200, "", `thanks`, 1},
		"a job id that cannot be one":   {200, "", `{"job_id":"../../admin"}`, 1},
		"a job id of 10 kB":             {200, "", `{"job_id":"` + strings.Repeat("a", 10<<10) + `"}`, 1},
		"a numeric job id":              {200, "", `{"job_id":17}`, 1},
		"an answer of 10 MB":            {200, "", `{"job_id":"` + strings.Repeat("a", 10<<20) + `"}`, 1},
		"an accepted answer to no body": {204, "", ``, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, up, store := onePod(t, nil)
			up.script(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				if c.header != "" {
					w.Header().Set("Location", c.header)
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			r := submit(t, p.url)
			if r.status != c.status || r.body != c.body {
				t.Errorf("the client got %d and %d bytes %.80q, want the service's own answer", r.status, len(r.body), r.body)
			}
			if c.header != "" && r.header.Get("Location") != "/tex/acme/thesis/@u1/tex2pdf"+c.header {
				t.Errorf("Location is %q", r.header.Get("Location"))
			}
			wantHeld(t, store, c.held)
			if n := len(up.seen()); n != 1 {
				t.Errorf("the service got %d requests, want 1: redirects are not followed", n)
			}
		})
	}
}

func TestAForeignRedirectIsNotRewritten(t *testing.T) {
	p, up, _ := onePod(t, nil)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "https://elsewhere.example/x")
		w.WriteHeader(302)
	})
	if r := submit(t, p.url); r.header.Get("Location") != "https://elsewhere.example/x" {
		t.Errorf("Location is %q", r.header.Get("Location"))
	}
}

func TestBusyIsToldInTheServicesForm(t *testing.T) {
	p, up, store := onePod(t, nil)
	mustSubmit(t, p.url)
	r := submit(t, p.url)
	if r.status != 429 || r.header.Get("Retry-After") == "" {
		t.Errorf("the second submit answered %d, Retry-After %q", r.status, r.header.Get("Retry-After"))
	}
	v := r.json(t)
	detail, _ := v["detail"].(string)
	if !strings.HasPrefix(detail, "LEASE_BUSY: the project limit of tex2pdf is reached: 1 of 1 in use") {
		t.Errorf("detail is %q", detail)
	}
	data, _ := v["error"].(map[string]any)
	for k, want := range map[string]any{"code": "LEASE_BUSY", "resource": "tex2pdf", "level": "project", "cap": 1.0, "count": 1.0, "oldestAgeSeconds": 0.0} {
		if data[k] != want {
			t.Errorf("error.%s is %v, want %v", k, data[k], want)
		}
	}
	if n := len(up.seen()); n != 1 {
		t.Errorf("the service saw %d requests, want 1: a refused compile never reaches it", n)
	}
	wantHeld(t, store, 1)
}

func TestTheGlobalLevelSaysNothingOfOthers(t *testing.T) {
	p, _, _ := onePod(t, nil, func(_ *Options, p *pod) { p.def.Caps = map[definition.Level]definition.Cap{definition.Global: 1} })
	mustSubmit(t, p.as("other", "x", "y"))
	data, _ := submit(t, p.url).json(t)["error"].(map[string]any)
	for _, k := range []string{"cap", "count", "oldestAgeSeconds"} {
		if _, there := data[k]; there {
			t.Errorf("a refusal at the global level tells %s: %v", k, data)
		}
	}
}

func TestTheUploadIsDrainedBeforeARefusal(t *testing.T) {
	p, _, store := onePod(t, nil)
	mustSubmit(t, p.url)
	_, big := zipForm(t, bytes.Repeat([]byte("x"), 20<<20))
	r := do(t, request1(t, "POST", p.url+"/tex2pdf", bytes.NewReader(big), "Content-Type", "multipart/form-data; boundary=x"))
	if r.status != 429 {
		t.Errorf("a large upload without a slot answered %d", r.status)
	}
	wantHeld(t, store, 1)
}

func TestAnUploadThatIsTooLarge(t *testing.T) {
	for name, r := range map[string]func(t *testing.T, url string) *http.Request{
		"of a known length": func(t *testing.T, url string) *http.Request { return request1(t, "POST", url, zeros(60<<20)) },
		"of an unknown length": func(t *testing.T, url string) *http.Request {
			return request1(t, "POST", url, struct{ io.Reader }{zeros(60 << 20)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, up, store := onePod(t, nil)
			got := do(t, r(t, p.url+"/tex2pdf"))
			if got.status != 413 || !strings.Contains(got.body, "50 MiB") {
				t.Errorf("60 MB answered %d %s", got.status, got.body)
			}
			if len(up.seen()) != 0 || calls(store) != 0 {
				t.Errorf("the service got %d requests and the store %d calls; want none", len(up.seen()), calls(store))
			}
		})
	}
}

type zeroReader struct{ n int }

func (z *zeroReader) Read(b []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := min(z.n, len(b))
	clear(b[:n])
	z.n -= n
	return n, nil
}

// zeros is a body of n bytes whose length the client announces.
func zeros(n int) io.Reader { return bytes.NewReader(make([]byte, n)) }

func TestTheSpoolIsBounded(t *testing.T) {
	limit := config.Limits{PerPod: 10000, Spool: 1 << 20}
	p, _, store := onePod(t, nil, func(o *Options, _ *pod) { o.Limits = func() config.Limits { return limit } })
	for name, body := range map[string]io.Reader{"known length": zeros(2 << 20), "unknown length": &zeroReader{2 << 20}} {
		r := do(t, request1(t, "POST", p.url+"/tex2pdf", body))
		if r.status != 413 || !strings.Contains(r.body, "341 KiB") || !strings.Contains(r.body, "limits.spool") {
			t.Errorf("%s: an upload that never fits limits.spool answered %d %s", name, r.status, r.body)
		}
	}
	if calls(store) != 0 || spooled(p) != 0 {
		t.Errorf("store calls %d, spooled bytes %d; want none", calls(store), spooled(p))
	}
	mustSubmit(t, p.url)
}

func TestASlowUploadHoldsNoSlot(t *testing.T) {
	p, up, store := onePod(t, nil)
	contentType, body := zipForm(t, bytes.Repeat([]byte("z"), 200<<10))
	pr, pw := io.Pipe()
	done := make(chan reply, 1)
	go func() {
		r, _ := http.NewRequest("POST", p.url+"/tex2pdf", pr)
		r.Header.Set("Content-Type", contentType)
		r.ContentLength = int64(len(body))
		done <- do(t, r)
	}()
	pw.Write(body[:150<<10])
	eventually(t, "the upload has reached the disk", func() bool { return spooled(p) > 0 })
	if calls(store) != 0 || len(up.seen()) != 0 {
		t.Errorf("half an upload made %d store calls and %d requests; want none", calls(store), len(up.seen()))
	}
	mustSubmit(t, p.as("acme", "other", "u1")) // and others go on
	pw.Write(body[150<<10:])
	pw.Close()
	if r := <-done; r.status != 200 {
		t.Errorf("the slow upload ended with %d %s", r.status, r.body)
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	if !bytes.Equal(up.bodies[1], body) {
		t.Error("the service got other bytes than the client sent")
	}
	wantHeld(t, store, 2)
}

func TestNothingOfAnUploadStaysOnDisk(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/upload-17", []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, up, _ := onePod(t, nil, func(o *Options, _ *pod) { o.SpoolDir = dir })
	files := func() int {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := files(); n != 0 {
		t.Errorf("%d files are left after the start", n)
	}
	inside := -1
	up.script(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		inside = files()
		w.WriteHeader(500)
	})
	do(t, request1(t, "POST", p.url+"/tex2pdf", zeros(1<<20)))
	if inside != 0 {
		t.Errorf("an upload has %d names on disk while it is in use; a crash would leave them", inside)
	}
}

func TestAClientThatLeavesDuringItsUpload(t *testing.T) {
	p, up, store := onePod(t, nil)
	conn, err := net.Dial("tcp", p.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /tex/acme/thesis/@u1/tex2pdf/tex2pdf HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n%s", strings.Repeat("x", 100000))
	eventually(t, "the upload has begun", func() bool { return spooled(p) > 0 })
	conn.Close()
	eventually(t, "its room is free again", func() bool { return spooled(p) == 0 })
	if calls(store) != 0 || len(up.seen()) != 0 {
		t.Errorf("it made %d store calls and %d requests; want none", calls(store), len(up.seen()))
	}
}

func TestAClientThatLeavesAfterItsUpload(t *testing.T) {
	p, up, store := onePod(t, func(s *tex.Service) { s.Abandoned.Every = 10 * time.Millisecond })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	p.Start(ctx)
	got, goOn := make(chan struct{}), make(chan struct{})
	up.script(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			close(got)
			<-goOn
		}
		up.tex2pdf(w, r)
	})
	client, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		contentType, body := zipForm(t, []byte("PK"))
		r, _ := http.NewRequestWithContext(client, "POST", p.url+"/tex2pdf", bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		if resp, err := http.DefaultTransport.RoundTrip(r); err == nil {
			resp.Body.Close()
			t.Error("the client got an answer")
		}
		close(gone)
	}()
	<-got
	leave()
	<-gone
	close(goOn)
	eventually(t, "the job is recorded without its client", func() bool {
		h := store.Held(t)
		return len(h) == 1 && h[0].Payload[payloadJob] == "job-1"
	})
	up.set("job-1", "completed")
	eventually(t, "its slot is free when the compile has ended", func() bool { return len(store.Held(t)) == 0 })
	if r := get(t, p.url+"/tex2pdf/download/job-1"); r.status != 200 {
		t.Errorf("its owner's download answered %d", r.status)
	}
}

func TestAnAbandonedJobIsWatchedUntilItEnds(t *testing.T) {
	p, up, store := onePod(t, func(s *tex.Service) { s.Abandoned.Every = 5 * time.Millisecond })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	p.Start(ctx)
	id := mustSubmit(t, p.url)
	polls := func() (n int) {
		for _, r := range up.seen() {
			if r.Method == "GET" {
				n++
				if r.Header.Get("X-API-Key") != "up-secret" {
					t.Error("the gateway polls without its key")
				}
			}
		}
		return n
	}
	eventually(t, "the gateway polls by itself", func() bool { return polls() >= 3 })
	wantHeld(t, store, 1) // the slot counts the compile, not the client
	up.set(id, "failed")
	eventually(t, "the slot is free", func() bool { return len(store.Held(t)) == 0 })
	n := polls()
	mustSubmit(t, p.url)
	eventually(t, "the next job is watched", func() bool { return polls() > n })
}

func TestAnAbandonedJobThatNeverEndsIsLeftToItsTTL(t *testing.T) {
	p, _, store := onePod(t, func(s *tex.Service) {
		s.Abandoned.Every, s.Abandoned.Max = 2*time.Millisecond, 30*time.Millisecond
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	p.Start(ctx)
	id := mustSubmit(t, p.url)
	eventually(t, "nobody watches it any more", func() bool { return len(p.jobs.all()) == 0 })
	wantHeld(t, store, 1)
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.status != 200 {
		t.Errorf("its client came back and got %d", r.status)
	}
	if len(p.jobs.all()) != 1 {
		t.Error("a job whose client came back is not watched again")
	}
}

func TestAnAbandonedJobExpiresWhereTheServiceSaysSo(t *testing.T) {
	p, up, store := onePod(t, func(s *tex.Service) {
		s.Abandoned.Mode, s.Abandoned.Every = "expire", time.Millisecond
	}, func(_ *Options, p *pod) { p.def.TTL = 20 * time.Millisecond })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	p.Start(ctx)
	mustSubmit(t, p.url)
	eventually(t, "it is forgotten here", func() bool { return len(p.jobs.all()) == 0 })
	if n := len(up.seen()); n != 1 {
		t.Errorf("the service got %d requests; want the submit only", n)
	}
	wantHeld(t, store, 1) // the reaper's, by its TTL
}

func TestAJobHoldsNoLongerThanHoldMax(t *testing.T) {
	p, _, store := onePod(t, func(s *tex.Service) {
		s.HoldMax = 30 * time.Millisecond
		s.Abandoned.Every = 2 * time.Millisecond
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	p.Start(ctx)
	mustSubmit(t, p.url)
	eventually(t, "the slot is given back", func() bool { return len(store.Held(t)) == 0 })
}

func TestAnUpstreamThatFailsAtSubmit(t *testing.T) {
	for name, c := range map[string]struct {
		handle http.HandlerFunc
		status int
		held   int
	}{
		"hangs after the upload": {func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, 504, 1},
		"closes in the middle of its answer": {func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, `{"job_id":`)
			panic(http.ErrAbortHandler)
		}, 502, 1},
		"closes after the upload": {func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}, 502, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, up, store := onePod(t, func(s *tex.Service) { s.Timeout = 100 * time.Millisecond })
			up.script(c.handle)
			r := submit(t, p.url)
			if r.status != c.status || !strings.Contains(r.body, "UPSTREAM_UNAVAILABLE") {
				t.Errorf("the client got %d %s", r.status, r.body)
			}
			wantHeld(t, store, c.held) // it may have the job
		})
	}
}

// A status below 200 ends nothing, and no server of net/http may send it on.
func TestAStatusThatIsNone(t *testing.T) {
	for _, status := range []string{"099 Below", "101 Switching Protocols"} {
		for mode, svc := range map[string]func(url string) tex.Service{
			"job": func(url string) tex.Service { return tex.Service{Name: "tex2pdf", Preset: "rbehzadan", Upstream: url} },
			"sync": func(url string) tex.Service {
				return tex.Service{Name: "tex2pdf", Mode: tex.Sync, Upstream: url, Submit: []tex.Route{{Path: "/tex2pdf"}}}
			},
		} {
			t.Run(mode+" "+status, func(t *testing.T) {
				up, store := newUpstream(t), newStore()
				up.script(func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					conn, out, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					fmt.Fprintf(out, "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n", status)
					out.Flush()
					conn.Close()
				})
				p := newPod(t, store, "pod-a", svc(up.URL))
				if r := submit(t, p.url); r.status != 502 {
					t.Errorf("the client got %d %s", r.status, r.body)
				}
				wantHeld(t, store, 0)
			})
		}
	}
}

func TestAnUpstreamThatCannotBeReached(t *testing.T) {
	p, up, store := onePod(t, nil)
	up.Close()
	if r := submit(t, p.url); r.status != 502 {
		t.Errorf("the client got %d %s", r.status, r.body)
	}
	wantHeld(t, store, 0)
}

func TestAnUpstreamThatFailsAtPollKeepsTheLease(t *testing.T) {
	p, up, store := onePod(t, func(s *tex.Service) { s.Timeout = 50 * time.Millisecond })
	id := mustSubmit(t, p.url)
	up.script(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.status != 504 {
		t.Errorf("a poll of a hanging service answered %d", r.status)
	}
	up.script(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, `{"status":"completed"`)
		panic(http.ErrAbortHandler)
	})
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.status != 502 {
		t.Errorf("a poll that broke off answered %d", r.status)
	}
	wantHeld(t, store, 1)
}

func TestALargeAnswerPassesUnread(t *testing.T) {
	p, up, store := onePod(t, nil)
	id := mustSubmit(t, p.url)
	body := `{"status":"completed","log":"` + strings.Repeat("x", 10<<20) + `"}`
	up.script(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body)
	})
	if r := get(t, p.url+"/tex2pdf/status/"+id); r.body != body {
		t.Errorf("%d of %d bytes arrived, or others", len(r.body), len(body))
	}
	wantHeld(t, store, 1) // what is not read ends nothing
}

func TestCompressionIsNotAskedForWhereAnswersAreRead(t *testing.T) {
	p, up, _ := onePod(t, nil)
	id := mustSubmit(t, p.url)
	get(t, p.url+"/tex2pdf/status/"+id, "Accept-Encoding", "gzip, br")
	for _, r := range up.seen() {
		if v, there := r.Header["Accept-Encoding"]; there {
			t.Errorf("%s %s asked for %v", r.Method, r.URL, v)
		}
	}
}

func TestResultsCanBeHadInPartsAndConditionally(t *testing.T) {
	p, up, _ := onePod(t, nil)
	id := mustSubmit(t, p.url)
	up.set(id, "completed")
	get(t, p.url+"/tex2pdf/status/"+id)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Type", "application/pdf")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("%PDF-1.5 0123456789"))
	})
	url := p.url + "/tex2pdf/download/" + id
	if r := get(t, url, "Range", "bytes=9-13"); r.status != 206 || r.body != "01234" || r.header.Get("Content-Range") != "bytes 9-13/19" {
		t.Errorf("a range answered %d %q %q", r.status, r.body, r.header.Get("Content-Range"))
	}
	if r := get(t, url, "If-None-Match", `"v1"`); r.status != 304 || r.body != "" || r.header.Get("ETag") != `"v1"` {
		t.Errorf("If-None-Match answered %d %q", r.status, r.body)
	}
	if r := do(t, request1(t, "HEAD", url, nil)); r.status != 200 || r.header.Get("Content-Length") != "19" || r.body != "" {
		t.Errorf("HEAD answered %d, Content-Length %q", r.status, r.header.Get("Content-Length"))
	}
	up.script(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(405) })
	if r := do(t, request1(t, "HEAD", url, nil)); r.status != 405 {
		t.Errorf("the service's own 405 to HEAD came as %d", r.status)
	}
}

func TestAResultThatBreaksOffIsSeenToBreakOff(t *testing.T) {
	p, up, _ := onePod(t, nil)
	id := mustSubmit(t, p.url)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100000")
		w.Write(make([]byte, 50000))
		panic(http.ErrAbortHandler)
	})
	resp, err := http.Get(p.url + "/tex2pdf/download/" + id)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("half a PDF arrived as a whole one")
	}
}

func TestJobIdsThatAreNone(t *testing.T) {
	p, up, store := onePod(t, func(s *tex.Service) { s.Unmatched = "passThrough" })
	mustSubmit(t, p.url)
	before, asked := len(up.seen()), calls(store)
	for _, path := range []string{
		"/tex2pdf/status/a%2fb", "/tex2pdf/status/..%2fdownload%2fjob-1", "/tex2pdf/status/..", "/tex2pdf/status/../status/job-1",
		"/tex2pdf/status/%2e%2e", "/tex2pdf/status/a%00b", "/tex2pdf/status/a%20b", "/tex2pdf/status/a;b", "/tex2pdf/status/a%5cb",
		"/tex2pdf/status/" + strings.Repeat("a", 129), "/tex2pdf/status/" + strings.Repeat("a", 10<<10), "/tex2pdf/status/%252e",
		"/tex2pdf/download/%c3%a4",
	} {
		if r := get(t, p.url+path); r.status != 404 {
			t.Errorf("%.60s answered %d", path, r.status)
		}
	}
	if n := len(up.seen()) - before; n != 0 || calls(store) != asked {
		t.Errorf("they made %d requests and %d store calls; want none", n, calls(store)-asked)
	}
}

func TestOneJobHasOnePath(t *testing.T) {
	p, up, _ := onePod(t, nil)
	id := mustSubmit(t, p.url)
	for _, path := range []string{"//tex2pdf/status/" + id, "/tex2pdf//status/" + id + "/", "/tex2pdf/./status/" + id, "/tex2pdf/st%61tus/%6aob-1"} {
		if r := get(t, p.url+path); r.status != 200 {
			t.Errorf("%s answered %d", path, r.status)
		}
		seen := up.seen()
		if got := seen[len(seen)-1].URL.EscapedPath(); got != "/tex2pdf/status/job-1" {
			t.Errorf("%s went up as %s", path, got)
		}
		if r := get(t, p.as("evil", "x", "y")+path); r.status != 404 {
			t.Errorf("another tenant got %d for %s", r.status, path)
		}
	}
}

func TestWhatNoRouteMatches(t *testing.T) {
	p, up, _ := onePod(t, nil)
	if r := get(t, p.url+"/docs"); r.status != 404 {
		t.Errorf("an unknown path answered %d", r.status)
	}
	if r := get(t, p.url+"/tex2pdf"); r.status != 405 || r.header.Get("Allow") != "POST" {
		t.Errorf("GET of the submit answered %d, Allow %q", r.status, r.header.Get("Allow"))
	}
	if r := get(t, p.server.URL+"/tex/acme/thesis/@u1/unknown/x"); r.status != 404 {
		t.Errorf("an unknown service answered %d", r.status)
	}
	if n := len(up.seen()); n != 0 {
		t.Errorf("the service got %d requests", n)
	}
	p, up, _ = onePod(t, func(s *tex.Service) { s.Unmatched = "passThrough" })
	up.script(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Method+" "+r.URL.String()) })
	if r := get(t, p.url+"/docs/?q=%2f"); r.body != "GET /docs/?q=%2f" {
		t.Errorf("passThrough gave %q", r.body)
	}
	// A service that does not tell cases apart would take these for its own.
	for _, path := range []string{"/Tex2pdf/status/somebodys", "/tex2pdf/DOWNLOAD/somebodys", "/TEX2PDF"} {
		if r := get(t, p.url+path); r.status != 404 {
			t.Errorf("%s passed through: %d %s", path, r.status, r.body)
		}
	}
}

func TestJobsBelongToTheirOwner(t *testing.T) {
	for name, finished := range map[string]bool{"while they run": false, "after their end": true} {
		for where, fresh := range map[string]bool{"on their pod": false, "on another pod": true} {
			t.Run(name+" "+where, func(t *testing.T) {
				up, store := newUpstream(t), newStore()
				a := newPod(t, store, "pod-a", up.service())
				b := a
				if fresh {
					b = newPod(t, store, "pod-b", up.service())
				}
				id := mustSubmit(t, a.url)
				if finished {
					up.set(id, "completed")
					get(t, a.url+"/tex2pdf/status/"+id)
				}
				before := len(up.seen())
				for _, other := range [][3]string{{"evil", "thesis", "u1"}, {"acme", "other", "u1"}, {"acme", "thesis", "u2"}} {
					for _, path := range []string{"/tex2pdf/status/", "/tex2pdf/download/"} {
						if r := get(t, b.as(other[0], other[1], other[2])+path+id); r.status != 404 {
							t.Errorf("%v got %d from %s", other, r.status, path)
						}
					}
				}
				if n := len(up.seen()) - before; n != 0 {
					t.Errorf("the service got %d requests for others", n)
				}
				for _, path := range []string{"/tex2pdf/status/", "/tex2pdf/download/"} {
					if r := get(t, b.url+path+id); r.status != 200 {
						t.Errorf("the owner got %d from %s", r.status, path)
					}
				}
			})
		}
	}
}

func TestAJobThatNobodySubmitted(t *testing.T) {
	p, up, _ := onePod(t, nil)
	up.set("theirs", "completed")
	for _, path := range []string{"/tex2pdf/status/theirs", "/tex2pdf/download/theirs"} {
		if r := get(t, p.url+path); r.status != 404 {
			t.Errorf("%s answered %d", path, r.status)
		}
	}
	if n := len(up.seen()); n != 0 {
		t.Errorf("the service got %d requests", n)
	}
}

func TestAnIdThatTheServiceGivesTwice(t *testing.T) {
	p, up, store := onePod(t, nil, func(_ *Options, p *pod) { p.def.Caps = map[definition.Level]definition.Cap{definition.Global: 6} })
	up.script(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"job_id":"same","status":"processing"}`)
	})
	mustSubmit(t, p.url)
	mustSubmit(t, p.url)
	wantHeld(t, store, 1) // one compile, one slot
	if r := submit(t, p.as("evil", "x", "y")); r.status != 404 {
		t.Errorf("another owner's submit that ends at the same job answered %d %s", r.status, r.body)
	}
	wantHeld(t, store, 1)
}

func TestHeadersOfTheGatewayStayHere(t *testing.T) {
	p, up, _ := onePod(t, nil)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for _, k := range []string{"Set-Cookie", "WWW-Authenticate", "Access-Control-Allow-Origin"} {
			w.Header().Set(k, "x")
		}
		w.Header().Set("X-Own", "kept")
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"job_id":"a"}`)
	})
	r := do(t, request1(t, "POST", p.url+"/tex2pdf?keep=1", strings.NewReader("x"),
		"Authorization", "Bearer client", "X-API-Key", "client", "Cookie", "a=b", "Origin", "http://x", "X-Vance-User", "u", "Forwarded", "for=1",
		"X-Forwarded-For", "1.2.3.4", "X-Original-URL", "/admin", "X-HTTP-Method-Override", "DELETE", "Connection", "X-Hop", "X-Hop", "1", "X-Mine", "kept", "User-Agent", "vance/1"))
	got := up.seen()[0]
	for _, k := range []string{"Authorization", "Cookie", "Origin", "X-Vance-User", "Forwarded", "X-Forwarded-For", "X-Hop", "X-Original-URL", "X-HTTP-Method-Override"} {
		if v := got.Header.Get(k); v != "" {
			t.Errorf("%s went up: %q", k, v)
		}
	}
	for k, want := range map[string]string{"X-API-Key": "up-secret", "X-Mine": "kept", "User-Agent": "vance/1"} {
		if v := got.Header.Get(k); v != want {
			t.Errorf("%s went up as %q, want %q", k, v, want)
		}
	}
	if got.Host != strings.TrimPrefix(up.URL, "http://") || got.URL.RawQuery != "keep=1" {
		t.Errorf("the service saw Host %q and query %q", got.Host, got.URL.RawQuery)
	}
	for _, k := range []string{"Set-Cookie", "Www-Authenticate", "Access-Control-Allow-Origin"} {
		if v := r.header.Get(k); v != "" {
			t.Errorf("%s came down: %q", k, v)
		}
	}
	if r.header.Get("X-Own") != "kept" {
		t.Error("the service's own header is lost")
	}
	if s := p.log.String(); strings.Contains(s, "up-secret") || strings.Contains(s, "client") {
		t.Errorf("a secret is in the log: %s", s)
	}
}

func TestAnAnnouncedUploadTakesNoRoom(t *testing.T) {
	p, _, _ := onePod(t, nil, func(o *Options, _ *pod) {
		o.Limits = func() config.Limits { return config.Limits{PerPod: 10000, Spool: 1 << 20} }
	})
	for range 4 { // each announces most of the spool and sends nothing
		conn, err := net.Dial("tcp", p.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "POST /tex/acme/thesis/@u1/tex2pdf/tex2pdf HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\nx")
	}
	eventually(t, "they are under way", func() bool { return spooled(p) >= 4 })
	mustSubmit(t, p.url)
}

// hold begins an upload of n bytes and leaves it unfinished.
func hold(t *testing.T, p *pod, who string, n int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	before := spooled(p)
	fmt.Fprintf(conn, "POST /tex/%s/tex2pdf/tex2pdf HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", who, n)
	if _, err := conn.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the upload of "+who+" has come", func() bool { return spooled(p) >= before+int64(n) })
	return conn
}

func TestNobodyFillsTheSpoolForOthers(t *testing.T) {
	p, _, _ := onePod(t, nil, func(o *Options, _ *pod) {
		o.Limits = func() config.Limits { return config.Limits{PerPod: 10000, Spool: 3 << 20} }
	})
	post := func(who string, n int) reply {
		return do(t, request1(t, "POST", p.server.URL+"/tex/"+who+"/tex2pdf/tex2pdf", &zeroReader{n}))
	}
	full := func(who string, n int) {
		t.Helper()
		if r := post(who, n); r.status != 503 || !strings.Contains(r.body, "limits.spool") || r.header.Get("Retry-After") == "" {
			t.Errorf("%d bytes more of %s answered %d %s; want 503", n, who, r.status, r.body)
		}
	}
	hold(t, p, "acme/thesis/@u1", 600<<10)
	hold(t, p, "acme/thesis/@u1", 400<<10) // its third, nearly
	full("acme/thesis/@u1", 100<<10)
	full("acme/other/@u1", 100<<10) // another project is no other user
	if r := post("acme/thesis/@u2", 200<<10); r.status == 503 {
		t.Errorf("another user of the tenant was refused: %s", r.body)
	}
	for i := range 6 { // users that nobody has heard of
		hold(t, p, fmt.Sprintf("acme/thesis/@made-up-%d", i), 60<<10)
	}
	full("acme/thesis/@u9", 400<<10)
	if r := post("beta/thesis/@u1", 400<<10); r.status != 200 {
		t.Errorf("another tenant was refused: %d %s", r.status, r.body)
	}
}

func TestARefusedUploadHasNoRoomWhileItIsReadOn(t *testing.T) {
	p, _, _ := onePod(t, nil, func(o *Options, _ *pod) {
		o.Limits = func() config.Limits { return config.Limits{PerPod: 10000, Spool: 3 << 20} }
	})
	conn := hold(t, p, "acme/thesis/@u1", 1000<<10)
	if _, err := conn.Write([]byte(fmt.Sprintf("\r\n%x\r\n%s", 100<<10, make([]byte, 100<<10)))); err != nil {
		t.Fatal(err)
	}
	// Its client goes on sending for as long as it likes.
	eventually(t, "its room is free", func() bool { return spooled(p) == 0 })
}

func TestAnUploadThatCannotBeStoredIsReadOnToo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	p, _, store := onePod(t, nil, func(o *Options, _ *pod) { o.SpoolDir = dir })
	p.Close()
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no directory can be here
		t.Fatal(err)
	}
	r := do(t, request1(t, "POST", p.url+"/tex2pdf", &zeroReader{40 << 20}))
	if r.status != 500 || !strings.Contains(r.body, "could not be stored") || calls(store) != 0 {
		t.Errorf("an upload without a disk answered %d %s after %d store calls", r.status, r.body, calls(store))
	}
}

func TestTheSpoolsDirectoryIsMadeAgainAndRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	p, _, _ := onePod(t, nil, func(o *Options, _ *pod) { o.SpoolDir = dir })
	if err := os.Remove(dir); err != nil { // as a sweep of old temporary files does
		t.Fatal(err)
	}
	if r := do(t, request1(t, "POST", p.url+"/tex2pdf", zeros(1<<20))); r.status != 200 {
		t.Errorf("an upload after the sweep answered %d %s", r.status, r.body)
	}
	p.Close()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there after Close: %v", err)
	}
}

func TestAFullDiskSaysSo(t *testing.T) {
	p, _, _ := onePod(t, nil)
	w := httptest.NewRecorder()
	q := &request{p: p.Proxy, w: w, r: httptest.NewRequest("POST", "/", nil), s: p.services["tex2pdf"]}
	q.refuse(&spoolError{&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}})
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "no room") || !strings.Contains(p.log.String(), "could not be stored") {
		t.Errorf("a full disk answered %d %s, log %s", w.Code, w.Body, p.log)
	}
}

func TestNobodyTakesAllRequestsOfThePod(t *testing.T) {
	p, _, _ := onePod(t, nil, func(o *Options, _ *pod) {
		o.Limits = func() config.Limits { return config.Limits{PerPod: 30, Spool: 1 << 30} }
	})
	for range 10 {
		hold(t, p, "acme/thesis/@u1", 1)
	}
	get := func(who string) reply {
		return do(t, request1(t, "GET", p.server.URL+"/tex/"+who+"/tex2pdf/tex2pdf/status/none", nil))
	}
	if r := get("acme/thesis/@u1"); r.status != 503 || !strings.Contains(r.body, "limits.perPod") || r.header.Get("Retry-After") == "" {
		t.Errorf("one more request of the caller answered %d %s; want 503", r.status, r.body)
	}
	for _, who := range []string{"acme/thesis/@u2", "beta/thesis/@u1"} {
		if r := get(who); r.status != 404 {
			t.Errorf("a request of %s answered %d %s; want 404", who, r.status, r.body)
		}
	}
}

func TestAnEmptyUploadIsTheServicesToRefuse(t *testing.T) {
	p, up, store := onePod(t, nil)
	up.script(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.WriteHeader(422)
		fmt.Fprintf(w, "%d bytes", len(b))
	})
	for name, body := range map[string]io.Reader{"none": nil, "of no length": http.NoBody, "of an unknown length": &zeroReader{0}} {
		if r := do(t, request1(t, "POST", p.url+"/tex2pdf", body)); r.status != 422 || r.body != "0 bytes" {
			t.Errorf("a body %s answered %d %s", name, r.status, r.body)
		}
	}
	wantHeld(t, store, 0)
}

// A client that asks first sends nothing of what would be refused.
func TestAClientThatAsksBeforeItSends(t *testing.T) {
	p, _, _ := onePod(t, nil)
	ask := func(length int) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", p.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "POST /tex/acme/thesis/@u1/tex2pdf/tex2pdf HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", length)
		return conn, bufio.NewReader(conn)
	}
	_, in := ask(60 << 20)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 413 ") {
		t.Errorf("60 MB that are not sent yet were answered %q %v", line, err)
	}
	conn, in := ask(3)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") {
		t.Fatalf("3 bytes were answered %q %v", line, err)
	}
	fmt.Fprint(conn, "abc")
	_, _ = in.ReadString('\n') // the empty line after 100
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
		t.Errorf("the upload was answered %q %v", line, err)
	}
}
