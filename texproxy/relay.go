package texproxy

import (
	"context"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/headers"
)

// relay writes a service's answer to the client: its status, its headers and its
// bytes. An answer that breaks off in the middle breaks off for the client too
// (http.ErrAbortHandler), since a short PDF must not look whole. Nothing depends
// on it any more: what the answer means for a lease is settled.
func (q *request) relay(a *answer) {
	defer a.Body.Close()
	stop := context.AfterFunc(q.r.Context(), a.abort) // nobody reads the rest
	defer stop()
	q.head(a)
	q.w.WriteHeader(a.StatusCode)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	rc := http.NewResponseController(q.w)
	for {
		n, err := a.Body.Read(*buf)
		// A client that reads nothing for this long is not one. The deadline stays
		// for what is still buffered when this returns.
		_ = rc.SetWriteDeadline(time.Now().Add(uploadSilence))
		if n > 0 {
			if _, err := q.w.Write((*buf)[:n]); err != nil {
				panic(http.ErrAbortHandler)
			}
			if a.ContentLength < 0 {
				_ = rc.Flush()
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// head sets the headers of an answer.
func (q *request) head(a *answer) {
	h := q.w.Header()
	headers.TeX.Down(h, a.Header)
	for _, name := range []string{"Location", "Content-Location"} {
		if v := a.Header.Get(name); v != "" {
			h.Set(name, q.through(a, v))
		}
	}
	if a.ContentLength >= 0 && (a.StatusCode != http.StatusNotModified || a.ContentLength > 0) && a.StatusCode != http.StatusNoContent {
		h.Set("Content-Length", strconv.FormatInt(a.ContentLength, 10))
	}
	// It comes from the address of the gateway, and of its page.
	h.Set("X-Content-Type-Options", "nosniff")
	if !passive(a.Header.Get("Content-Type")) {
		h.Add("Content-Security-Policy", "sandbox")
	}
}

// passive reports whether a browser runs nothing of a type and shows it by itself.
// Anything else is shown in a sandbox, without scripts and without an origin;
// browsers show no PDF in one.
func passive(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType == "" // with nosniff it is text or a download
	}
	switch t {
	case "application/pdf", "application/json", "application/octet-stream", "application/zip", "application/gzip", "application/x-tar",
		"text/plain", "image/png", "image/jpeg", "image/gif", "image/webp":
		return true
	}
	return false
}

// through turns an address that leads into the service into one that leads
// through the gateway, with those that its query holds. Any other stays: the
// gateway does not follow it.
func (q *request) through(a *answer, address string) string {
	to, rest, ok := q.inside(a, address)
	if !ok {
		return address
	}
	pairs := strings.Split(to.RawQuery, "&")
	for i, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		if inner, _, ok := q.routed(a, value); ok {
			pairs[i] = name + "=" + url.QueryEscape(q.base+inner)
		}
	}
	through := url.URL{Path: "/", RawQuery: strings.Join(pairs, "&"), Fragment: to.Fragment}
	return q.base + rest + strings.TrimPrefix(through.String(), "/")
}

// inside resolves an address of an answer and returns what of its path is behind
// a base of the service.
func (q *request) inside(a *answer, address string) (to *url.URL, rest string, ok bool) {
	to, err := a.Request.URL.Parse(address)
	if err != nil {
		return nil, "", false
	}
	for _, base := range []*url.URL{q.s.baseOf(q.m), q.s.base} {
		if to.Scheme != base.Scheme || !strings.EqualFold(to.Host, base.Host) {
			continue
		}
		if rest, ok = strings.CutPrefix(to.EscapedPath(), base.EscapedPath()); ok && (rest == "" || rest[0] == '/') {
			return to, rest, true
		}
	}
	return nil, "", false
}

// routed is inside for a value of a query: a path or URL of the service that one
// of its routes takes.
func (q *request) routed(a *answer, escaped string) (rest string, m match, ok bool) {
	value, err := url.QueryUnescape(escaped)
	if err != nil || !strings.Contains(value, "/") {
		return "", match{}, false
	}
	_, rest, ok = q.inside(a, value)
	if !ok {
		return "", match{}, false
	}
	m, ok = q.s.find(http.MethodGet, rest)
	return rest, m, ok && m.route != nil
}

// namesIn are the names that the address which an answer leads to holds, in its
// path and in its query.
func (q *request) namesIn(a *answer) []string {
	to, rest, ok := q.inside(a, a.Header.Get("Location"))
	if !ok || a.Header.Get("Location") == "" {
		return nil
	}
	var keys []string
	if m, ok := q.s.find(http.MethodGet, rest); ok {
		keys = q.s.owned(m)
	}
	for pair := range strings.SplitSeq(to.RawQuery, "&") {
		_, value, _ := strings.Cut(pair, "=")
		if _, m, ok := q.routed(a, value); ok {
			keys = append(keys, q.s.owned(m)...)
		}
	}
	return keys
}
