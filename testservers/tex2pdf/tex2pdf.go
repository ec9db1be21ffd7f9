// Package tex2pdf is a test service with the API of rbehzadan/tex2pdf that runs
// real TeX: submit an archive, poll, download. It counts what it compiles; see
// texengine for how documents are told apart.
//
// It keeps to the original also where that is inconvenient: a broken archive is
// a 200 with status failed, HEAD of a result is 405, there is no cancel, and any
// valid key reads any job.
package tex2pdf

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/texengine"
)

// Options configures a Server; zero values are the original's.
type Options struct {
	Dir       string        // for work; empty is the system's
	Keys      []string      // X-API-Key; none means that everybody may
	MaxUpload int64         // 50 MB
	Timeout   time.Duration // 240 s
	PerMinute int           // submits per key; 0 is any number
	Expire    time.Duration // 1 h
}

// Server is the service. Close it.
type Server struct {
	Engine *texengine.Engine

	opt    Options
	mux    *http.ServeMux
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	jobs    map[string]*job
	submits map[string][]time.Time
}

type job struct {
	ID        string `json:"job_id"`
	Status    string `json:"status"`
	CreatedAt string `json:"created_at"`
	Error     string `json:"error,omitempty"`
	Progress  string `json:"progress,omitempty"`

	dir, pdf string
	at       time.Time
}

// New makes a Server.
func New(o Options) *Server {
	if o.MaxUpload == 0 {
		o.MaxUpload = 50 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 240 * time.Second
	}
	if o.Expire == 0 {
		o.Expire = time.Hour
	}
	s := &Server{
		Engine: &texengine.Engine{Timeout: o.Timeout}, opt: o, mux: http.NewServeMux(),
		jobs: map[string]*job{}, submits: map[string][]time.Time{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mux.HandleFunc("POST /tex2pdf", s.submit)
	s.mux.HandleFunc("GET /tex2pdf/status/{id}", s.status)
	s.mux.HandleFunc("GET /tex2pdf/download/{id}", s.download)
	s.mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, s.Engine.Stats()) })
	return s
}

// Close ends all compiles and removes all files.
func (s *Server) Close() {
	s.cancel()
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		os.RemoveAll(j.dir)
	}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/stats" && !s.knows(r.Header.Get("X-API-Key")) {
		detail(w, http.StatusUnauthorized, "Invalid or missing API key")
		return
	}
	if r.Method == http.MethodHead { // a GET route would take it
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) knows(key string) bool {
	for _, k := range s.opt.Keys {
		if k == key {
			return true
		}
	}
	return len(s.opt.Keys) == 0
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func detail(w http.ResponseWriter, status int, text string) {
	reply(w, status, map[string]string{"detail": text})
}

func (s *Server) submit(w http.ResponseWriter, r *http.Request) {
	if !s.mayNow(r.Header.Get("X-API-Key")) {
		detail(w, http.StatusTooManyRequests, fmt.Sprintf("Rate limit exceeded: %d requests per minute", s.opt.PerMinute))
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, s.opt.MaxUpload+1<<20)
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			detail(w, http.StatusRequestEntityTooLarge, "File too large")
			return
		}
		missing(w)
		return
	}
	defer r.MultipartForm.RemoveAll()
	file, head, err := r.FormFile("zip_file")
	if err != nil {
		missing(w)
		return
	}
	defer file.Close()
	if !strings.HasSuffix(head.Filename, ".zip") {
		detail(w, http.StatusBadRequest, "File must be a ZIP archive")
		return
	}
	if head.Size > s.opt.MaxUpload {
		detail(w, http.StatusRequestEntityTooLarge, "File too large")
		return
	}
	var options struct {
		MainFile string `json:"main_file"`
	}
	if text := r.FormValue("options"); text != "" && json.Unmarshal([]byte(text), &options) != nil {
		detail(w, http.StatusBadRequest, "Invalid options JSON")
		return
	}
	dir, err := os.MkdirTemp(s.opt.Dir, "tex2pdf-")
	if err != nil {
		detail(w, http.StatusInternalServerError, "Internal server error")
		return
	}
	now := time.Now()
	j := &job{ID: newID(), Status: "queued", CreatedAt: now.UTC().Format(time.RFC3339Nano), dir: dir, at: now}
	s.mu.Lock()
	s.expire(now)
	s.jobs[j.ID] = j
	s.mu.Unlock()
	if err := texengine.Unzip(file, head.Size, dir); err != nil {
		s.finish(j, "", fmt.Errorf("failed to extract the archive: %w", err))
		reply(w, 200, map[string]string{"job_id": j.ID, "status": "failed", "message": "failed to extract the archive: " + err.Error()})
		return
	}
	s.work.Go(func() {
		s.set(j, "processing")
		main, err := texengine.MainFile(dir, options.MainFile)
		var pdf string
		if err == nil {
			pdf, err = s.Engine.Compile(s.ctx, dir, main)
		}
		s.finish(j, pdf, err)
	})
	reply(w, 200, map[string]string{"job_id": j.ID, "status": "queued", "message": "Compilation started"})
}

func missing(w http.ResponseWriter) {
	reply(w, http.StatusUnprocessableEntity, map[string]any{"detail": []map[string]any{
		{"loc": []string{"body", "zip_file"}, "msg": "Field required", "type": "missing"}}})
}

func (s *Server) mayNow(key string) bool {
	if s.opt.PerMinute == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var recent []time.Time
	for _, t := range s.submits[key] {
		if now.Sub(t) < time.Minute {
			recent = append(recent, t)
		}
	}
	if len(recent) >= s.opt.PerMinute {
		s.submits[key] = recent
		return false
	}
	s.submits[key] = append(recent, now)
	return true
}

func (s *Server) expire(now time.Time) {
	for id, j := range s.jobs {
		if now.Sub(j.at) > s.opt.Expire {
			os.RemoveAll(j.dir)
			delete(s.jobs, id)
		}
	}
}

func (s *Server) set(j *job, status string) {
	s.mu.Lock()
	j.Status, j.Progress = status, "compiling"
	s.mu.Unlock()
}

func (s *Server) finish(j *job, pdf string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.Progress = ""
	if err != nil {
		j.Status, j.Error = "failed", err.Error()
		var tex *texengine.Error
		if errors.As(err, &tex) {
			j.Error = err.Error() + "\n" + tail(tex.Log, 4000)
		}
		return
	}
	j.Status, j.pdf = "completed", pdf
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (s *Server) find(r *http.Request) (job, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(time.Now())
	j, ok := s.jobs[r.PathValue("id")]
	if !ok {
		return job{}, false
	}
	return *j, true
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	j, ok := s.find(r)
	if !ok {
		detail(w, http.StatusNotFound, "Job not found")
		return
	}
	reply(w, 200, j)
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	j, ok := s.find(r)
	if !ok {
		detail(w, http.StatusNotFound, "Job not found")
		return
	}
	if j.Status != "completed" {
		detail(w, http.StatusBadRequest, "Job not completed. Current status: "+j.Status)
		return
	}
	f, err := os.Open(j.pdf)
	if err != nil {
		detail(w, http.StatusNotFound, "PDF file not found")
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		detail(w, http.StatusInternalServerError, "Internal server error")
		return
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d-%d", info.ModTime().UnixNano(), info.Size()))
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Content-Type", "application/pdf")
	h.Set("Content-Disposition", `attachment; filename="`+filepath.Base(j.pdf)+`"`)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", fmt.Sprint(info.Size()))
	_, _ = io.Copy(w, f)
}

func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
