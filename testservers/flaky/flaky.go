// Package flaky is a TCP proxy for tests that delays, cuts and black-holes the
// connections that run through it, as a bad network between a pod and its store
// does. It listens on loopback only.
package flaky

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy relays to one address. Its moods are for all connections, present and
// coming, and may change at any time.
type Proxy struct {
	Addr string // where it listens

	mu      sync.Mutex
	target  string
	delay   time.Duration
	silent  bool
	refuse  bool
	changed chan struct{} // closed and replaced at every change of mood
	conns   map[net.Conn]struct{}
	closed  bool
}

// Start listens in front of target until the end of the test.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.set(func() { p.closed = true; p.silent = false })
		p.Cut()
		wg.Wait()
	})
	return p
}

// Delay holds every piece of data back for d, in both directions.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// BlackHole swallows all data in both directions, without closing anything,
// while on. What was swallowed is lost: cut the connections to go on.
func (p *Proxy) BlackHole(on bool) { p.set(func() { p.silent = on }) }

// Refuse closes new connections at once while on.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Cut closes every connection that is open now.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) mood() (delay time.Duration, silent, refuse bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay, p.silent, p.refuse || p.closed, p.changed
}

// track keeps a connection for Cut; it reports false where the proxy has ended.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	if _, _, refuse, _ := p.mood(); refuse {
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	for _, c := range []net.Conn{client, server} {
		if !p.track(c) {
			return
		}
		defer p.forget(c)
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.relay(server, client) })
	wg.Go(func() { p.relay(client, server) })
	wg.Wait()
}

func (p *Proxy) relay(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		delay, silent, _, changed := p.mood()
		if delay > 0 {
			select {
			case <-time.After(delay):
			case <-changed:
			}
		}
		if n > 0 && !silent {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				from.Close()
			}
			return
		}
	}
}
