package h1

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxKept is how many bytes of an answer are kept back, so that one that ends within it
// goes out with its length and with one write.
const maxKept = 16 << 10

var outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, smallBuffer); return &b }}

// giveOut gives a buffer back, unless a large header has made it grow for good.
func giveOut(b *[]byte) {
	if b != nil && cap(*b) <= 4*maxKept {
		*b = (*b)[:0]
		outBuffers.Put(b)
	}
}

// response is the http.ResponseWriter of one request.
type response struct {
	c      *serverConn
	header http.Header
	status int // 0 before WriteHeader
	sent   bool
	// chunked tells how what follows a sent head is framed.
	chunked  bool
	declared int64   // Content-Length of the handler, -1 for none
	written  int64   // of the body
	out      *[]byte // the body that is kept back
	failed   error   // of a write
	deadline atomic.Bool
}

func newResponse(c *serverConn) *response {
	return &response{c: c, header: make(http.Header, 8), declared: -1}
}

// errReturned is what a handler hears that writes after it has returned.
var errReturned = errors.New("h1: the handler has returned")

func (w *response) release() {
	w.failed = errReturned
	giveOut(w.out)
	w.out = nil
	if w.deadline.Swap(false) {
		_ = w.c.rwc.SetWriteDeadline(time.Time{})
	}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	switch {
	case w.status != 0:
		w.c.s.logf("superfluous WriteHeader of status %d after %d", status, w.status)
		return
	case status < 100 || status > 999:
		panic("h1: invalid status " + strconv.Itoa(status))
	case status < 200 && status != http.StatusSwitchingProtocols:
		w.put(append(w.fields(statusLine(nil, status), nil), "\r\n"...))
		return
	}
	w.status = status
	if v := w.header["Content-Length"]; len(v) > 0 {
		n, err := strconv.ParseInt(strings.TrimSpace(v[0]), 10, 64)
		if err == nil && n >= 0 {
			w.declared = n
		} else {
			w.header.Del("Content-Length")
		}
	}
}

// bodyless are the statuses that have none (RFC 9110, 6.4.1).
func bodyless(status int) bool {
	return status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}

// Write implements io.Writer.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.failed != nil:
		return 0, w.failed
	case len(p) == 0:
		return 0, nil
	case bodyless(w.status):
		return 0, http.ErrBodyNotAllowed
	}
	// Counted before it is judged: an answer that was to be longer than it says is
	// wrong as a whole, and the connection ends with it.
	w.written += int64(len(p))
	if w.declared >= 0 && w.written > w.declared {
		return 0, http.ErrContentLength
	}
	if w.out == nil {
		w.out = outBuffers.Get().(*[]byte)
	}
	if len(*w.out)+len(p) <= maxKept {
		*w.out = append(*w.out, p...)
		return len(p), nil
	}
	w.push(p, false)
	if w.failed != nil {
		return 0, w.failed
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends what is kept back.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.failed == nil {
		w.push(nil, false)
	}
	return w.failed
}

// SetReadDeadline has nothing to bound: the body is here. The connection's own
// deadline belongs to the watch.
func (w *response) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline bounds the writes of this answer. It may be called beside one.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.deadline.Store(true)
	return w.c.rwc.SetWriteDeadline(t)
}

// EnableFullDuplex is how it is here.
func (w *response) EnableFullDuplex() error { return nil }

// end completes the answer after its handler.
func (w *response) end() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.failed == nil {
		w.push(nil, true)
	}
}

// reusable reports whether another request can follow on the connection.
func (w *response) reusable() bool {
	return w.failed == nil && !w.closes() && (w.declared < 0 || w.written == w.declared || bodyless(w.status))
}

// closes reports whether the head tells that the connection ends.
func (w *response) closes() bool {
	for _, v := range w.header["Connection"] {
		if strings.EqualFold(v, "close") {
			return true
		}
	}
	return false
}

// push sends the head where it has not gone out, what is kept back, and then
// more; the last push is the answer's end.
func (w *response) push(more []byte, last bool) {
	var kept []byte
	if w.out != nil {
		kept = *w.out
	}
	b := outBuffers.Get().(*[]byte)
	defer giveOut(b)
	if !w.sent {
		w.sent = true
		start := kept
		if len(start) == 0 {
			start = more
		}
		*b = w.head(*b, start, last)
	}
	n := len(kept) + len(more)
	if w.chunked && n > 0 {
		*b = appendChunkStart(*b, n)
	}
	*b = append(*b, kept...)
	if len(more) > maxKept { // not worth a copy
		w.put(*b)
		*b = (*b)[:0]
		w.put(more)
	} else {
		*b = append(*b, more...)
	}
	if w.chunked && n > 0 {
		*b = appendChunkEnd(*b)
	}
	if w.chunked && last {
		*b = appendLastChunk(*b)
	}
	w.put(*b)
	if w.out != nil {
		*w.out = (*w.out)[:0]
	}
}

// put writes, and remembers when that has failed: then the client is gone.
func (w *response) put(b []byte) {
	if w.failed != nil || len(b) == 0 {
		return
	}
	if _, err := w.c.rwc.Write(b); err != nil {
		w.failed = err
		w.c.cancel()
	}
}

// head appends the status line and the fields. Start is how the body begins, and
// all of it where this is the last push.
func (w *response) head(b, start []byte, last bool) []byte {
	b = statusLine(b, w.status)
	_, typed := w.header["Content-Type"]
	_, coded := w.header["Content-Encoding"]
	if !typed && !coded && len(start) > 0 {
		w.header["Content-Type"] = []string{http.DetectContentType(start)}
	}
	_, dated := w.header["Date"]
	length := w.declared
	if last && length < 0 {
		length = int64(len(start))
	}
	b = w.fields(b, framed)
	if !dated {
		b = append(append(append(b, "Date: "...), date()...), "\r\n"...)
	}
	switch {
	case bodyless(w.status):
	case length >= 0:
		b = strconv.AppendInt(append(b, "Content-Length: "...), length, 10)
		b = append(b, "\r\n"...)
	default:
		w.chunked = true
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	switch {
	case w.closes():
		b = append(b, "Connection: close\r\n"...)
	case w.c.s.draining.Load():
		w.header["Connection"] = []string{"close"}
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

// framed are the fields that this package writes itself.
var framed = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Connection": true}

// fields appends the handler's fields as net/http writes them: sorted, and
// without what would end a line early.
func (w *response) fields(b []byte, without map[string]bool) []byte {
	a := appender(b)
	_ = w.header.WriteSubset(&a, without) // memory takes everything
	return a
}

type appender []byte

// Write implements io.Writer.
func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (a *appender) WriteString(s string) (int, error) {
	*a = append(*a, s...)
	return len(s), nil
}

func statusLine(b []byte, status int) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	if text := http.StatusText(status); text != "" {
		b = append(b, text...)
	} else {
		b = strconv.AppendInt(append(b, "status code "...), int64(status), 10)
	}
	return append(b, "\r\n"...)
}

// dates is the Date field's text of the second that it belongs to.
var dates atomic.Pointer[stamp]

type stamp struct {
	second int64
	text   string
}

func date() string {
	now := time.Now()
	if d := dates.Load(); d != nil && d.second == now.Unix() {
		return d.text
	}
	d := &stamp{now.Unix(), now.UTC().Format(http.TimeFormat)}
	dates.Store(d)
	return d.text
}
