package texproxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/quota"
)

// An upload is taken whole before a slot is asked for, so that a slow client
// holds none; a fast one may run ahead (lead.go). Its bytes are on disk, not in
// memory, and the file has no name by then: nothing of it survives the process.

const (
	inMemory      = 64 << 10 // a body up to this needs no file
	uploadSilence = 30 * time.Second
	uploadLongest = 30 * time.Minute
	drainAtMost   = 256 << 20
	spoolPattern  = "upload-*"
)

var (
	errTooLarge  = errors.New("the upload is larger than the service's maxUpload")
	errSpoolFull = errors.New("limits.spool is reached: too many uploads are waiting")
	errTooMuch   = errors.New("the upload is larger than one caller's share of limits.spool")
	errSlow      = errors.New("the upload stood still, or took too long")
	errUpload    = errors.New("the upload broke off")
)

// spoolError says that an upload was not taken.
type spoolError struct{ err error }

func (e *spoolError) Error() string { return "spool: " + e.err.Error() }
func (e *spoolError) Unwrap() error { return e.err }

var buffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// spool bounds the bytes of all uploads that this pod holds, and how many of
// them one caller has.
type spool struct {
	*quota.Pool
	dir string
}

// mostOfOne is the largest upload that one caller has room for.
func (s *spool) mostOfOne() int64 { return s.Limit() / quota.Parts }

// newSpool makes the directory and deletes what an earlier process left in it.
func newSpool(dir string, limit func() int64) (*spool, error) {
	if dir == "" {
		return nil, errors.New("texproxy: no spool directory")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("texproxy: spool directory: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, spoolPattern))
	if err != nil {
		return nil, fmt.Errorf("texproxy: spool directory: %w", err)
	}
	for _, f := range left {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("texproxy: spool directory: %w", err)
		}
	}
	return &spool{Pool: quota.New(limit), dir: dir}, nil
}

// upload is a request body on its way to the disk, and then there. A nil upload
// is a request without a body.
type upload struct {
	users atomic.Int32 // the file is closed and the room free when the last has gone
	n     int64        // bytes that are here
	bytes []byte       // the whole of a small one
	file  *os.File     // or a larger one
	name  string       // "" for a file without one
	spool *spool
	owner owner
	held  int64
}

func (u *upload) size() int64 {
	if u == nil {
		return 0
	}
	return u.n
}

// open returns the upload from its start. Readers share nothing.
func (u *upload) open() io.ReadCloser {
	u.hold()
	return &reader{upload: u}
}

// reader reads an upload from its start.
type reader struct {
	upload *upload
	at     int64

	mu     sync.Mutex // a request that is cut is closed while it is read
	closed bool
}

func (r *reader) Read(b []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b = b[:min(int64(len(b)), r.upload.n-r.at)]
	switch {
	case r.closed:
		return 0, os.ErrClosed
	case len(b) == 0:
		return 0, io.EOF
	case r.upload.file == nil:
		n = copy(b, r.upload.bytes[r.at:])
	default:
		n, err = r.upload.file.ReadAt(b, r.at)
	}
	r.at += int64(n)
	return n, err
}

func (r *reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.upload.drop()
	}
	return nil
}

// hold keeps the upload for one user more, until drop.
func (u *upload) hold() { u.users.Add(1) }

func (u *upload) drop() {
	if u == nil || u.users.Add(-1) > 0 {
		return
	}
	if u.file != nil {
		u.file.Close()
	}
	if u.name != "" {
		os.Remove(u.name)
	}
	u.spool.Give(u.owner.sharer(), u.held)
}

