//go:build external

package realtex

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
	"github.com/vancetope/mcp-lease-gateway/testservers/texengine"
)

func TestAThesisThroughTheGatewayIsTheSamePDF(t *testing.T) {
	t.Parallel()
	s := startServices(t, 0)
	p := pod.Start(t, s.config("", "1s"))
	files := archive(t, thesis(t))
	direct, err := client{t, s.jobURL, upstreamKey}.vance(files, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if pages := pageCount(t, direct); pages < 30 {
		t.Errorf("the document has %d pages; want a thesis", pages)
	}
	got, err := through(t, p.URL, "tex2pdf", "acme", "thesis", "ada").vance(files, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "job mode", got, direct)
	r, err := through(t, p.URL, "texsync", "acme", "thesis", "ada").do("POST", "/compile", "application/zip", files)
	if err != nil || r.status != 200 {
		t.Fatalf("sync mode answered %d %.200s %v", r.status, r.body, err)
	}
	same(t, "sync mode", r.body, direct)
	if h := holders(t, p); len(h) != 0 {
		t.Errorf("leases are left: %v", h)
	}
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	t.Logf("%s: %d bytes, sha256 %x; direct: %d bytes, sha256 %x", what, len(got), sha256.Sum256(got), len(want), sha256.Sum256(want))
	if !bytes.Equal(got, want) {
		t.Errorf("%s: the PDF through the gateway is another one", what)
	}
}

func pageCount(t *testing.T, pdf []byte) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.pdf")
	if err := os.WriteFile(path, pdf, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("pdfinfo", path).Output()
	if err != nil {
		t.Fatalf("pdfinfo (poppler-utils): %v", err)
	}
	m := regexp.MustCompile(`Pages:\s+(\d+)`).FindSubmatch(out)
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

func TestAnErrorInADocumentArrivesUnchanged(t *testing.T) {
	t.Parallel()
	s := startServices(t, 0)
	p := pod.Start(t, s.config("", "1s"))
	files := archive(t, document(`\undefinedmacro`))
	c := through(t, p.URL, "tex2pdf", "acme", "thesis", "ada")
	r, err := c.submit(files)
	if err != nil || r.status != 200 {
		t.Fatalf("the submit answered %d %s %v", r.status, r.body, err)
	}
	path := "/tex2pdf/status/" + r.member("job_id")
	var got reply
	eventually(t, "the compile fails", func() bool {
		got, err = c.do("GET", path, "", nil)
		return err != nil || got.member("status") == "failed"
	})
	direct, err := client{t, s.jobURL, upstreamKey}.do("GET", path, "", nil)
	if err != nil || !bytes.Equal(got.body, direct.body) || got.header.Get("Content-Type") != direct.header.Get("Content-Type") {
		t.Errorf("the client reads\n%s\nand the service says\n%s %v", got.body, direct.body, err)
	}
	if !strings.Contains(got.member("error"), "Undefined control sequence") {
		t.Errorf("the error is %q", got.member("error"))
	}
	if h := holders(t, p); len(h) != 0 {
		t.Errorf("leases are left: %v", h)
	}
	sync, err := through(t, p.URL, "texsync", "acme", "thesis", "ada").do("POST", "/compile", "text/x-tex", document(`\undefinedmacro`)["main.tex"])
	if err != nil || sync.status != 422 || !strings.Contains(sync.member("error"), "Undefined control sequence") {
		t.Errorf("sync mode answered %d %s %v", sync.status, sync.body, err)
	}
}

// The client is gone after its submit; the slot stays taken while pdflatex runs
// and is free once the service has ended it.
func TestALoopHoldsItsSlotUntilTheServiceEndsIt(t *testing.T) {
	t.Parallel()
	loop := document(`\loop\iftrue\repeat`)
	for _, c := range []struct {
		name   string
		submit func(t *testing.T, gateway string)
		engine func(*services) *texengine.Engine
	}{
		{"job mode", func(t *testing.T, gateway string) {
			if r, err := through(t, gateway, "tex2pdf", "acme", "thesis", "ada").submit(archive(t, loop)); err != nil || r.status != 200 {
				t.Errorf("the submit answered %d %s %v", r.status, r.body, err)
			}
		}, func(s *services) *texengine.Engine { return s.job.Engine }},
		{"sync mode", func(t *testing.T, gateway string) {
			impatient := http.Client{Timeout: 500 * time.Millisecond}
			r, err := http.NewRequestWithContext(t.Context(), "POST", gateway+"/tex/acme/thesis/@ada/texsync/compile", bytes.NewReader(loop["main.tex"]))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-API-Key", clientKey)
			if resp, err := impatient.Do(r); err == nil {
				resp.Body.Close()
				t.Errorf("a loop was answered with %d", resp.StatusCode)
			}
		}, func(s *services) *texengine.Engine { return s.sync.Engine }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startServices(t, 4*time.Second)
			p := pod.Start(t, s.config("", "200ms"))
			c.submit(t, p.URL)
			eventually(t, "pdflatex runs", func() bool { return c.engine(s).Running() == 1 })
			for c.engine(s).Running() == 1 {
				h := holders(t, p)
				if len(h) != 1 && c.engine(s).Running() == 1 {
					t.Fatalf("pdflatex runs and %d leases are held", len(h))
				}
				time.Sleep(100 * time.Millisecond)
			}
			eventually(t, "the slot is free", func() bool { return len(holders(t, p)) == 0 })
		})
	}
}

func TestTwelveClientsOfThreeTenants(t *testing.T) {
	for _, mode := range []string{"job", "sync"} {
		t.Run(mode+" mode", func(t *testing.T) {
			s := startServices(t, 0)
			p := pod.Start(t, s.config("", "1s"))
			engine := s.job.Engine
			if mode == "sync" {
				engine = s.sync.Engine
			}
			var mu sync.Mutex
			refusals := 0
			var wg sync.WaitGroup
			for i := range 12 {
				// Four clients a tenant; two of them share a project.
				tenant, project := fmt.Sprintf("tenant%d", i%3), fmt.Sprintf("project%d", max(i/3, 1))
				user := fmt.Sprintf("user%d", i)
				wg.Go(func() {
					refused, err := served(func() (int, http.Header, error) {
						if mode == "sync" {
							r, err := through(t, p.URL, "texsync", tenant, project, user).do("POST", "/compile", "text/x-tex", counted(tenant, project)["main.tex"])
							return r.status, r.header, err
						}
						c := through(t, p.URL, "tex2pdf", tenant, project, user)
						r, err := c.submit(archive(t, counted(tenant, project)))
						if err != nil || r.status != 200 {
							return r.status, r.header, err
						}
						return r.status, r.header, c.untilDone(r.member("job_id"))
					})
					mu.Lock()
					refusals += refused
					mu.Unlock()
					if err != nil {
						t.Errorf("client %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			stats := engine.Stats()
			t.Logf("%d compiles, %d refusals; peaks: all %d, %s", stats[""].Compiled, refusals, stats[""].Peak, peaks(stats))
			if c := stats[""]; c.Peak > 6 || c.Compiled != 12 || c.Running != 0 {
				t.Errorf("all: %+v; want at most 6 at once and 12 in all", c)
			}
			if stats[""].Peak < 2 {
				t.Error("nothing ran at once, so this proves nothing")
			}
			for group, c := range stats {
				most := 3
				if strings.Contains(group, "/") {
					most = 1
				}
				if group != "" && c.Peak > most {
					t.Errorf("%s: %d at once; want at most %d", group, c.Peak, most)
				}
			}
			if h := holders(t, p); len(h) != 0 {
				t.Errorf("leases are left: %v", h)
			}
		})
	}
}

func peaks(stats map[string]texengine.Count) string {
	var b strings.Builder
	for _, tenant := range []string{"tenant0", "tenant1", "tenant2"} {
		fmt.Fprintf(&b, "%s %d (", tenant, stats[tenant].Peak)
		for _, project := range []string{"project1", "project2", "project3"} {
			fmt.Fprintf(&b, " %d", stats[tenant+"/"+project].Peak)
		}
		b.WriteString(" ) ")
	}
	return b.String()
}

// untilDone polls until the job has ended well.
func (c client) untilDone(id string) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		r, err := c.do("GET", "/tex2pdf/status/"+id, "", nil)
		switch {
		case err != nil:
			return err
		case r.status != 200 || r.member("status") == "failed":
			return fmt.Errorf("a poll answered %d %s", r.status, r.body)
		case r.member("status") == "completed":
			return nil
		}
	}
	return fmt.Errorf("job %s does not end", id)
}

// Two pods on one store behind a balancer; one of them is restarted all the
// while, in turn as a deployment does it and as a crash does.
func TestVancesClientCompilesTwentyTimesWhilePodsRestart(t *testing.T) {
	t.Parallel()
	s := startServices(t, 0)
	store := mongodb(t)
	a, b := pod.Start(t, s.config(store, "1s")), pod.Start(t, s.config(store, "1s"))
	lb := balance(t)
	lb.set(a.URL, b.URL)

	stop, restarts := make(chan struct{}), 0
	var restarting sync.WaitGroup
	restarting.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Second):
			}
			lb.set(b.URL) // what a cluster does before it stops a pod
			eventually(t, "the pod is between two requests", func() bool { return lb.quiet(a.URL) })
			if i%2 == 0 {
				a.Terminate(t)
			} else {
				a.Kill()
			}
			a = a.Restart(t)
			lb.set(a.URL, b.URL)
			restarts++
		}
	})
	c := through(t, lb.URL, "tex2pdf", "acme", "thesis", "ada")
	for i := range 20 {
		pdf, err := c.vance(archive(t, counted("acme", "thesis")), 3*time.Second)
		if err != nil {
			t.Errorf("compile %d: %v", i, err)
		} else if !bytes.HasPrefix(pdf, []byte("%PDF")) {
			t.Errorf("compile %d gave no PDF", i)
		}
	}
	close(stop)
	restarting.Wait()
	stats := s.job.Engine.Stats()
	t.Logf("20 compiles, %d restarts, peak %d", restarts, stats[""].Peak)
	if restarts < 3 || stats[""].Compiled != 20 || stats["acme/thesis"].Peak != 1 {
		t.Errorf("%d restarts, %+v", restarts, stats)
	}
	eventually(t, "no lease is left", func() bool { return len(holders(t, b)) == 0 })
}

