// Package texsync is a small synchronous TeX test service: POST a document or an
// archive to /compile and the answer is its PDF. It runs real TeX and counts
// what it compiles; see texengine.
package texsync

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/texengine"
)

// MaxUpload is the longest document, in bytes.
const MaxUpload = 50 << 20

// Server is the service.
type Server struct {
	Engine *texengine.Engine
	mux    *http.ServeMux
}

// New makes a Server whose compiles end after timeout.
func New(timeout time.Duration) *Server {
	s := &Server{Engine: &texengine.Engine{Timeout: timeout}, mux: http.NewServeMux()}
	s.mux.HandleFunc("POST /compile", s.compile)
	s.mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, s.Engine.Stats()) })
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// compile does not stop when its client leaves, as most such services do not.
func (s *Server) compile(w http.ResponseWriter, r *http.Request) {
	dir, err := os.MkdirTemp("", "texsync-")
	if err != nil {
		reply(w, http.StatusInternalServerError, failure{Error: "no room to work"})
		return
	}
	defer os.RemoveAll(dir)
	main, status, err := receive(http.MaxBytesReader(w, r.Body, MaxUpload), strings.HasPrefix(r.Header.Get("Content-Type"), "application/zip"), dir)
	if err != nil {
		reply(w, status, failure{Error: err.Error()})
		return
	}
	pdf, err := s.Engine.Compile(context.WithoutCancel(r.Context()), dir, main)
	var tex *texengine.Error
	switch {
	case errors.As(err, &tex):
		reply(w, http.StatusUnprocessableEntity, failure{Error: tex.Error(), Log: tex.Log})
	case err != nil:
		reply(w, http.StatusUnprocessableEntity, failure{Error: err.Error()})
	default:
		w.Header().Set("Content-Type", "application/pdf")
		http.ServeFile(w, r, pdf)
	}
}

func receive(body io.Reader, zipped bool, dir string) (main string, status int, err error) {
	name := "main.tex"
	if zipped {
		name = ".upload.zip"
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", http.StatusInternalServerError, errors.New("no room to work")
	}
	defer f.Close()
	n, err := io.Copy(f, body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return "", http.StatusRequestEntityTooLarge, errors.New("the document is too large")
	case err != nil:
		return "", http.StatusBadRequest, errors.New("the document broke off")
	case n == 0:
		return "", http.StatusBadRequest, errors.New("there is no document")
	case !zipped:
		return name, 0, nil
	}
	if err := texengine.Unzip(f, n, dir); err != nil {
		return "", http.StatusBadRequest, err
	}
	if main, err = texengine.MainFile(dir, ""); err != nil {
		return "", http.StatusBadRequest, err
	}
	return main, 0, nil
}

type failure struct {
	Error string `json:"error"`
	Log   string `json:"log,omitempty"`
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
