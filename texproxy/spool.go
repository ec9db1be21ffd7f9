package texproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/share"
)

// An upload is taken whole before a slot is asked for, so that a slow client
// holds none. Its bytes are on disk, not in memory, and the file has no name by
// then: nothing of it survives the process.

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
	errSlow      = errors.New("the upload stood still for too long")
	errUpload    = errors.New("the upload broke off")
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// spool bounds the bytes of all uploads that this pod holds, and how many of
// them one caller has.
type spool struct {
	*share.Pool
	dir string
}

// mostOfOne is the largest upload that one caller has room for.
func (s *spool) mostOfOne() int64 { return s.Limit() / share.Parts }

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
	return &spool{share.New(limit), dir}, nil
}

// upload is a request body that has arrived whole.
type upload struct {
	size  int64
	bytes []byte   // the whole of a small one
	file  *os.File // or a larger one
	name  string
	spool *spool
	owner owner
	held  int64
}

// reader returns the body from its start. Readers share nothing.
func (u *upload) reader() io.Reader {
	if u.file != nil {
		return io.NewSectionReader(u.file, 0, u.size)
	}
	return bytes.NewReader(u.bytes)
}

// close frees the upload's room. It may be called more than once.
func (u *upload) close() {
	if u == nil {
		return
	}
	if u.file != nil {
		u.file.Close()
		os.Remove(u.name) // already gone where an open file may be unlinked
		u.file = nil
	}
	u.bytes = nil
	u.spool.Give(u.owner.sharer(), u.held)
	u.held = 0
}

// take reads the request's whole body, at most most bytes. What does not fit is
// read on and thrown away, since a client that is still sending would never read
// its refusal; it has no room any more while that lasts.
func (s *spool) take(w http.ResponseWriter, r *http.Request, o owner, most int64) (*upload, error) {
	u := &upload{spool: s, owner: o}
	if r.ContentLength == 0 || r.Body == nil {
		return u, nil
	}
	body := newPacedBody(w, r)
	defer body.done()
	err := u.mayBe(r.ContentLength, most)
	if err == nil && r.ContentLength > 0 && !s.Fits(o.sharer(), r.ContentLength) {
		err = errSpoolFull
	}
	if err != nil && expectsContinue(r) {
		return nil, err // the client sends nothing before it has read this
	}
	if err == nil {
		err = u.fill(body, most)
	}
	if err == nil {
		return u, nil
	}
	u.close()
	if !errors.Is(err, errSlow) && !errors.Is(err, errUpload) {
		body.drain()
	}
	return nil, err
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
			if err := u.mayBe(u.size+int64(n), most); err != nil {
				return err
			}
			if !u.spool.Take(u.owner.sharer(), int64(n)) {
				return errSpoolFull
			}
			u.held += int64(n)
			if err := u.write((*buf)[:n]); err != nil {
				return fmt.Errorf("texproxy: spool: %w", err)
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
// a place for temporary files is swept away after some days.
func (s *spool) create() (*os.File, error) {
	f, err := os.CreateTemp(s.dir, spoolPattern)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.CreateTemp(s.dir, spoolPattern)
}

func (u *upload) write(b []byte) error {
	u.size += int64(len(b))
	if u.file == nil && u.size <= inMemory {
		u.bytes = append(u.bytes, b...)
		return nil
	}
	if u.file == nil {
		f, err := u.spool.create()
		if err != nil {
			return err
		}
		u.file, u.name = f, f.Name()
		os.Remove(u.name) // where that fails, close and the next start delete it
		if _, err := f.Write(u.bytes); err != nil {
			return err
		}
		u.bytes = nil
	}
	_, err := u.file.Write(b)
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