// A gateway that is killed and started again on its file knows its jobs.
func TestARestartedGatewayLosesNoJob(t *testing.T) {
	t.Parallel()
	s := startServices(t, 0)
	p := pod.Start(t, s.config("", "200ms"))
	polled := through(t, p.URL, "tex2pdf", "acme", "polled", "ada")
	first, err := polled.submit(archive(t, counted("acme", "polled")))
	if err != nil || first.status != 200 {
		t.Fatalf("submit: %d %s %v", first.status, first.body, err)
	}
	second, err := through(t, p.URL, "tex2pdf", "acme", "abandoned", "ada").submit(archive(t, counted("acme", "abandoned")))
	if err != nil || second.status != 200 {
		t.Fatalf("submit: %d %s %v", second.status, second.body, err)
	}
	p.Kill()
	p = p.Restart(t)
	if err := through(t, p.URL, "tex2pdf", "acme", "polled", "ada").untilDone(first.member("job_id")); err != nil {
		t.Error(err)
	}
	eventually(t, "the abandoned job's slot is free", func() bool { return len(holders(t, p)) == 0 })
	for project, id := range map[string]string{"polled": first.member("job_id"), "abandoned": second.member("job_id")} {
		r, err := through(t, p.URL, "tex2pdf", "acme", project, "ada").do("GET", "/tex2pdf/download/"+id, "", nil)
		if err != nil || r.status != 200 || !bytes.HasPrefix(r.body, []byte("%PDF")) {
			t.Errorf("the download of %s answered %d %v", project, r.status, err)
		}
		r, err = through(t, p.URL, "tex2pdf", "evil", project, "ada").do("GET", "/tex2pdf/download/"+id, "", nil)
		if err != nil || r.status != 404 {
			t.Errorf("another tenant's download of %s answered %d %v", project, r.status, err)
		}
	}
}

