package wire

import "bytes"

// lines takes an event stream apart into lines as its bytes pass: each ends with
// CR, LF or both. A CR ends its line at once, since waiting for the LF that may
// belong to it could hold an event back.
type lines struct {
	cr bool // the last byte was a CR
}

// cut returns the part of a line that p begins with, how many bytes of p that and
// its end are, and whether the line ends in them. An LF that belongs to the CR
// before p is one byte of no part.
func (l *lines) cut(p []byte) (part []byte, n int, ended bool) {
	late := l.cr && p[0] == '\n'
	l.cr = false
	if late {
		return nil, 1, false
	}
	end := lineEnd(p)
	if end == len(p) {
		return p, end, false
	}
	l.cr = p[end] == '\r'
	return p[:end], end + 1, true
}

// skip passes over the line ends in front of p. Behind a blank line they are blank
// lines that say nothing.
func (l *lines) skip(p []byte) []byte {
	n := 0
	for n < len(p) && (p[n] == '\r' || p[n] == '\n') {
		n++
	}
	if n > 0 {
		l.cr = p[n-1] == '\r'
	}
	return p[n:]
}

// lineEnd is where the first CR or LF of p stands, or p's length. It looks no
// further than some four times that: a long run of CR without any LF costs no more
// than other bytes.
func lineEnd(p []byte) int {
	for i, c := range p[:min(len(p), 8)] {
		if c == '\n' || c == '\r' {
			return i
		}
	}
	for from, size := 0, 64; from < len(p); from, size = from+size, 4*size {
		window := p[from:min(from+size, len(p))]
		end := bytes.IndexByte(window, '\n')
		if end < 0 {
			end = len(window)
		}
		if cr := bytes.IndexByte(window[:end], '\r'); cr >= 0 {
			end = cr
		}
		if end < len(window) {
			return from + end
		}
	}
	return len(p)
}
