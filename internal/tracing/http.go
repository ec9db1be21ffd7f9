package tracing

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Handler puts a span around every request of h, below the client's own where
// it sends one. While traces are off it is h.
func Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := current.Load()
		if t == nil {
			h.ServeHTTP(w, r)
			return
		}
		ctx := w3c.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		kind := kindOf(r.URL.Path)
		ctx, span := (*t).Start(ctx, method(r.Method)+" "+kind, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", method(r.Method)), attribute.String("http.route", kind)))
		seen := &response{ResponseWriter: w}
		defer func() {
			span.SetAttributes(attribute.Int("http.response.status_code", seen.status()))
			if seen.status() >= http.StatusInternalServerError {
				span.SetStatus(codes.Error, "")
			}
			span.End()
		}()
		h.ServeHTTP(seen, r.WithContext(ctx))
	})
}

// RoundTrip sends req by rt in a span of its own and gives the upstream its
// context. The span ends with the answer's head: what streams behind it belongs
// to the server span. While traces are off it is rt.
func RoundTrip(rt http.RoundTripper, req *http.Request) (*http.Response, error) {
	t := current.Load()
	if t == nil {
		return rt.RoundTrip(req)
	}
	ctx, span := (*t).Start(req.Context(), "upstream "+method(req.Method), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("http.request.method", method(req.Method)), attribute.String("server.address", req.URL.Hostname())))
	defer span.End()
	// A RoundTripper must not change the caller's request.
	own := req.Clone(ctx)
	w3c.Inject(ctx, propagation.HeaderCarrier(own.Header))
	res, err := rt.RoundTrip(own)
	if err != nil {
		// The error's text can hold the address with its query.
		span.SetStatus(codes.Error, "no answer")
		return res, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", res.StatusCode))
	if res.StatusCode >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
	return res, nil
}

// kindOf is the first part of a path that the gateway knows, or "/".
func kindOf(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "mcp", "tex", "insights", "brain", "internal", "metrics", "healthz", "readyz", ".well-known":
		return "/" + first
	}
	return "/"
}

// method is a method that is known, so that nobody makes up span names.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch:
		return m
	}
	return "_OTHER"
}

// response remembers the status. What it wraps is found by Unwrap.
type response struct {
	http.ResponseWriter
	code int
}

func (w *response) WriteHeader(code int) {
	if w.code == 0 || w.code < 200 {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *response) Write(b []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Flush is for those who ask for an http.Flusher.
func (w *response) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) status() int {
	if w.code == 0 {
		return http.StatusOK
	}
	return w.code
}