// What is wrong with a document is for the service to say, and nothing is held
// for it afterwards.
func TestBadDocumentsAreTheServicesToRefuse(t *testing.T) {
	t.Parallel()
	s := startServices(t, 0)
	p := pod.Start(t, s.config("", "1s"))
	form := func(part, name, content string) (string, []byte) {
		var b bytes.Buffer
		m := multipart.NewWriter(&b)
		w, err := m.CreateFormFile(part, name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, content)
		m.Close()
		return m.FormDataContentType(), b.Bytes()
	}
	for name, c := range map[string]struct {
		contentType, part, file, content string
		status                           int
	}{
		"not multipart":        {contentType: "application/zip", content: "PK", status: 422},
		"no body":              {contentType: "multipart/form-data; boundary=x", status: 422},
		"no part":              {part: "file", file: "a.zip", content: "PK", status: 422},
		"another kind of file": {part: "zip_file", file: "a.tar", content: "x", status: 400},
		"a broken archive":     {part: "zip_file", file: "a.zip", content: "PK, or so it says", status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			contentType, body := c.contentType, []byte(c.content)
			if c.part != "" {
				contentType, body = form(c.part, c.file, c.content)
			}
			direct, err := client{t, s.jobURL, upstreamKey}.do("POST", "/tex2pdf", contentType, body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := through(t, p.URL, "tex2pdf", "acme", "thesis", "ada").do("POST", "/tex2pdf", contentType, body)
			if err != nil {
				t.Fatal(err)
			}
			id := strings.NewReplacer(direct.member("job_id"), "", got.member("job_id"), "")
			if direct.member("job_id") == "" {
				id = strings.NewReplacer()
			}
			if got.status != c.status || direct.status != c.status || id.Replace(string(got.body)) != id.Replace(string(direct.body)) {
				t.Errorf("the gateway answered %d %s, the service %d %s", got.status, got.body, direct.status, direct.body)
			}
			if c.status == 200 && got.member("status") != "failed" {
				t.Errorf("the submit ended as %s", got.body)
			}
			if h := holders(t, p); len(h) != 0 {
				t.Errorf("leases are left: %v", h)
			}
		})
	}
}

