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
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		end = len(p)
	}
	if cr := bytes.IndexByte(p[:end], '\r'); cr >= 0 {
		end = cr
	}
	if end == len(p) {
		return p, end, false
	}
	l.cr = p[end] == '\r'
	return p[:end], end + 1, true
}
