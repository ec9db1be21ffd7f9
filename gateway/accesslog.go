package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"
)

// RequestIDHeader names a request in the log and towards the client.
const RequestIDHeader = "X-Request-Id"

// exchange is what the log tells of one request, and the way of its answer. Its
// route's fields are filled in as they become known.
type exchange struct {
	http.ResponseWriter
	id      string
	status  int
	bytes   int64
	route   route
	issuer  string // of a credential that counts
	tenant  string
	user    string
	streams func()       // called when an event stream begins; may be nil
	stall   *streamStall // of HTTP/2, where a connection goes on beside a stream that nobody reads
}

// WriteHeader implements http.ResponseWriter.
func (e *exchange) WriteHeader(status int) {
	if status >= 200 {
		e.begin(status)
	}
	e.ResponseWriter.WriteHeader(status)
}

func (e *exchange) begin(status int) {
	if e.status != 0 {
		return
	}
	e.status = status
	if e.streams != nil && e.Header().Get("Content-Type") == "text/event-stream" {
		e.streams()
	}
}

// Write implements io.Writer.
func (e *exchange) Write(p []byte) (int, error) {
	e.begin(http.StatusOK)
	var n int
	var err error
	if e.stall != nil {
		n, err = e.stall.write(e.ResponseWriter, p)
	} else {
		n, err = e.ResponseWriter.Write(p)
	}
	e.bytes += int64(n)
	return n, err
}

// ReadFrom keeps the server's way of copying large answers.
func (e *exchange) ReadFrom(r io.Reader) (int64, error) {
	if e.stall != nil {
		return io.Copy(struct{ io.Writer }{e}, r)
	}
	e.begin(http.StatusOK)
	n, err := io.Copy(e.ResponseWriter, r)
	e.bytes += n
	return n, err
}

// Flush passes on, for handlers that stream.
func (e *exchange) Flush() { _ = e.FlushError() }

// FlushError passes on, for http.ResponseController.
func (e *exchange) FlushError() error {
	if e.stall != nil {
		return e.stall.flush()
	}
	return http.NewResponseController(e.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// logged wraps a listener's handler: every request has an id and one line in the
// log (at level debug where it went well), and a panic ends the request and not
// the pod. The line has no query, no header and no body: credentials and session
// ids stand there.
func (s *Server) logged(listener string, next func(e *exchange, r *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		e := &exchange{ResponseWriter: w, id: requestID()}
		if r.ProtoMajor > 1 {
			e.stall = newStreamStall(w, s.bounds.stall)
		}
		w.Header().Set(RequestIDHeader, e.id)
		defer func() {
			p := s.failed(e, r, recover())
			s.logLine(listener, e, r, time.Since(started))
			if p != nil {
				// The answer has begun: only a cut connection tells that it is not whole. The
				// server reads some of what is left of the body first.
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restSilence))
				panic(http.ErrAbortHandler)
			}
			unread(w, r)
			if e.stall != nil {
				e.stall.finish()
			}
		}()
		next(e, r)
	})
}

// failed judges what a handler's panic was about; nil is none. It answers where
// the handler has not, and returns what has to cut the connection.
func (s *Server) failed(e *exchange, r *http.Request, p any) any {
	if p == nil || p == http.ErrAbortHandler { //nolint:errorlint // a panic's value, by identity as net/http does
		return p
	}
	s.opt.Log.LogAttrs(r.Context(), slog.LevelError, "a request failed inside the gateway",
		slog.String("request", e.id), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	if e.status != 0 {
		return p
	}
	refuse(e, e.route.kind, refusal{status: http.StatusInternalServerError, code: "INTERNAL",
		message: "the gateway failed at this request; its log has more under the request id " + e.id})
	return nil
}

// logLine writes a request's line. A line for every call would cost more than most
// of what the gateway does for it, so those that went well are written at debug
// level only; the others are written at a bounded rate, each tenant's and that of all
// strangers together.
func (s *Server) logLine(listener string, e *exchange, r *http.Request, took time.Duration) {
	well := e.status >= 200 && e.status < 400
	level := slog.LevelInfo
	if well {
		level = slog.LevelDebug
	}
	if !s.opt.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := lineOf(listener, e, r, took)
	if well {
		s.opt.Log.LogAttrs(r.Context(), level, requestLine, attrs...)
		return
	}
	s.lines.write(r.Context(), e, level, attrs)
}

const requestLine = "request"

func lineOf(listener string, e *exchange, r *http.Request, took time.Duration) []slog.Attr {
	attrs := make([]slog.Attr, 0, 14)
	attrs = append(attrs,
		slog.String("request", e.id),
		slog.String("listener", listener),
		slog.String("method", clip(r.Method, 16)),
		slog.String("path", clip(r.URL.EscapedPath(), 256)),
		slog.Int("status", e.status),
		slog.Int64("bytes", e.bytes),
		slog.Duration("took", took),
		slog.String("remote", r.RemoteAddr),
	)
	if e.issuer != "" {
		attrs = append(attrs, slog.String("by", e.issuer))
	}
	if e.user != "" {
		attrs = append(attrs, slog.String("user", e.user))
	}
	return attrs
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

func requestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails on systems that Go supports
	return hex.EncodeToString(b[:])
}
