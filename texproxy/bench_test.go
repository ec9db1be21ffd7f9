package texproxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/boltstore"
)

// The gateway beside httputil.ReverseProxy in front of the same service:
//
//	go test -run '^$' -bench . -benchtime 2s ./texproxy

// realPod is a pod on the embedded store, with an engine that sweeps.
func realPod(t testing.TB, path string, id lease.PodID, svc tex.Service, opts ...podOption) *pod {
	t.Helper()
	s, err := boltstore.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		if err := s.Close(stop); err != nil {
			t.Error(err)
		}
	})
	sweeps := func(o *lease.Options) {
		o.Heartbeat, o.StaleAfter, o.ReapInterval = 100*time.Millisecond, time.Second, 50*time.Millisecond
	}
	return newPod(t, s, id, svc, append([]podOption{func(_ *Options, p *pod) { p.engine = sweeps }}, opts...)...)
}

// sink is a service that takes uploads and gives PDFs of a size.
type sink struct {
	*httptest.Server
	pdf  []byte
	jobs atomic.Int64
}

func newSink(t testing.TB, pdf int) *sink {
	s := &sink{pdf: make([]byte, pdf)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			n, _ := io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"job_id":"job-%d","status":"queued","size":%d}`, s.jobs.Add(1), n)
		case strings.Contains(r.URL.Path, "/download/"):
			w.Header().Set("Content-Type", "application/pdf")
			w.Header().Set("Content-Length", fmt.Sprint(len(s.pdf)))
			w.Write(s.pdf)
		default:
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"job_id":"job","status":"processing","created_at":"2024-01-01T00:00:00"}`)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) service() tex.Service {
	return tex.Service{Name: "tex2pdf", Preset: "rbehzadan", Upstream: s.URL, MaxUpload: 64 << 20}
}

// plain is the proxy that everything is measured against.
func (s *sink) plain(t testing.TB) string {
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := newTransport()
	transport.DialContext = dialer.DialContext
	rp := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport}
	h := httptest.NewServer(rp)
	t.Cleanup(h.Close)
	return h.URL
}

func unlimited(_ *Options, p *pod) {
	p.def.Caps = map[definition.Level]definition.Cap{definition.Global: 1 << 20, definition.Tenant: 1 << 20, definition.Project: 1 << 20}
}

// pacedReader is a body on a line of a certain speed.
type pacedReader struct {
	zeroReader
	pace  int
	start time.Time
	sent  int
}

func (p *pacedReader) Read(b []byte) (int, error) {
	if p.start.IsZero() {
		p.start = time.Now()
	}
	time.Sleep(time.Until(p.start.Add(time.Duration(float64(p.sent) / float64(p.pace) * float64(time.Second)))))
	n, err := p.zeroReader.Read(b)
	p.sent += n
	return n, err
}

func fetch(t testing.TB, client *http.Client, method, url string, size int) {
	fetchPaced(t, client, method, url, size, 0)
}

func fetchPaced(t testing.TB, client *http.Client, method, url string, size, pace int) {
	t.Helper()
	var body io.Reader
	switch {
	case method == http.MethodPost && pace > 0:
		body = &pacedReader{zeroReader: zeroReader{size}, pace: pace}
	case method == http.MethodPost:
		body = &zeroReader{size}
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = int64(size)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s %s answered %d %v", method, url, resp.StatusCode, err)
	}
}

// memoryAtMost is what a request may allocate in bytes, client, service and
// gateway together.
const memoryAtMost = 4 << 20

// Each iteration asks both in turn, so that what else the machine does falls on
// both alike. That makes requests slower and never faster, so the quicker quarter
// of each is what is compared, and a ratio over the bound is a failure when it is
// one in each of three rounds.
//
// An upload goes up when it is here as a whole, so over loopback, where its two
// ways are equally fast, it takes twice the plain proxy's time. On a network the
// way up is the shorter one.
func BenchmarkAgainstReverseProxy(b *testing.B) {
	for _, c := range []struct {
		name, method, path string
		size, pdf          int
		pace               int     // bytes a second that the client's line takes; 0 is loopback's own
		atMost             float64 // of the gateway's time to the plain proxy's
	}{
		{"poll", "GET", "/tex2pdf/status/job-1", 0, 0, 0, 1.2},
		{"upload_of_50_MB_on_loopback", "POST", "/tex2pdf", 50 << 20, 0, 0, 2.2},
		{"upload_of_50_MB_at_1_Gbit", "POST", "/tex2pdf", 50 << 20, 0, 125e6, 1.3},
		{"upload_of_50_MB_at_100_Mbit", "POST", "/tex2pdf", 50 << 20, 0, 12.5e6, 1.2},
		{"PDF_of_20_MB", "GET", "/tex2pdf/download/job-1", 0, 20 << 20, 0, 1.2},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newSink(b, c.pdf)
			plain := s.plain(b)
			p := realPod(b, filepath.Join(b.TempDir(), "leases.db"), "bench", s.service(), unlimited)
			fetch(b, http.DefaultClient, "POST", p.url+"/tex2pdf", 0)
			fetch(b, http.DefaultClient, c.method, p.url+c.path, c.size) // connections and pools
			var took [2][]time.Duration
			once := func() {
				for i, base := range []string{plain, p.url} {
					start := time.Now()
					fetchPaced(b, http.DefaultClient, c.method, base+c.path, c.size, c.pace)
					took[i] = append(took[i], time.Since(start))
				}
			}
			quarter := func(d []time.Duration) float64 {
				slices.Sort(d)
				return float64(d[len(d)/4]) / float64(time.Millisecond)
			}
			for b.Loop() {
				once()
			}
			ratio := quarter(took[1]) / quarter(took[0])
			for round := 1; round < 3 && ratio > c.atMost; round++ {
				n := max(len(took[0]), 20)
				took = [2][]time.Duration{}
				for range n {
					once()
				}
				ratio = quarter(took[1]) / quarter(took[0])
			}
			allocated := allocatedBy(func() {
				fetchPaced(b, http.DefaultClient, c.method, p.url+c.path, c.size, c.pace)
			})
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(quarter(took[0]), "plain-ms")
			b.ReportMetric(quarter(took[1]), "gateway-ms")
			b.ReportMetric(ratio, "ratio")
			b.ReportMetric(float64(allocated), "allocated-B")
			if ratio > c.atMost {
				b.Errorf("it takes %.2f times as long as through a plain proxy, want at most %.1f", ratio, c.atMost)
			}
			if allocated > memoryAtMost {
				b.Errorf("it allocates %d bytes, want at most %d", allocated, memoryAtMost)
			}
		})
	}
}

// allocatedBy is how many bytes f allocates, pools filled before it not counted.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What a body costs in memory does not depend on its size.
func TestMemoryDoesNotGrowWithTheBody(t *testing.T) {
	s := newSink(t, 20<<20)
	p := newPod(t, newStore(), "pod-a", s.service(), unlimited)
	allocated := func(f func()) uint64 {
		f() // connections and pools
		runtime.GC()
		return allocatedBy(f)
	}
	up := allocated(func() { fetch(t, http.DefaultClient, "POST", p.url+"/tex2pdf", 50<<20) })
	down := allocated(func() { fetch(t, http.DefaultClient, "GET", p.url+"/tex2pdf/download/job-1", 0) })
	if up > memoryAtMost || down > memoryAtMost {
		t.Errorf("an upload of 50 MB allocates %d bytes and a PDF of 20 MB %d; want at most %d", up, down, memoryAtMost)
	}
}
