package session

import (
	"errors"
	"io"
	"sync"
)

// Buffers that answers are copied through. A listening stream holds its own for
// hours; a large answer moves in fewer steps.
const (
	listenBuffer = 2 << 10
	callBuffer   = 16 << 10
	largeBuffer  = 128 << 10
)

var (
	callBuffers  = sync.Pool{New: func() any { return new([callBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// copying is the copy of an upstream's answer to a client.
type copying struct {
	x     *exchange
	from  io.Reader
	buf   []byte
	call  *[callBuffer]byte // where buf is the pool's
	large *[largeBuffer]byte
	held  int   // bytes in buf that have been read and not written
	err   error // how the answer has ended
}

// copy prepares a copy; size is the answer's length where it is known, or -1.
// Its free must be called.
func (x *exchange) copy(from io.Reader, size int64) *copying {
	c := &copying{x: x, from: from}
	switch {
	case x.listens():
		c.buf = make([]byte, listenBuffer)
	case size > callBuffer:
		c.large = largeBuffers.Get().(*[largeBuffer]byte)
		c.buf = c.large[:]
	default:
		c.call = callBuffers.Get().(*[callBuffer]byte)
		c.buf = c.call[:]
	}
	return c
}

func (c *copying) free() {
	switch {
	case c.large != nil:
		largeBuffers.Put(c.large)
	case c.call != nil:
		callBuffers.Put(c.call)
	}
	c.buf, c.large, c.call = nil, nil, nil
}

// fill reads the answer until the buffer is full or the answer ends, and keeps it
// for run. So what goes wrong within the first bytes can be told in words: of a
// body that is no stream nothing would have left net/http's own buffer anyway,
// save the first half of a large one. broke is how an answer ended that is not
// whole.
func (c *copying) fill() (held []byte, broke error) {
	for c.held < len(c.buf) && c.err == nil {
		n, err := c.from.Read(c.buf[c.held:])
		if n > 0 {
			c.x.alive()
		}
		c.held, c.err = c.held+n, err
	}
	if c.err != nil && !errors.Is(c.err, io.EOF) {
		broke = c.err
	}
	return c.buf[:c.held], broke
}

// run copies until the answer ends; then it returns nil. A client that has left
// does not stop it, unless nobody but the client wants the stream.
func (c *copying) run() error {
	x := c.x
	for {
		if c.held == 0 && c.err == nil {
			c.held, c.err = c.from.Read(c.buf)
		}
		if c.held > 0 {
			x.alive()
			reads := x.client.write(c.buf[:c.held])
			c.held = 0
			if !reads && x.listens() {
				return nil
			}
		}
		if errors.Is(c.err, io.EOF) {
			return nil
		}
		if c.err != nil {
			return c.err
		}
	}
}

// copyAll copies an answer of unknown length until it ends; see copying.run.
func (x *exchange) copyAll(from io.Reader) error {
	c := x.copy(from, -1)
	defer c.free()
	return c.run()
}
