package gateway

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
)

// maxScrapes bounds how many scrapes run at once.
const maxScrapes = 4

// ErrStopping is why a pod that shuts down is not ready.
var ErrStopping = errors.New("the pod is stopping")

// serveInternal is the internal listener: probes and metrics for whoever
// reaches it, the rest for holders of the internal token. The admin API takes an
// operator's credential as well and so judges for itself.
func (s *Server) serveInternal(w *exchange, r *http.Request) {
	path := r.URL.EscapedPath()
	switch {
	case path == "/healthz":
		s.probe(w, r, nil)
	case path == "/readyz":
		s.probe(w, r, s.notReady())
	case path == "/metrics":
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, kindNone, refusal{status: http.StatusMethodNotAllowed, code: "METHOD_NOT_ALLOWED", message: "this address takes GET only"})
			return
		}
		inTime(w, s.bounds.stranger, func() { s.metrics.ServeHTTP(w, r) })
	case strings.HasPrefix(path, "/internal/lease/admin/") && straight(strings.TrimSuffix(path[1:], "/")) && s.opt.Admin != nil:
		timed(w, r, s.bounds.silence, s.bounds.message)
		s.opt.Admin.ServeHTTP(w, r)
	case strings.HasPrefix(path, "/internal/"):
		if !s.trusted(w, r) {
			return
		}
		if s.opt.Peers == nil {
			refuse(w, kindNone, *nothing())
			return
		}
		timed(w, r, s.bounds.silence, s.bounds.message)
		s.opt.Peers.ServeHTTP(w, r)
	default:
		refuse(w, kindNone, refusal{status: http.StatusNotFound, code: "NOT_FOUND", message: "the internal listener has nothing at this address"})
	}
}

// trusted checks the internal token, or the signature of a pod that has it, and
// refuses without either.
func (s *Server) trusted(w *exchange, r *http.Request) bool {
	var err error
	if len(r.Header.Values(headers.Signature)) > 0 && s.opt.Signed != nil {
		err = s.opt.Signed(w, r)
	} else {
		err = admin.InternalToken(r, s.opt.Config.Internal.Tokens)
	}
	if err == nil {
		w.issuer = "internal"
		return true
	}
	s.badTokens.Write(r.Context(), slog.LevelWarn, "an internal call was refused",
		slog.String("request", w.id), slog.String("remote", r.RemoteAddr), slog.String("why", err.Error()))
	f := refusal{status: http.StatusUnauthorized, code: "UNAUTHENTICATED", message: "an internal call needs this pod's internal token in " + headers.InternalToken + ", once"}
	if errors.Is(err, admin.ErrNotConfigured) {
		f = refusal{status: http.StatusForbidden, code: "FORBIDDEN", message: err.Error()}
	}
	refuse(w, kindNone, f)
	return false
}

func (s *Server) notReady() error {
	if s.stopping.Load() {
		return ErrStopping
	}
	if s.opt.Ready == nil {
		return nil
	}
	return s.opt.Ready()
}

func (s *Server) probe(w http.ResponseWriter, r *http.Request, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, kindNone, refusal{status: http.StatusMethodNotAllowed, code: "METHOD_NOT_ALLOWED", message: "this address takes GET only"})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	text, status := "ok\n", http.StatusOK
	if err != nil {
		text, status = err.Error()+"\n", http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(text))
	}
}
