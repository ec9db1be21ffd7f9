package h1

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Server answers accepted requests itself, with the handler, the timeouts and the
// log of the http.Server behind it, and gives all other connections to that one.
type Server struct {
	rest    *http.Server
	tls     *tls.Config // nil for none; rest makes itself one when it serves
	handoff *handoff

	draining atomic.Bool // set under mu

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*serverConn]struct{}
	shaking   map[net.Conn]struct{} // in a TLS handshake
	empty     chan struct{}         // closed when the last connection is gone; nil while nobody waits
}

// NewServer returns a Server in front of rest, which must have a Handler, a
// ReadHeaderTimeout and an IdleTimeout and must not be used elsewhere. Where rest
// has a TLSConfig, connections are of TLS and all requests are rest's; its
// NextProtos say whether HTTP/2 is spoken.
func NewServer(rest *http.Server) *Server {
	return &Server{
		rest: rest, tls: rest.TLSConfig, handoff: &handoff{conns: make(chan net.Conn), closed: make(chan struct{})},
		listeners: map[net.Listener]struct{}{}, conns: map[*serverConn]struct{}{}, shaking: map[net.Conn]struct{}{},
	}
}

// Serve answers what comes on l until Shutdown or Close; then it returns
// http.ErrServerClosed.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining.Load() {
		s.mu.Unlock()
		_ = l.Close()
		return http.ErrServerClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	s.handoff.addr = l.Addr()
	behind := make(chan error, 1)
	go func() { behind <- s.rest.Serve(s.handoff) }()
	err := s.accept(l)
	_ = s.handoff.Close()
	<-behind // what it says is that its listener was closed
	return err
}

func (s *Server) accept(l net.Listener) error {
	pause := time.Duration(0)
	for {
		rwc, err := l.Accept()
		if err == nil {
			pause = 0
			s.start(rwc)
			continue
		}
		if s.draining.Load() {
			return http.ErrServerClosed
		}
		// Too many open files, or a client that went at once: both pass.
		if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) && !errors.Is(err, syscall.ECONNABORTED) {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.logf("accept: %v; trying again in %v", err, pause)
		time.Sleep(pause)
	}
}

func (s *Server) start(rwc net.Conn) {
	if s.tls != nil {
		go s.startTLS(rwc)
		return
	}
	c := newServerConn(s, rwc)
	s.mu.Lock()
	draining := s.draining.Load()
	if !draining {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if draining {
		_ = rwc.Close()
		return
	}
	go c.serve()
}

// startTLS shakes hands and gives the connection to the http.Server behind: one of
// HTTP/2 as it is, since net/http knows it by its type, one of HTTP/1 with its
// framing guarded.
func (s *Server) startTLS(rwc net.Conn) {
	if !s.track(rwc) {
		_ = rwc.Close()
		return
	}
	c := tls.Server(rwc, s.tls)
	ctx, cancel := context.WithTimeout(context.Background(), s.rest.ReadHeaderTimeout)
	defer cancel()
	err := c.HandshakeContext(ctx)
	s.untrack(rwc)
	switch {
	case err != nil:
		s.logf("TLS handshake with %v: %v", rwc.RemoteAddr(), err)
		_ = c.Close()
	case c.ConnectionState().NegotiatedProtocol == "h2":
		s.handoff.give(c)
	default:
		s.handoff.give(&framingGuard{Conn: c})
	}
}

// track remembers a connection that neither serves nor is handed on yet, so that
// a Server that ends closes it.
func (s *Server) track(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return false
	}
	s.shaking[c] = struct{}{}
	return true
}

func (s *Server) untrack(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.shaking, c)
}

func (s *Server) forget(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// drain takes no new connections, ends the idle ones and returns a channel that
// is closed when the others are gone.
func (s *Server) drain(all bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining.Store(true)
	for l := range s.listeners {
		_ = l.Close()
		delete(s.listeners, l)
	}
	for c := range s.conns {
		if all || c.idle.CompareAndSwap(true, false) {
			_ = c.rwc.Close()
		}
	}
	for c := range s.shaking {
		_ = c.Close()
	}
	gone := s.empty
	if gone == nil {
		gone = make(chan struct{})
		if len(s.conns) == 0 {
			close(gone)
		} else {
			s.empty = gone
		}
	}
	return gone
}

// Shutdown takes no new connections, ends idle ones and waits for the requests
// under way, here and behind. Where ctx ends first it returns ctx's error and
// they go on.
func (s *Server) Shutdown(ctx context.Context) error {
	gone := s.drain(false)
	err := s.rest.Shutdown(ctx)
	select {
	case <-gone:
		return err
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
}

// Close cuts every connection.
func (s *Server) Close() error {
	s.drain(true)
	return s.rest.Close()
}

func (s *Server) logf(format string, args ...any) {
	if s.rest.ErrorLog != nil {
		s.rest.ErrorLog.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}

// handoff is the listener from which the http.Server behind takes its connections.
type handoff struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	addr   net.Addr
}

func (h *handoff) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handoff) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handoff) Addr() net.Addr { return h.addr }