// take reads the request's whole body, at most most bytes, and returns nil for a
// request without one. The upload is the caller's to drop. Errors are
// *spoolError.
func (s *spool) take(w http.ResponseWriter, r *http.Request, o owner, most int64) (*upload, error) {
	if r.ContentLength == 0 || r.Body == nil {
		return nil, nil
	}
	u := &upload{spool: s, owner: o}
	u.hold()
	err := u.mayBe(r.ContentLength, most)
	if err == nil && r.ContentLength > 0 && !s.Fits(o.sharer(), r.ContentLength) {
		err = errSpoolFull
	}
	if err != nil { // nothing has been read: who asks before it sends need not send
		u.drop()
		return nil, &spoolError{err}
	}
	body := newPacedBody(w, r)
	defer body.done()
	if err := u.fill(body, most); err != nil {
		u.drop() // it has no room while the rest is read
		if !errors.Is(err, errSlow) && !errors.Is(err, errUpload) {
			body.drain()
		}
		return nil, &spoolError{err}
	}
	return u, nil
}

// mayBe judges the length of an upload, which may be unknown yet (-1).
func (u *upload) mayBe(n, most int64) error {
	switch {
	case n > most:
		return errTooLarge
	case n > u.spool.mostOfOne():
		return errTooMuch
	}
	return nil
}

// fill reads the body. Room is taken by bytes that have come, not by those that
// are announced: announcing costs a client nothing.
func (u *upload) fill(body io.Reader, most int64) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := body.Read(*buf)
		if n > 0 {
			if err := u.mayBe(u.n+int64(n), most); err != nil {
				return err
			}
			if !u.spool.Take(u.owner.sharer(), int64(n)) {
				return errSpoolFull
			}
			u.held += int64(n)
			if err := u.write((*buf)[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// create makes a file, and the directory again where it is gone: an empty one in
// a place for temporary files is swept away after some days. The file has no
// name where an open one may do without.
func (s *spool) create() (f *os.File, name string, err error) {
	f, err = os.CreateTemp(s.dir, spoolPattern)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, "", err
		}
		f, err = os.CreateTemp(s.dir, spoolPattern)
	}
	if err != nil {
		return nil, "", err
	}
	if os.Remove(f.Name()) != nil {
		return f, f.Name(), nil // drop and the next start delete it
	}
	return f, "", nil
}

func (u *upload) write(b []byte) (err error) {
	at := u.n
	u.n += int64(len(b))
	if u.file == nil && u.n <= inMemory {
		u.bytes = append(u.bytes, b...)
		return nil
	}
	if u.file == nil {
		if u.file, u.name, err = u.spool.create(); err != nil {
			return err
		}
		if _, err := u.file.WriteAt(u.bytes, 0); err != nil {
			return err
		}
		u.bytes = nil
	}
	_, err = u.file.WriteAt(b, at)
	return err
}

func expectsContinue(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Expect"), "100-continue")
}

// pacedBody is a request body whose reads have deadlines.
type pacedBody struct {
	body  io.Reader
	rc    *http.ResponseController
	start time.Time
}

func newPacedBody(w http.ResponseWriter, r *http.Request) *pacedBody {
	return &pacedBody{body: r.Body, rc: http.NewResponseController(w), start: time.Now()}
}

func (p *pacedBody) Read(b []byte) (int, error) {
	if time.Since(p.start) > uploadLongest {
		return 0, errSlow
	}
	// A writer without deadlines is one of a test; then nothing is slow.
	_ = p.rc.SetReadDeadline(time.Now().Add(uploadSilence))
	n, err := p.body.Read(b)
	switch {
	case err == nil || err == io.EOF:
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errSlow
	default:
		err = fmt.Errorf("%w: %w", errUpload, err)
	}
	return n, err
}

func (p *pacedBody) done() { _ = p.rc.SetReadDeadline(time.Time{}) }

// drain throws the rest of the body away, up to a bound.
func (p *pacedBody) drain() {
	if p.body == nil {
		return
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for n := 0; n < drainAtMost; {
		k, err := p.Read(*buf)
		n += k
		if err != nil {
			return
		}
	}
}

// drainBody throws a request's body away before a refusal is written.
func drainBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.ContentLength == 0 || expectsContinue(r) {
		return
	}
	body := newPacedBody(w, r)
	body.drain()
	body.done()
}
