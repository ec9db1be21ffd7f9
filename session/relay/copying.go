package relay

import (
	"errors"
	"io"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/session/wire"
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

// Copying is the copy of an upstream's answer to a client.
type Copying struct {
	x     *Exchange
	from  io.Reader
	buf   []byte
	call  *[callBuffer]byte // where buf is the pool's
	large *[largeBuffer]byte
	held  int           // bytes in buf that have been read and not written
	err   error         // how the answer has ended
	json  *wire.Answers // of a JSON answer to requests
}

// Copy prepares a copy; size is the answer's length where it is known, or -1.
// Its Free must be called.
func (x *Exchange) Copy(from io.Reader, size int64) *Copying {
	c := &Copying{x: x, from: from}
	switch {
	case x.Listens():
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

func (c *Copying) Free() {
	switch {
	case c.large != nil:
		largeBuffers.Put(c.large)
	case c.call != nil:
		callBuffers.Put(c.call)
	}
	c.buf, c.large, c.call = nil, nil, nil
}

// Fill reads the answer until the buffer is full or the answer ends, and keeps it
// for Run. So what goes wrong within the first bytes can be told in words: of a
// body that is no stream nothing would have left net/http's own buffer anyway,
// save the first half of a large one. broke is how an answer ended that is not
// whole.
func (c *Copying) Fill() (held []byte, broke error) {
	for c.held < len(c.buf) && c.err == nil {
		n, err := c.from.Read(c.buf[c.held:])
		if n > 0 {
			c.x.Alive()
		}
		c.held, c.err = c.held+n, err
	}
	if c.err != nil && !errors.Is(c.err, io.EOF) {
		broke = c.err
	}
	return c.buf[:c.held], broke
}

// maxUnknown is how much of an answer is held back until its id has come, which
// many servers write behind the result.
const maxUnknown = 1 << 20

// ErrForeign says that an answer is another request's.
var ErrForeign = errors.New("relay: the answer has another id than the request")

// Check follows a JSON answer and holds it back until it is known to be the
// request's, or maxUnknown have come. What comes later is followed by Run.
func (c *Copying) Check() error {
	a := c.x.pending.await()
	c.json = a
	seen := 0
	for {
		a.FeedJSON(c.buf[seen:c.held])
		seen = c.held
		switch {
		case a.Foreign():
			return ErrForeign
		case a.Known() || c.err != nil || c.held >= maxUnknown:
			return nil
		}
		// A buffer of its own from here on: those of the pools have one size.
		larger := make([]byte, min(2*len(c.buf), maxUnknown))
		copy(larger, c.buf[:c.held])
		c.Free()
		c.buf = larger
		if _, broke := c.Fill(); broke != nil {
			return broke
		}
	}
}

// Run copies until the answer ends; then it returns nil. A client that has left
// does not stop it, unless nobody but the client wants the rest.
func (c *Copying) Run() error {
	x := c.x
	followed := c.held
	for {
		if c.held == 0 && c.err == nil {
			c.held, c.err = c.from.Read(c.buf)
		}
		if c.held > 0 {
			x.Alive()
			if c.json != nil && followed == 0 {
				if c.json.FeedJSON(c.buf[:c.held]); c.json.Foreign() {
					return ErrForeign
				}
			}
			reads := x.client.write(c.buf[:c.held])
			c.held, followed = 0, 0
			if !reads && (x.Listens() || x.answered.Load()) {
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

// CopyAll copies an answer of unknown length until it ends; see Copying.Run.
func (x *Exchange) CopyAll(from io.Reader) error {
	c := x.Copy(from, -1)
	defer c.Free()
	return c.Run()
}
