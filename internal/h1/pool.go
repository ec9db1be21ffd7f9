package h1

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// clientConn is a connection to a server. Whoever has it uses it alone.
type clientConn struct {
	net.Conn
	r        *bufio.Reader // reads from the clientConn itself, so that heads have a bound
	headLeft int64         // bytes that may still be read
	shut     func()        // closes it; made once, since every request asks for it
	silent   func() bool   // reports whether nothing has come in, its end included
	idle     time.Time     // since when it is in the pool
}

// newClientConn makes a clientConn of a fresh connection.
func newClientConn(nc net.Conn) *clientConn {
	c := &clientConn{Conn: nc}
	c.r = bufio.NewReader(c)
	c.shut = func() { _ = nc.Close() }
	c.silent = silence(nc)
	return c
}

func (c *clientConn) Read(p []byte) (int, error) {
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

// connPool keeps idle connections by address, the last used on top.
type connPool struct {
	timeout time.Duration // how long a connection may be idle; 0 for ever

	mu    sync.Mutex
	idle  map[string][]*clientConn
	sweep *time.Timer // nil while nothing is idle
}

// get takes a connection that is as idle as it was left: one that the server
// has closed, or on which it has spoken unasked, is of no use.
func (p *connPool) get(addr string) *clientConn {
	for {
		c := p.pop(addr)
		if c == nil {
			return nil
		}
		if p.fresh(c, time.Now()) && c.silent() {
			return c
		}
		c.shut()
	}
}

func (p *connPool) fresh(c *clientConn, now time.Time) bool {
	return p.timeout <= 0 || now.Sub(c.idle) < p.timeout
}

func (p *connPool) pop(addr string) *clientConn {
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
func (p *connPool) put(addr string, c *clientConn) {
	c.idle = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle[addr]) >= maxIdle {
		c.shut()
		return
	}
	if p.idle == nil {
		p.idle = map[string][]*clientConn{}
	}
	p.idle[addr] = append(p.idle[addr], c)
	if p.sweep == nil && p.timeout > 0 {
		p.sweep = time.AfterFunc(p.timeout, p.drop)
	}
}

// drop closes what has been idle for too long.
func (p *connPool) drop() {
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
		p.idle[addr] = append([]*clientConn(nil), of[old:]...)
	}
	if len(p.idle) == 0 {
		p.sweep = nil
		return
	}
	p.sweep.Reset(p.timeout / 4)
}

// clear closes all.
func (p *connPool) clear() {
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
