// Package lean is an MCP server for benchmarks. It costs almost nothing, so that
// what is measured is what stands in front of it: an own reader and writer of
// HTTP/1.1 on a raw listener, fixed answers, no checks but for the session id.
//
// The tool small answers with a few bytes, big with Options.Big bytes. GET opens
// a stream that stays silent.
package lean

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// Options are the sizes of the answers, in bytes of text.
type Options struct {
	Small int // of tools/call; 0 = 100
	Big   int // of tools/call big; 0 = 1 MiB
}

// Server is a running server.
type Server struct {
	l          net.Listener
	small, big []byte // what follows the id of an answer

	opened, deleted, streams atomic.Int64

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Listen starts a server.
func Listen(addr string, o Options) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	if o.Small == 0 {
		o.Small = 100
	}
	if o.Big == 0 {
		o.Big = 1 << 20
	}
	s := &Server{l: l, small: result(o.Small), big: result(o.Big), conns: map[net.Conn]struct{}{}}
	go s.accept()
	return s, nil
}

func result(size int) []byte {
	return fmt.Appendf(nil, `,"result":{"content":[{"type":"text","text":"%s"}]}}`, bytes.Repeat([]byte("x"), size))
}

// Addr is where it listens.
func (s *Server) Addr() string { return s.l.Addr().String() }

// Sessions is how many sessions are open, Streams how many GET streams.
func (s *Server) Sessions() int64 { return s.opened.Load() - s.deleted.Load() }

// Streams, see Sessions.
func (s *Server) Streams() int64 { return s.streams.Load() }

// Close ends the server and its connections.
func (s *Server) Close() {
	_ = s.l.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
}

func (s *Server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			_ = c.Close()
		} else {
			s.conns[c] = struct{}{}
			go s.serve(c)
		}
		s.mu.Unlock()
	}
}

// request is what the server reads of one.
type request struct {
	method  byte // P, G or D
	length  int
	chunked bool
	session bool
	close   bool
}

func (s *Server) serve(c net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close()
	}()
	r := bufio.NewReaderSize(c, 16<<10)
	var body, out []byte
	for {
		q, err := readHead(r)
		if err != nil {
			return
		}
		if q.chunked {
			body, err = readChunks(r, body[:0])
		} else {
			if cap(body) < q.length {
				body = make([]byte, q.length)
			}
			body = body[:q.length]
			_, err = io.ReadFull(r, body)
		}
		if err != nil {
			return
		}
		if q.method == 'G' {
			s.stream(c, r)
			return
		}
		out = s.answer(out[:0], q, body)
		if _, err := c.Write(out); err != nil || q.close {
			return
		}
	}
}

func readHead(r *bufio.Reader) (request, error) {
	var q request
	line, err := r.ReadSlice('\n')
	if err != nil || len(line) < 5 {
		return q, io.ErrUnexpectedEOF
	}
	q.method = line[0]
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return q, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return q, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if q.length, err = strconv.Atoi(string(value)); err != nil || q.length < 0 {
				return q, io.ErrUnexpectedEOF
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			q.chunked = true
		case bytes.EqualFold(name, []byte("Mcp-Session-Id")):
			q.session = len(value) > 0
		case bytes.EqualFold(name, []byte("Connection")):
			q.close = bytes.EqualFold(value, []byte("close"))
		}
	}
}

// readChunks reads a chunked body without trailers.
func readChunks(r *bufio.Reader, body []byte) ([]byte, error) {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return nil, err
		}
		start := len(body)
		body = append(body, make([]byte, n+2)...) // and its line break
		if _, err := io.ReadFull(r, body[start:]); err != nil {
			return nil, err
		}
		body = body[:start+int(n)]
		if n == 0 {
			return body, nil
		}
	}
}

// answer appends the whole response.
func (s *Server) answer(out []byte, q request, body []byte) []byte {
	switch {
	case q.method == 'D':
		if !q.session {
			return append(out, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"...)
		}
		s.deleted.Add(1)
		return append(out, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"...)
	case bytes.Contains(body, []byte(`"method":"initialize"`)):
		n := s.opened.Add(1)
		const tail = `,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"lean","version":"1"}}}`
		id := requestID(body)
		out = fmt.Appendf(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: lean-%d\r\nContent-Length: %d\r\n\r\n", n, len(head)+len(id)+len(tail))
		return append(append(append(out, head...), id...), tail...)
	case !q.session:
		return append(out, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"...)
	case bytes.Contains(body, []byte(`"method":"notifications/`)):
		return append(out, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"...)
	}
	tail := s.small
	if bytes.Contains(body, []byte(`"name":"big"`)) {
		tail = s.big
	}
	id := requestID(body)
	out = append(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	out = strconv.AppendInt(out, int64(len(head)+len(id)+len(tail)), 10)
	out = append(append(append(append(out, "\r\n\r\n"...), head...), id...), tail...)
	return out
}

const head = `{"jsonrpc":"2.0","id":`

// requestID finds the id as it stands in the body.
func requestID(body []byte) []byte {
	_, rest, ok := bytes.Cut(body, []byte(`"id":`))
	if !ok {
		return []byte("null")
	}
	if i := bytes.IndexAny(rest, ",}"); i >= 0 {
		return rest[:i]
	}
	return []byte("null")
}

// stream answers a GET and holds it until the client leaves.
func (s *Server) stream(c net.Conn, r *bufio.Reader) {
	s.streams.Add(1)
	defer s.streams.Add(-1)
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n: open\n\n\r\n"); err != nil {
		return
	}
	_, _ = r.ReadByte()
}
