package wire

import "bytes"

// maxAnswerID bounds what is kept of a response's id.
const maxAnswerID = 64 << 10

// message reads JSON-RPC messages as their bytes pass, alone or in a batch, down to
// what tells a response from other messages. It does not check their grammar: what
// is no JSON has no response in it that a client would find.
type message struct {
	depth  int  // of brackets of both kinds
	batch  bool // the outermost is a list
	str    bool // within a string
	esc    bool // behind a backslash in it
	key    []byte
	reads  reading
	id     []byte
	method bool
	result bool
	err    bool
}

// answers reports whether the message is a response.
func (m *message) answers() bool { return (m.result || m.err) && !m.method }

// reading is what of a member at the message's own level is under way.
type reading uint8

const (
	nothing reading = iota
	aKey
	aColon
	anID
	aMethod
	aValue
)

// found is what the bytes have come to.
type found uint8

const (
	foundNothing found = iota
	foundID            // the whole id
	foundEnd           // the end of a message
)

// top is the depth of a message's own members.
func (m *message) top() int {
	if m.batch {
		return 2
	}
	return 1
}

// next takes bytes of p up to the next find and returns the rest of them.
func (m *message) next(p []byte) (rest []byte, what found) {
	for len(p) > 0 {
		if m.str {
			p = m.inString(p)
			continue
		}
		c := p[0]
		if m.reads == anID && m.depth == m.top() && (c == ',' || c == '}') {
			m.reads = aValue
			return p, foundID
		}
		p = p[1:]
		if m.take(c) {
			return p, foundEnd
		}
	}
	return nil, foundNothing
}

// take takes a byte outside of strings and reports whether it ends a message.
func (m *message) take(c byte) (end bool) {
	if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
		switch m.reads {
		case anID:
			m.keepID(c)
		case aMethod:
			m.method = c != 'n' // null is none: some write every member that there is
			m.reads = aValue
		}
	}
	switch c {
	case '"':
		m.str = true
		if m.reads == aKey {
			m.key = m.key[:0]
		}
	case '{', '[':
		m.open(c)
	case '}', ']':
		end = c == '}' && m.depth == m.top()
		if end {
			m.reads = nothing
		}
		m.depth--
	case ':':
		if m.depth == m.top() && m.reads == aColon {
			m.member()
		}
	case ',':
		if m.depth == m.top() && m.reads != nothing {
			m.reads = aKey
		}
	}
	return end
}

func (m *message) open(c byte) {
	if m.depth == 0 {
		m.batch = c == '['
	}
	m.depth++
	if c == '{' && m.depth == m.top() {
		m.key, m.id = m.key[:0], m.id[:0]
		m.method, m.result, m.err = false, false, false
		m.reads = aKey
	}
}

// inString takes what of p belongs to the string under way and returns the rest.
func (m *message) inString(p []byte) []byte {
	n, esc, closed := stringPart(p, m.esc)
	m.esc, m.str = esc, !closed
	atTop := m.depth == m.top()
	switch {
	case !atTop:
	case m.reads == aKey:
		if room := maxKey - len(m.key); room > 0 {
			m.key = append(m.key, p[:min(n, room)]...)
		}
		if !m.str {
			m.reads = aColon
		}
	case m.reads == anID:
		for _, c := range p[:n] {
			m.keepID(c)
		}
	}
	return p[n:]
}

// stringPart measures what of p belongs to a string: up to its closing quote
// where that is in p. esc says that a backslash stands before p, or at its end.
func stringPart(p []byte, esc bool) (n int, escOut, closed bool) {
	if esc {
		n = 1
	}
	for quote := -1; n < len(p); {
		if quote < n {
			if quote = bytes.IndexByte(p[n:], '"'); quote < 0 {
				quote = len(p)
			} else {
				quote += n
			}
		}
		i := bytes.IndexByte(p[n:quote], '\\')
		if i < 0 && quote < len(p) {
			return quote + 1, false, true
		} else if i < 0 {
			return len(p), false, false
		}
		n += i + 2
	}
	return len(p), n > len(p), false
}

// maxKey is as much of a key as tells it from others; an escaped spelling is
// another key here, and clients of repute do not see one.
const maxKey = 16

func (m *message) keepID(c byte) {
	if len(m.id) <= maxAnswerID {
		m.id = append(m.id, c)
	}
}

// member notes the key of a member whose value comes now.
func (m *message) member() {
	m.reads = aValue
	switch string(m.key) {
	case `id"`:
		m.id, m.reads = m.id[:0], anID
	case `method"`:
		m.reads = aMethod
	case `result"`:
		m.result = true
	case `error"`:
		m.err = true
	}
}
