package wire

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// keep is the largest buffer that goes back to the pool; larger ones are rare
// and would stay for good.
const keep = 256 << 10

// ErrTooLarge says that a body is longer than its limit (HTTP 413).
var ErrTooLarge = errors.New("wire: body over the limit")

// Buffer is a pooled body. It is freed when everybody who holds it has let go:
// an http.Transport may still read a request body after the answer has come.
type Buffer struct {
	B    []byte
	refs atomic.Int32
	kept bool // not the pool's
}

// Keep makes a Buffer of bytes that belong to somebody else for good.
func Keep(b []byte) *Buffer {
	k := &Buffer{B: b, kept: true}
	k.refs.Store(1)
	return k
}

var pool = sync.Pool{New: func() any { return &Buffer{B: make([]byte, 0, 4<<10)} }}

// ReadBody reads a body of at most limit bytes; size is its length where it is
// known, or -1. The caller holds the buffer and must call Free once.
func ReadBody(r io.Reader, size, limit int64) (*Buffer, error) {
	if size > limit {
		return nil, ErrTooLarge
	}
	b := pool.Get().(*Buffer)
	b.refs.Store(1)
	if size >= 0 {
		// A claimed length allocates as the bytes arrive, not before.
		if n := min(size, 64<<10); int64(cap(b.B)) < n {
			b.B = make([]byte, 0, n)
		}
	}
	b.B = b.B[:0]
	for {
		if int64(len(b.B)) > limit {
			b.Free()
			return nil, ErrTooLarge
		}
		if size >= 0 && int64(len(b.B)) == size {
			// Up to the end: only then does a server watch for the client's going.
			var more [1]byte
			n, err := r.Read(more[:])
			if n == 0 && errors.Is(err, io.EOF) {
				return b, nil
			}
			b.Free()
			if err == nil || n > 0 {
				err = ErrTooLarge
			}
			return nil, err
		}
		if len(b.B) == cap(b.B) {
			b.grow(size)
		}
		n, err := r.Read(b.B[len(b.B):cap(b.B)])
		b.B = b.B[:len(b.B)+n]
		if errors.Is(err, io.EOF) {
			if size >= 0 && int64(len(b.B)) < size {
				b.Free()
				return nil, io.ErrUnexpectedEOF
			}
			if int64(len(b.B)) > limit {
				b.Free()
				return nil, ErrTooLarge
			}
			return b, nil
		}
		if err != nil {
			b.Free()
			return nil, err
		}
	}
}

func (b *Buffer) grow(size int64) {
	n := 2 * cap(b.B)
	if size > 0 && int64(n) > size {
		n = int(size)
	}
	if n <= cap(b.B) {
		n = cap(b.B) + 512
	}
	grown := make([]byte, len(b.B), n)
	copy(grown, b.B)
	b.B = grown
}

// Free lets go of the buffer.
func (b *Buffer) Free() {
	if b.refs.Add(-1) == 0 && !b.kept && cap(b.B) <= keep {
		pool.Put(b)
	}
}

// Reader holds the buffer until it is closed.
func (b *Buffer) Reader() *Reader {
	b.refs.Add(1)
	return &Reader{b: b}
}

// Reader reads a Buffer. Reads and Close exclude each other, so that no read
// that is still under way in a transport can see the pool's next user.
type Reader struct {
	mu     sync.Mutex
	b      *Buffer
	off    int
	closed bool
}

// Bytes is the whole body, whatever has been read of it. It stays as it is until
// the reader is closed.
func (r *Reader) Bytes() []byte { return r.b.B }

func (r *Reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, errors.New("wire: read of a closed body")
	}
	n := copy(p, r.b.B[r.off:])
	r.off += n
	if r.off == len(r.b.B) {
		return n, io.EOF
	}
	return n, nil
}

// Close lets go of the buffer.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.b.Free()
	}
	return nil
}
