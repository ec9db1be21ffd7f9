package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// envelopeAge is how old a forwarded request may be, clocks apart: an envelope
// that somebody recorded is not good for long.
const envelopeAge = 2 * time.Minute

// ServerOptions wires a Server.
type ServerOptions struct {
	Self lease.PodID
	Seal *seal.Ring
	// Revoked runs the handler of a mark; lease.ErrNotFound where there is none.
	Revoked func(ctx context.Context, t lease.Token) error
	// Serve answers a forwarded request.
	Serve func(w http.ResponseWriter, r *http.Request, c principal.Caller, server string)
	// Changed takes changed documents in; others is true where the other pods do
	// not know yet.
	Changed func(ctx context.Context, changes []document.Change, others bool)
	// MaxBody is the longest forwarded body in bytes.
	MaxBody func() int64
	Log     *slog.Logger
}

// Server answers other pods. Whoever mounts it has checked the internal token.
type Server struct {
	opt ServerOptions
	box *seal.Box
}

// NewServer makes a Server.
func NewServer(opt ServerOptions) *Server {
	return &Server{opt: opt, box: opt.Seal.Box(sealPurpose)}
}

// ServeHTTP routes the three calls.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve := map[string]http.HandlerFunc{RevokedPath: s.revoked, ForwardPath: s.forward, ChangedPath: s.changed}[r.URL.Path]
	switch {
	case serve == nil:
		fail(w, http.StatusNotFound, "the internal listener has nothing at this address")
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		fail(w, http.StatusMethodNotAllowed, "this address takes POST only")
	default:
		serve(w, r)
	}
}

// meant reports whether the call is for this pod, and answers 421 where it is
// not. Only a call that may be for anybody need not name a pod.
func (s *Server) meant(w http.ResponseWriter, named []string, anybody bool) bool {
	if len(named) == 0 && anybody || len(named) == 1 && lease.PodID(named[0]) == s.opt.Self {
		return true
	}
	fail(w, http.StatusMisdirectedRequest, "this is another pod than the one that the call names")
	return false
}

func (s *Server) revoked(w http.ResponseWriter, r *http.Request) {
	var body revoked
	if err := decode(w, r, maxRevoked, &body); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	// A signature is for the pod that the header names, so the body must not name
	// another one.
	if !s.meant(w, []string{string(body.Pod)}, false) || !s.meant(w, r.Header.Values(podHeader), true) {
		return
	}
	switch err := s.opt.Revoked(r.Context(), body.Token); {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, lease.ErrNotFound):
		fail(w, http.StatusNotFound, "there is no such mark")
	default:
		s.opt.Log.WarnContext(r.Context(), "a revocation that another pod told of is not done", "err", err)
		fail(w, http.StatusServiceUnavailable, "the handler did not finish; a sweep runs it again")
	}
}

func (s *Server) changed(w http.ResponseWriter, r *http.Request) {
	named := r.Header.Values(podHeader)
	if !s.meant(w, named, true) {
		return
	}
	var body document.Events
	if err := decode(w, r, document.MaxEventsBody, &body); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	changes, err := body.Changes()
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	// A pod that names its target has told the others itself: passing it on again
	// would go round for ever.
	s.opt.Changed(r.Context(), changes, len(named) == 0)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	if !s.meant(w, r.Header.Values(podHeader), false) {
		return
	}
	env, err := s.open(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opt.MaxBody()))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, "the forwarded body is too long or did not come whole")
		return
	}
	u, err := url.ParseRequestURI(env.URI)
	if err != nil {
		fail(w, http.StatusBadRequest, "the envelope has no request")
		return
	}
	inner := (&http.Request{
		Method: env.Method, URL: u, RequestURI: env.URI, Host: env.Host, RemoteAddr: env.Remote,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: env.Header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}).WithContext(r.Context())
	if inner.Header == nil {
		inner.Header = http.Header{}
	}
	w.Header().Set(relayedHeader, "1")
	s.opt.Serve(w, inner, env.caller(), env.Server)
}

// open reads the sealed envelope in front of a forwarded body.
func (s *Server) open(body io.Reader) (envelope, error) {
	var size [4]byte
	if _, err := io.ReadFull(body, size[:]); err != nil {
		return envelope{}, errors.New("the envelope is cut off")
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxEnvelope {
		return envelope{}, errors.New("the envelope is too long")
	}
	sealed := make([]byte, n)
	if _, err := io.ReadFull(body, sealed); err != nil {
		return envelope{}, errors.New("the envelope is cut off")
	}
	plain, err := s.box.Open(string(sealed), envelopeData(s.opt.Self))
	if err != nil {
		return envelope{}, errors.New("the envelope was not sealed by a pod with these session keys for this pod")
	}
	var env envelope
	if err := json.Unmarshal(plain, &env); err != nil {
		return envelope{}, errors.New("the envelope cannot be read")
	}
	if age := time.Since(time.UnixMilli(env.SentUnixMs)); age > envelopeAge || age < -envelopeAge {
		return envelope{}, errors.New("the envelope is too old; are the pods' clocks together?")
	}
	return env, nil
}

// codes are the refusals' codes for programs, in the form of the gateway's others.
var codes = map[int]string{
	http.StatusBadRequest: "INVALID", http.StatusNotFound: "NOT_FOUND", http.StatusMethodNotAllowed: "METHOD_NOT_ALLOWED",
	http.StatusRequestEntityTooLarge: "TOO_LARGE", http.StatusMisdirectedRequest: "OTHER_POD", http.StatusServiceUnavailable: "UNAVAILABLE",
}

func fail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	body, err := json.Marshal(map[string]any{"error": map[string]any{"code": codes[status], "message": message}})
	if err != nil { // texts only, so it cannot
		body = nil
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