// An operator takes the slots of two compiles that never end.
func TestAnOperatorRevokesARunningCompile(t *testing.T) {
	t.Parallel()
	s := startServices(t, 10*time.Second)
	p := pod.Start(t, s.config("", "1s"))
	loop := document(`\loop\iftrue\repeat`)
	revoke := func() {
		t.Helper()
		var held []map[string]any
		eventually(t, "a lease is held", func() bool { held = holders(t, p); return len(held) == 1 })
		r, err := http.NewRequestWithContext(t.Context(), "POST", fmt.Sprintf("%s/internal/lease/admin/holders/%v/revoke", p.Internal, held[0]["token"]), nil)
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
	job := through(t, p.URL, "tex2pdf", "acme", "thesis", "ada")
	r, err := job.submit(archive(t, loop))
	if err != nil || r.status != 200 {
		t.Fatalf("the submit answered %d %s %v", r.status, r.body, err)
	}
	id := r.member("job_id")
	eventually(t, "pdflatex runs", func() bool { return s.job.Engine.Running() == 1 })
	revoke()
	for range 2 { // it stays lost
		r, err = job.do("GET", "/tex2pdf/status/"+id, "", nil)
		if err != nil || r.status != 200 || r.member("status") != "failed" || !strings.HasPrefix(r.member("error"), "LEASE_LOST") {
			t.Errorf("a poll of the revoked job answered %d %s %v", r.status, r.body, err)
		}
	}

	done := make(chan reply)
	go func() {
		r, err := through(t, p.URL, "texsync", "acme", "thesis", "ada").do("POST", "/compile", "text/x-tex", loop["main.tex"])
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	eventually(t, "pdflatex runs", func() bool { return s.sync.Engine.Running() == 1 })
	began := time.Now()
	revoke()
	if r := <-done; r.status != 410 || !strings.Contains(string(r.body), "LEASE_LOST") || time.Since(began) > 5*time.Second {
		t.Errorf("the revoked compile answered %d %s after %s", r.status, r.body, time.Since(began))
	}
	if h := holders(t, p); len(h) != 0 {
		t.Errorf("leases are left: %v", h)
	}
}
