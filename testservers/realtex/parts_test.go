//go:build external

package realtex

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	mongotest "github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
	"github.com/vancetope/mcp-lease-gateway/testservers/tex2pdf"
	"github.com/vancetope/mcp-lease-gateway/testservers/texengine"
	"github.com/vancetope/mcp-lease-gateway/testservers/texsync"
)

const (
	clientKey   = "key-of-the-brain"
	upstreamKey = "key-of-the-service"
	patience    = 2 * time.Minute
)

func TestMain(m *testing.M) {
	if err := texengine.Installed(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func identity() string {
	sum := sha256.Sum256([]byte(clientKey))
	return `apiKeys:
  - {name: brain, sha256: ` + hex.EncodeToString(sum[:]) + `, tenants: {"*": ["*"]}, userHeader: X-Vance-User}`
}

// services are both TeX test services, in this process.
type services struct {
	job  *tex2pdf.Server
	sync *texsync.Server
	// The direct addresses, for what the gateway is compared with.
	jobURL, syncURL string
}

func startServices(t *testing.T, timeout time.Duration) *services {
	t.Helper()
	s := &services{job: tex2pdf.New(tex2pdf.Options{Dir: t.TempDir(), Keys: []string{upstreamKey}, Timeout: timeout}), sync: texsync.New(timeout)}
	job, sync := httptest.NewServer(s.job), httptest.NewServer(s.sync)
	t.Cleanup(func() { job.Close(); sync.Close(); s.job.Close() })
	s.jobURL, s.syncURL = job.URL, sync.URL
	return s
}

// config is a gateway in front of both; every is how often it looks after an
// abandoned job.
func (s *services) config(store, every string) pod.Config {
	return pod.Config{
		Store: store, Identity: identity(),
		More: `tex:
  - name: tex2pdf
    preset: rbehzadan
    upstream: ` + s.jobURL + `
    auth: {type: apiKey, headerName: X-API-Key, value: ` + upstreamKey + `}
    abandoned: {mode: watch, every: ` + every + `, max: 300s}
  - name: texsync
    mode: sync
    upstream: ` + s.syncURL + `
    submit: {match: {methods: [POST], path: /compile}}
`,
	}
}

// mongodb is a store of the test's own.
func mongodb(t *testing.T) string {
	t.Helper()
	uri, name := mongotest.Database(t)
	return "kind: mongodb\nuri: " + uri + "\ndatabase: " + name
}

// client is a caller in one scope of a service behind one base URL.
type client struct {
	t    *testing.T
	base string
	key  string
}

func through(t *testing.T, gateway, service, tenant, project, user string) client {
	return client{t, gateway + "/tex/" + tenant + "/" + project + "/@" + user + "/" + service, clientKey}
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) member(name string) string {
	var v map[string]any
	if json.Unmarshal(r.body, &v) != nil {
		return ""
	}
	text, _ := v[name].(string)
	return text
}

func (c client) do(method, path, contentType string, body []byte) (reply, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("X-API-Key", c.key)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, b}, err
}

func (c client) submit(archive []byte) (reply, error) {
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	w, err := m.CreateFormFile("zip_file", "project.zip")
	if err != nil {
		return reply{}, err
	}
	w.Write(archive)
	m.WriteField("options", `{"main_file": "main.tex"}`)
	m.Close()
	return c.do("POST", "/tex2pdf", m.FormDataContentType(), b.Bytes())
}

// vance compiles as Vance's client does: 200 or 201 only, a pause, then a poll
// for each pause; any other status ends the compile, nothing is tried again.
func (c client) vance(archive []byte, pause time.Duration) ([]byte, error) {
	r, err := c.submit(archive)
	if err != nil {
		return nil, fmt.Errorf("submit: %w", err)
	}
	if r.status != 200 && r.status != 201 {
		return nil, fmt.Errorf("submit answered %d %s", r.status, r.body)
	}
	id := r.member("job_id")
	for deadline := time.Now().Add(300 * time.Second); time.Now().Before(deadline); {
		time.Sleep(pause) // what the client does, not a wait of the test
		r, err := c.do("GET", "/tex2pdf/status/"+id, "", nil)
		if err != nil {
			return nil, fmt.Errorf("poll: %w", err)
		}
		if r.status != 200 {
			return nil, fmt.Errorf("a poll answered %d %s", r.status, r.body)
		}
		switch r.member("status") {
		case "completed", "done":
			r, err := c.do("GET", "/tex2pdf/download/"+id, "", nil)
			if err != nil || r.status != 200 {
				return nil, fmt.Errorf("download: %d %w", r.status, err)
			}
			return r.body, nil
		case "failed", "error":
			return nil, errors.New(r.member("error"))
		}
	}
	return nil, errors.New("the compile takes too long")
}

// served compiles until there is a slot, as a client does that honours
// Retry-After. It returns how often it was refused.
func served(compile func() (status int, header http.Header, err error)) (refused int, err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); refused++ {
		status, header, err := compile()
		if err != nil || status == 200 {
			return refused, err
		}
		if status != http.StatusTooManyRequests {
			return refused, fmt.Errorf("the compile answered %d", status)
		}
		seconds, err := strconv.Atoi(header.Get("Retry-After"))
		if err != nil {
			return refused, fmt.Errorf("a refusal without Retry-After")
		}
		time.Sleep(min(time.Duration(seconds)*time.Second, time.Second))
	}
	return refused, errors.New("not served")
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range []string{"main.tex", "refs.bib", "figure0.png", "figure1.png", "figure2.png"} {
		if files[name] == nil {
			continue
		}
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(files[name])
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func document(body string) map[string][]byte {
	return map[string][]byte{"main.tex": []byte("\\documentclass{article}\n\\begin{document}\n" + body + "\n\\end{document}\n")}
}

// counted is a small document that TeX works on for a moment and that is
// counted for a tenant and a project.
func counted(tenant, project string) map[string][]byte {
	d := document(`\newcount\n \loop\ifnum\n<1000000 \advance\n by 1 \repeat Hello.`)
	d["main.tex"] = append([]byte("%!stats "+tenant+"/"+project+"\n"), d["main.tex"]...)
	return d
}

// thesis has more than 30 pages, figures and a bibliography.
func thesis(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	var tex, bib strings.Builder
	tex.WriteString("\\documentclass[11pt]{report}\n\\usepackage{graphicx}\n\\begin{document}\n\\title{Leases}\\author{A. Writer}\\date{2024}\\maketitle\n\\tableofcontents\n")
	for i := range 15 {
		fmt.Fprintf(&tex, "\\chapter{Part %d}\\label{c%d}\nAs \\cite{k%d} shows, see chapter~\\ref{c%d}.\n", i, i, i, (i+1)%15)
		fmt.Fprintf(&tex, "\\begin{figure}[h]\\centering\\includegraphics[width=.6\\textwidth]{figure%d.png}\\caption{Figure %d}\\end{figure}\n", i%3, i)
		for p := range 14 {
			fmt.Fprintf(&tex, "\\par Paragraph %d: %s\n", p, strings.Repeat("the quick brown fox jumps over the lazy dog and on. ", 9))
		}
		fmt.Fprintf(&bib, "@book{k%d, author={Knuth %d}, title={The Book %d}, year=%d, publisher={A. W.}}\n", i, i, i, 1970+i)
	}
	tex.WriteString("\\bibliographystyle{plain}\\bibliography{refs}\n\\end{document}\n")
	files["main.tex"], files["refs.bib"] = []byte(tex.String()), []byte(bib.String())
	for i := range 3 {
		m := image.NewRGBA(image.Rect(0, 0, 200, 120))
		for x := range 200 {
			for y := range 120 {
				m.Set(x, y, color.RGBA{uint8(x), uint8(y * 2), uint8(80 * i), 255})
			}
		}
		var b bytes.Buffer
		if err := png.Encode(&b, m); err != nil {
			t.Fatal(err)
		}
		files[fmt.Sprintf("figure%d.png", i)] = b.Bytes()
	}
	return files
}

// holders lists the living TeX holders as the gateway's operators see them.
func holders(t *testing.T, p *pod.Process) []map[string]any {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", p.Internal+"/internal/lease/admin/holders?type=tex", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Vance-Internal-Token", pod.Token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct {
		Holders []map[string]any `json:"holders"`
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || json.Unmarshal(b, &v) != nil {
		t.Fatalf("holders: %d %s %v", resp.StatusCode, b, err)
	}
	return v.Holders
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// balancer sends each request to the next pod that takes its connection, as a
// service of a cluster does.
type balancer struct {
	*httptest.Server
	mu   sync.Mutex
	pods []string
	busy map[string]int
	next int
}

func balance(t *testing.T) *balancer {
	t.Helper()
	b := &balancer{busy: map[string]int{}}
	b.Server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.Close)
	return b
}

func (b *balancer) set(urls ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods = urls
}

// pick counts a request in at the next pod.
func (b *balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pods) == 0 {
		return ""
	}
	b.next++
	target := b.pods[b.next%len(b.pods)]
	b.busy[target]++
	return target
}

func (b *balancer) done(target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy[target]--
}

// quiet reports whether no request is under way at a pod. A crash breaks those
// that are, for any client; what is tried here is a crash between them.
func (b *balancer) quiet(target string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy[target] == 0
}

func (b *balancer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	for range 200 { // a few seconds
		if b.forward(w, r, body) {
			return
		}
		time.Sleep(20 * time.Millisecond) // no pod has seen it
	}
	w.WriteHeader(http.StatusBadGateway)
}

func (b *balancer) forward(w http.ResponseWriter, r *http.Request, body []byte) (answered bool) {
	target := b.pick()
	if target == "" {
		return false
	}
	defer b.done(target)
	up, err := http.NewRequestWithContext(r.Context(), r.Method, target+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return true
	}
	up.Header = r.Header.Clone()
	up.Close = true
	resp, err := http.DefaultTransport.RoundTrip(up)
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return false
	}
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return true
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	io.Copy(w, resp.Body)
	return true
}
