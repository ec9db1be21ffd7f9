package wire

import (
	"bytes"
	"slices"
)

// Answers follows the SSE stream that answers a POST as its bytes pass, and
// knows which of the POST's requests have had their response. It holds the keys
// and the id of the message under way and nothing else of it, so a result of any
// size costs one pass and no memory.
type Answers struct {
	waiting map[string]bool // MatchKey of those without a response
	heard   []string        // answered by the event under way: a client gets it when the event ends

	field []byte // the line's beginning, up to its colon
	in    place
	cr    bool
	msg   message
}

// place is where in a line the stream stands.
type place uint8

const (
	inField place = iota
	afterColon
	inData
	inOther
)

// Await adds a request's id, as it is written in the request.
func (a *Answers) Await(id []byte) {
	if a.waiting == nil {
		a.waiting = make(map[string]bool)
	}
	a.waiting[MatchKey(id)] = true
}

// Waits reports whether the request with this id has had no response. One in an
// event that has not ended counts as none: clients throw such an event away.
func (a *Answers) Waits(id []byte) bool { return a.waiting[MatchKey(id)] }

// Open reports whether a request is without a response at the end of the stream.
// One in an event that has not ended counts there: some clients take it.
func (a *Answers) Open() bool {
	for id := range a.waiting {
		if !slices.Contains(a.heard, id) {
			return true
		}
	}
	return false
}

// Feed takes the next bytes of the stream.
func (a *Answers) Feed(p []byte) {
	for len(p) > 0 && len(a.waiting) > 0 {
		if a.cr {
			a.cr = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		end := lineEnd(p)
		a.line(p[:end])
		if end == len(p) {
			return
		}
		a.cr = p[end] == '\r'
		p = p[end+1:]
		a.endLine()
	}
}

func lineEnd(p []byte) int {
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		end = len(p)
	}
	if i := bytes.IndexByte(p[:end], '\r'); i >= 0 {
		return i
	}
	return end
}

// line takes a part of a line.
func (a *Answers) line(p []byte) {
	for a.in == inField && len(p) > 0 {
		c := p[0]
		p = p[1:]
		switch {
		case c != ':':
			if a.field = append(a.field, c); len(a.field) > len("\xef\xbb\xbfdata") {
				a.in = inOther
			}
		case a.isData():
			a.in = afterColon
		default:
			a.in = inOther
		}
	}
	if a.in == afterColon && len(p) > 0 {
		a.in = inData
		if p[0] == ' ' {
			p = p[1:]
		}
	}
	if a.in == inData {
		a.msg.feed(p, a.message)
	}
}

func (a *Answers) isData() bool {
	return string(bytes.TrimPrefix(a.field, []byte("\xef\xbb\xbf"))) == "data"
}

func (a *Answers) endLine() {
	switch {
	case a.in == inField && len(a.field) == 0: // a blank line: the event reaches the client
		for _, id := range a.heard {
			delete(a.waiting, id)
		}
		a.heard, a.msg = a.heard[:0], message{key: a.msg.key[:0], id: a.msg.id[:0]}
	case a.in == inData:
		a.msg.feed([]byte{'\n'}, a.message)
	}
	a.field, a.in = a.field[:0], inField
}

// message takes a whole message.
func (a *Answers) message(m *message) {
	if m.answer && !m.method && len(m.id) > 0 && len(m.id) <= maxAnswerID {
		a.heard = append(a.heard, MatchKey(m.id))
	}
}

// maxAnswerID bounds what is kept of a response's id.
const maxAnswerID = 64 << 10

// message reads JSON-RPC messages, alone or in a batch, down to what tells a
// response from other messages.
type message struct {
	depth  int  // of brackets of both kinds
	batch  bool // the outermost is a list
	str    bool // within a string
	esc    bool // behind a backslash in it
	key    []byte
	reads  reading
	id     []byte
	method bool
	answer bool // has a result or an error
}

// reading is what of a member at the message's own level is under way.
type reading uint8

const (
	nothing reading = iota
	aKey
	aColon
	anID
	aValue
)

// top is the depth of a message's own members.
func (m *message) top() int {
	if m.batch {
		return 2
	}
	return 1
}

// feed takes the next bytes and tells done of each message that ends in them.
func (m *message) feed(p []byte, done func(*message)) {
	for len(p) > 0 {
		if m.str {
			p = m.inString(p)
			continue
		}
		c := p[0]
		p = p[1:]
		if m.reads == anID && c != ',' && c != '}' {
			if c != ' ' && c != '\t' && c != '\n' {
				m.keepID(c)
			}
		}
		switch c {
		case '"':
			m.str = true
			if m.reads == aKey {
				m.key = m.key[:0]
			}
		case '{', '[':
			if m.depth == 0 {
				m.batch = c == '['
			}
			m.depth++
			if c == '{' && m.depth == m.top() {
				m.key, m.id, m.method, m.answer = m.key[:0], m.id[:0], false, false
				m.reads = aKey
			}
		case '}', ']':
			if c == '}' && m.depth == m.top() {
				done(m)
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
		m.method = true
	case `result"`, `error"`:
		m.answer = true
	}
}
