package h1

import (
	"errors"
	"io"
	"net"
)

// framingGuard is a connection on its way to net/http, which takes a request with
// a Transfer-Encoding and a Content-Length, or with the same Content-Length twice,
// and says nothing of it to a handler. A proxy in front that goes by the other
// field would see another end of the request, and somebody else's request in what
// follows. So the guard follows the requests of a connection and spoils the second
// framing field of a head: net/http answers 400 and closes.
//
// Bytes are changed in place, and none is added or held back. What the guard cannot
// follow ends the connection; net/http would answer 400 to all of it.
type framingGuard struct {
	net.Conn
	framingState
}

// Read implements net.Conn.
func (g *framingGuard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if n > 0 && !g.follow(p[:n]) {
		return n, errFraming
	}
	return n, err
}

var errFraming = errors.New("h1: the end of a request cannot be found")

// ReadFrom lets net/http copy large answers by the kernel, as it would without
// this wrapper.
func (g *framingGuard) ReadFrom(src io.Reader) (int64, error) {
	if rf, ok := g.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(src)
	}
	return io.Copy(struct{ io.Writer }{g.Conn}, src)
}

// CloseWrite lets net/http end an answer before the connection, so that a client
// that is still sending reads it.
func (g *framingGuard) CloseWrite() error {
	if cw, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return g.Conn.Close()
}

// place is where in a request the next byte stands.
type place int

const (
	atStart     place = iota // before a request line
	inLine                   // of the request
	atField                  // at the start of a header line
	inName                   // of a field
	inValue                  // of a field
	inBody                   // of a known length
	inChunkSize              // its digits
	inChunkLine              // behind them
	inChunk                  // its bytes and their line's end
	atTrailer                // at the start of a trailer line
	inTrailer
)

const (
	longestName = len("transfer-encoding")
	// maxFollowed bounds what is a length: net/http takes none that is longer.
	maxFollowed = 1<<63 - 1
)

// framingState is how far the guard has followed.
type framingState struct {
	at      place
	version [8]byte // the last bytes of the request line
	name    [longestName]byte
	named   int // bytes of the field's name; longestName+1 for more

	field   framing // that the value belongs to
	length  int64   // Content-Length; -1 for none
	digits  int     // of a length or of a chunk's size
	behind  bool    // white space behind the digits
	chunked bool
	left    int64 // of a body or chunk
}

// follow goes on over b. It reports false where the end of the request is unknown.
func (s *framingState) follow(b []byte) bool {
	for i := 0; i < len(b); {
		switch s.at {
		case inBody, inChunk:
			n := min(s.left, int64(len(b)-i))
			s.left -= n
			i += int(n)
			if s.left == 0 {
				s.endOfBytes()
			}
			continue
		case atStart, inLine:
			s.requestLine(b[i])
		case atField, inName:
			s.head(b, i)
		case inValue:
			if !s.value(b[i]) {
				return false
			}
		default:
			if !s.chunk(b[i]) {
				return false
			}
		}
		i++
	}
	return true
}

// endOfBytes is the end of a body or of a chunk.
func (s *framingState) endOfBytes() {
	if s.at == inChunk {
		s.at, s.digits, s.left = inChunkSize, 0, 0
		return
	}
	s.at = atStart
}

func (s *framingState) requestLine(c byte) {
	switch {
	case c == '\n' && s.at == inLine:
		s.at, s.length, s.chunked, s.named = atField, -1, false, 0
	case s.at == atStart && (c == '\r' || c == '\n'): // between requests
	case c != '\r':
		s.at = inLine
		copy(s.version[:], s.version[1:])
		s.version[len(s.version)-1] = c
	}
}

// head goes on over the byte at i, in a field's name or before it.
func (s *framingState) head(b []byte, i int) {
	c := b[i]
	switch {
	case c == '\n' && s.named == 0:
		s.endOfHead()
	case c == '\n': // no field; net/http refuses it
		s.at, s.named = atField, 0
	case c == '\r' && s.at == atField:
	case s.at == atField && isSpace(c):
		// What is folded belongs to the value before. One that frames is not folded.
		if s.field != notFraming {
			b[i] = 0
		}
		s.at = inValue
	case c == ':':
		s.fieldNamed(b, i)
	default:
		s.at = inName
		if s.named < longestName {
			s.name[s.named] = c
		}
		s.named = min(s.named+1, longestName+1)
	}
}

// fieldNamed looks at a field whose colon is at i, and spoils it where it is the
// second that says how long the body is.
func (s *framingState) fieldNamed(b []byte, i int) {
	s.field, s.at = notFraming, inValue
	if s.named <= longestName {
		name := s.name[:s.named]
		switch {
		case equalFold(name, "content-length"):
			s.field = framingLength
			if s.length >= 0 || s.chunked {
				b[i] = 0
			}
			s.length, s.digits, s.behind = 0, 0, false
		case equalFold(name, "transfer-encoding"):
			s.field = framingOther
			if s.length >= 0 || s.chunked || string(s.version[:]) != "HTTP/1.1" {
				b[i] = 0
			}
			s.chunked = true
		}
	}
	s.named = 0
}

// value goes on over a field's value. Of a Transfer-Encoding net/http takes
// "chunked" only.
func (s *framingState) value(c byte) bool {
	switch {
	case c == '\n':
		s.at = atField
	case s.field != framingLength || c == '\r':
	case isSpace(c):
		s.behind = s.digits > 0
	case c < '0' || c > '9' || s.behind || s.length > (maxFollowed-int64(c-'0'))/10:
		return false
	default:
		s.length, s.digits = 10*s.length+int64(c-'0'), s.digits+1
	}
	return true
}

func (s *framingState) endOfHead() {
	s.field = notFraming
	switch {
	case s.chunked:
		s.at, s.digits, s.left = inChunkSize, 0, 0
	case s.length > 0:
		s.at, s.left = inBody, s.length
	default:
		s.at = atStart
	}
}

// chunk goes on over the lines of a chunked body.
func (s *framingState) chunk(c byte) bool {
	switch s.at {
	case inChunkSize:
		d := hexDigit(c)
		switch {
		case d >= 0 && s.left <= (maxFollowed-15)/16:
			s.left, s.digits = 16*s.left+int64(d), s.digits+1
			return true
		case d >= 0 || s.digits == 0:
			return false
		}
		s.at = inChunkLine
		return s.chunk(c)
	case inChunkLine:
		switch {
		case c != '\n':
		case s.left == 0:
			s.at = atTrailer
		case s.left > maxFollowed-2:
			return false
		default:
			s.at, s.left = inChunk, s.left+2 // with its line's end
		}
	case atTrailer, inTrailer:
		switch {
		case c == '\n' && s.at == atTrailer:
			s.at = atStart
		case c == '\n':
			s.at = atTrailer
		case c != '\r':
			s.at = inTrailer
		}
	}
	return true
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
