package h1

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// conn is a connection to a server. Whoever has it uses it alone.
type conn struct {
	net.Conn
	r        *bufio.Reader // reads from the conn itself, so that heads have a bound
	headLeft int64         // bytes that may still be read
	shut     func()        // closes it; made once, since every request asks for it
	quiet    func() bool   // reports whether nothing has come in, its end included
	idle     time.Time     // since when it is in the pool
}

// newConn makes a conn of a fresh connection.
func newConn(nc net.Conn) *conn {
	c := &conn{Conn: nc}
	c.r = bufio.NewReader(c)
	c.shut = func() { _ = nc.Close() }
	c.quiet = watch(nc)
	return c
}

func (c *conn) Read(p []byte) (int, error) {
	if c.headLeft <= 0 {
		return 0, errHead
	}
	if int64(len(p)) > c.headLeft {
		p = p[:c.headLeft]
	}
	n, err := c.Conn.Read(p)
	c.headLeft -= int64(n)
	return n, err
}

// pool keeps idle connections by address, the last used on top.
type pool struct {
	timeout time.Duration // how long a connection may be idle; 0 for ever

	mu    sync.Mutex
	idle  map[string][]*conn
	sweep *time.Timer // nil while nothing is idle
}

// get takes a connection that is as idle as it was left: one that the server
// has closed, or on which it has spoken unasked, is of no use.
func (p *pool) get(addr string) *conn {
	for {
		c := p.pop(addr)
		if c == nil {
			return nil
		}
		if p.fresh(c, time.Now()) && c.quiet() {
			return c
		}
		c.shut()
	}
}

func (p *pool) fresh(c *conn, now time.Time) bool {
	return p.timeout <= 0 || now.Sub(c.idle) < p.timeout
}

func (p *pool) pop(addr string) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.idle[addr]
	if len(of) == 0 {
		return nil
	}
	c := of[len(of)-1]
	of[len(of)-1] = nil
	p.idle[addr] = of[:len(of)-1]
	return c
}

// put gives a connection back.
func (p *pool) put(addr string, c *conn) {
	c.idle = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle[addr]) >= maxIdle {
		c.shut()
		return
	}
	if p.idle == nil {
		p.idle = map[string][]*conn{}
	}
	p.idle[addr] = append(p.idle[addr], c)
	if p.sweep == nil && p.timeout > 0 {
		p.sweep = time.AfterFunc(p.timeout, p.drop)
	}
}

// drop closes what has been idle for too long.
func (p *pool) drop() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, of := range p.idle {
		old := 0 // the oldest are at the bottom
		for old < len(of) && !p.fresh(of[old], now) {
			of[old].shut()
			old++
		}
		if old == len(of) {
			delete(p.idle, addr)
			continue
		}
		p.idle[addr] = append([]*conn(nil), of[old:]...)
	}
	if len(p.idle) == 0 {
		p.sweep = nil
		return
	}
	p.sweep.Reset(p.timeout / 4)
}

// clear closes all.
func (p *pool) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range p.idle {
		for _, c := range of {
			c.shut()
		}
	}
	p.idle = nil
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}
