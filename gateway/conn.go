package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// progressListener bounds how long a write to what it accepts may make no
// progress. It stands below TLS and below both servers of HTTP, so that nothing
// that is written to a client waits for good.
type progressListener struct {
	net.Listener
	stall time.Duration
}

// Accept implements net.Listener.
func (l progressListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &progressConn{Conn: c, stall: l.stall}, nil
}

// progressConn is a connection whose writes fail once nothing has been taken of
// them for stall. A deadline that is set from outside counts as well.
type progressConn struct {
	net.Conn
	stall time.Duration

	mu    sync.Mutex
	limit time.Time // as it was set from outside; zero for none
	set   time.Time // the deadline in force
}

// piece is how many bytes the kernel may copy by itself until the next look at
// the clock: it says of a part only that it was not all taken.
const piece = 128 << 10

// Write implements net.Conn.
func (c *progressConn) Write(p []byte) (int, error) {
	written := 0
	for {
		c.renew()
		n, err := c.Conn.Write(p[written:])
		written += n
		if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.over() {
			return written, err
		}
	}
}

// ReadFrom lets the kernel copy where it can.
func (c *progressConn) ReadFrom(src io.Reader) (int64, error) {
	to, ok := c.Conn.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{c}, src)
	}
	// The kernel's way is found through one LimitedReader and not through two.
	rest, ok := src.(*io.LimitedReader)
	if !ok {
		rest = &io.LimitedReader{R: src, N: 1<<63 - 1}
	}
	total := int64(0)
	for rest.N > 0 {
		c.renew()
		next := min(rest.N, piece)
		n, err := to.ReadFrom(&io.LimitedReader{R: rest.R, N: next})
		total, rest.N = total+n, rest.N-n
		if err != nil || n < next {
			return total, err
		}
	}
	return total, nil
}

// CloseWrite ends the connection for what is written to it.
func (c *progressConn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return c.Conn.Close()
}

// SetWriteDeadline implements net.Conn. It may be called beside a write.
func (c *progressConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = t
	return c.apply(c.due(time.Now()))
}

// SetDeadline implements net.Conn.
func (c *progressConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// renew moves the deadline. That costs a little, so it is done only when a quarter
// of it is gone.
func (c *progressConn) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if due := c.due(now); due.Before(c.set) || due.Sub(c.set) > c.stall/4 {
		_ = c.apply(due) // a connection that takes none is closed, and the write says so
	}
}

func (c *progressConn) due(now time.Time) time.Time {
	due := now.Add(c.stall)
	if !c.limit.IsZero() && c.limit.Before(due) {
		return c.limit
	}
	return due
}

func (c *progressConn) apply(t time.Time) error {
	c.set = t
	return c.Conn.SetWriteDeadline(t)
}

// over reports whether the deadline that was set from outside has come.
func (c *progressConn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.limit.IsZero() && !time.Now().Before(c.limit)
}
