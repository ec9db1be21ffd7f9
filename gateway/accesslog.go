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

// exchange is what the log tells of one request. Its route's fields are filled
// in as they become known.
type exchange struct {
	http.ResponseWriter
	id     string
	status int
	bytes  int64
	route  route
	issuer string
	user   string
}

func (e *exchange) WriteHeader(status int) {
	if e.status == 0 && status >= 200 {
		e.status = status
	}
	e.ResponseWriter.WriteHeader(status)
}

func (e *exchange) Write(p []byte) (int, error) {
	if e.status == 0 {
		e.status = http.StatusOK
	}
	n, err := e.ResponseWriter.Write(p)
	e.bytes += int64(n)
	return n, err
}

// ReadFrom keeps the server's way of copying large answers.
func (e *exchange) ReadFrom(r io.Reader) (int64, error) {
	if e.status == 0 {
		e.status = http.StatusOK
	}
	n, err := io.Copy(e.ResponseWriter, r)
	e.bytes += n
	return n, err
}

// Flush passes on, for handlers that stream.
func (e *exchange) Flush() { _ = http.NewResponseController(e.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// logged wraps a listener's handler: every request has an id and one line in the
// log (at level debug where it went well), and a panic ends the request and not
// the pod. The line has no query, no header and no body: credentials and session
// ids stand there.
func logged(log *slog.Logger, listener string, next func(e *exchange, r *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		e := &exchange{ResponseWriter: w, id: requestID()}
		w.Header().Set(RequestIDHeader, e.id)
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // a panic's value, by identity as net/http does
				log.LogAttrs(r.Context(), slog.LevelError, "a request failed inside the gateway",
					slog.String("request", e.id), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
				if e.status == 0 {
					refuse(e, e.route.kind, refusal{status: http.StatusInternalServerError, code: "INTERNAL",
						message: "the gateway failed at this request; its log has more under the request id " + e.id})
					p = nil
				}
			}
			logLine(log, listener, e, r, time.Since(started))
			if p != nil {
				// The answer has begun: only a cut connection tells that it is not whole.
				panic(http.ErrAbortHandler)
			}
			unread(w, r)
		}()
		next(e, r)
	})
}

func logLine(log *slog.Logger, listener string, e *exchange, r *http.Request, took time.Duration) {
	// A line for every call would cost more than most of what the gateway does
	// for it, so those that went well are told at debug level only.
	level := slog.LevelInfo
	if e.status >= 200 && e.status < 400 {
		level = slog.LevelDebug
	}
	if !log.Enabled(r.Context(), level) {
		return
	}
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
	log.LogAttrs(r.Context(), level, "request", attrs...)
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
