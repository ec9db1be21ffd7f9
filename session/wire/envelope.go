package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Span is a part of a body: its bytes are body[From:To].
type Span struct{ From, To int }

// Of returns the bytes of the span.
func (s Span) Of(body []byte) []byte { return body[s.From:s.To] }

// None reports whether there is no such part.
func (s Span) None() bool { return s.To == 0 }

// Message is the envelope of one JSON-RPC message. Spans point into the
// scanned body.
type Message struct {
	Method string // unescaped; "" for a response
	Name   string // params.name, unescaped

	All           Span // the whole message
	ID            Span // value, quotes included
	Params        Span
	Result, Error Span   // of a response
	Meta          Span   // params._meta
	ProgressToken Span   // params._meta.progressToken
	Protocol      string // params._meta["io.modelcontextprotocol/protocolVersion"]
}

// Request reports whether the message wants an answer.
func (m *Message) Request() bool { return m.Method != "" && !m.ID.None() }

// Response reports whether it answers a request.
func (m *Message) Response() bool { return m.Method == "" }

// Envelope is what a body holds: one message, or a batch.
type Envelope struct {
	Messages []Message
	Batch    bool
	single   [1]Message
}

// One returns the message of a body that is not a batch.
func (e *Envelope) One() *Message { return &e.Messages[0] }

// MaxBatch bounds the messages of a batch.
const MaxBatch = 1024

// MetaProtocol is the _meta member with which a client of 2026-07-28 names the
// revision of a request.
const MetaProtocol = "io.modelcontextprotocol/protocolVersion"

// ErrInvalid is the sentinel of every InvalidError (JSON-RPC -32600).
var ErrInvalid = errors.New("wire: not a JSON-RPC message")

// InvalidError says why valid JSON is not a JSON-RPC message.
type InvalidError struct{ What string }

func (e *InvalidError) Error() string { return e.What }

// Is makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

func invalid(format string, args ...any) error {
	return &InvalidError{What: fmt.Sprintf(format, args...)}
}

// envelopeKey is a member that JSON-RPC gives a meaning.
type envelopeKey int

const (
	noKey envelopeKey = iota - 1
	keyVersion
	keyID
	keyMethod
	keyParams
	keyResult
	keyError
)

var envelopeKeys = [...]string{"jsonrpc", "id", "method", "params", "result", "error"}

// Scan reads the envelope of a whole body from a client. The method may stand
// behind any amount of params. Errors are ErrSyntax, ErrDepth and *InvalidError.
//
// A duplicate envelope key is refused, and so is one that is written with
// escapes or in other letter case: the upstream's parser might read the other
// one, and the check of a tools/call would have looked at the wrong method. For the
// same reason a body that is not UTF-8 is. A byte order mark in front is passed over.
func Scan(body []byte) (*Envelope, error) {
	if !utf8.Valid(body) {
		return nil, invalid("the body is not UTF-8")
	}
	s := scanner{b: body}
	return s.envelope()
}

// ScanServer reads the envelope of what a server says. No check of the gateway
// hangs on it, so it takes whatever a client could make sense of: a message
// without jsonrpc, "error": null beside a result, both of them, a key twice (the
// last counts). Errors are those of Scan.
func ScanServer(body []byte) (*Envelope, error) {
	s := scanner{b: body, lenient: true}
	return s.envelope()
}

func (s *scanner) envelope() (*Envelope, error) {
	e := &Envelope{}
	s.begin()
	s.space()
	if s.peek() != '[' {
		e.Messages = e.single[:]
		if err := s.message(0, &e.single[0]); err != nil {
			return nil, err
		}
		return e, s.end()
	}
	e.Batch = true
	s.i++
	s.space()
	if s.peek() == ']' {
		return nil, invalid("an empty batch")
	}
	for {
		if len(e.Messages) == MaxBatch {
			return nil, invalid("a batch of more than %d messages", MaxBatch)
		}
		s.space()
		e.Messages = append(e.Messages, Message{})
		if err := s.message(1, &e.Messages[len(e.Messages)-1]); err != nil {
			return nil, err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case ']':
			s.i++
			return e, s.end()
		default:
			return nil, ErrSyntax
		}
	}
}

// end makes sure that nothing but space follows.
func (s *scanner) end() error {
	if s.space(); s.i != len(s.b) {
		return ErrSyntax
	}
	return nil
}

func (s *scanner) message(depth int, m *Message) error {
	if s.peek() != '{' {
		// Tell broken JSON from JSON that is no message.
		if err := s.value(depth); err != nil {
			return err
		}
		return invalid("a message must be an object")
	}
	start := s.i
	var has members
	err := s.members(func(k Span, escaped bool) error {
		key, err := s.envelopeKey(k.Of(s.b), escaped)
		if err != nil {
			return err
		}
		if key != noKey {
			if has[key] && !s.lenient {
				return invalid("the member %q stands twice", envelopeKeys[key])
			}
			has[key] = true
		}
		return s.member(key, depth+1, m)
	})
	if err != nil {
		return err
	}
	m.All = Span{start, s.i}
	if s.lenient {
		if m.Method == "" && !has[keyResult] && !has[keyError] {
			return invalid("a message has a method, a result or an error")
		}
		return nil
	}
	return has.check(string(m.ID.Of(s.b)) == "null")
}

// members are the envelope keys that a message has.
type members [len(envelopeKeys)]bool

func (has members) check(nullID bool) error {
	method, answer := has[keyMethod], has[keyResult] || has[keyError]
	switch {
	case !has[keyVersion]:
		return invalid("jsonrpc is missing")
	case method && answer:
		return invalid("a message with a method has no result or error")
	case method && has[keyID] && nullID:
		return invalid("the id of a request must not be null")
	case !method && (!answer || has[keyResult] && has[keyError]):
		return invalid("a message has a method, a result or an error")
	case !method && !has[keyID]:
		return invalid("an answer has an id")
	}
	return nil
}

// member skips the value of a message's member and notes what it says. depth is
// how many containers the value stands in.
func (s *scanner) member(key envelopeKey, depth int, m *Message) error {
	from := s.i
	switch key {
	case keyVersion:
		if err := s.value(depth); err != nil {
			return err
		}
		if string(s.b[from:s.i]) != `"2.0"` && !s.lenient {
			return invalid(`jsonrpc must be "2.0"`)
		}
	case keyID:
		return s.id(depth, m)
	case keyMethod:
		return s.method(depth, m)
	case keyParams:
		var err error
		if s.peek() == '{' {
			err = s.params(depth, m)
		} else {
			err = s.value(depth)
		}
		m.Params = Span{from, s.i}
		return err
	case keyResult:
		err := s.value(depth)
		m.Result = Span{from, s.i}
		return err
	case keyError:
		err := s.value(depth)
		m.Error = Span{from, s.i}
		return err
	default:
		return s.value(depth)
	}
	return nil
}

func (s *scanner) id(depth int, m *Message) error {
	from, c := s.i, s.peek()
	if err := s.value(depth); err != nil {
		return err
	}
	m.ID = Span{from, s.i}
	if c != '"' && c != '-' && (c < '0' || c > '9') && string(m.ID.Of(s.b)) != "null" {
		return invalid("id must be a string or a number")
	}
	return nil
}

func (s *scanner) method(depth int, m *Message) error {
	if s.peek() != '"' {
		from := s.i
		if err := s.value(depth); err != nil {
			return err
		}
		if s.lenient && string(s.b[from:s.i]) == "null" {
			return nil
		}
		return invalid("method must be a string")
	}
	var err error
	if m.Method, err = s.text(); err != nil {
		return err
	}
	if m.Method == "" {
		return invalid("method must not be empty")
	}
	return nil
}

// params skips the params object and notes what the gateway looks at.
func (s *scanner) params(depth int, m *Message) error {
	if depth >= MaxDepth {
		return ErrDepth
	}
	var name, meta bool
	return s.members(func(k Span, escaped bool) error {
		from := s.i
		switch is(k.Of(s.b), escaped, "name", "_meta") {
		case 0:
			if (name || escaped) && !s.lenient {
				return invalid("params.name stands twice or is written with escapes")
			}
			name = true
			if s.peek() != '"' {
				return s.value(depth + 1)
			}
			var err error
			m.Name, err = s.text()
			return err
		case 1:
			if (meta || escaped) && !s.lenient {
				return invalid("params._meta stands twice or is written with escapes")
			}
			meta = true
			if s.peek() != '{' {
				return s.value(depth + 1)
			}
			err := s.meta(depth+1, m)
			m.Meta = Span{from, s.i}
			return err
		}
		return s.value(depth + 1)
	})
}

func (s *scanner) meta(depth int, m *Message) error {
	if depth >= MaxDepth {
		return ErrDepth
	}
	var token, protocol bool
	return s.members(func(k Span, escaped bool) error {
		from := s.i
		switch is(k.Of(s.b), escaped, "progressToken", MetaProtocol) {
		case 0:
			if (token || escaped) && !s.lenient {
				return invalid("_meta.progressToken stands twice or is written with escapes")
			}
			token = true
			err := s.value(depth + 1)
			m.ProgressToken = Span{from, s.i}
			return err
		case 1:
			if (protocol || escaped) && !s.lenient {
				return invalid("_meta protocolVersion stands twice or is written with escapes")
			}
			protocol = true
			if s.peek() != '"' {
				return s.value(depth + 1)
			}
			var err error
			m.Protocol, err = s.text()
			return err
		}
		return s.value(depth + 1)
	})
}

// text reads the string at the scanner.
func (s *scanner) text() (string, error) {
	from := s.i
	escaped, err := s.str()
	if err != nil {
		return "", err
	}
	if !escaped {
		return intern(s.b[from+1 : s.i-1]), nil
	}
	return unescape(s.b[from:s.i])
}

func unescape(quoted []byte) (string, error) {
	var t string
	if err := json.Unmarshal(quoted, &t); err != nil {
		return "", ErrSyntax
	}
	return t, nil
}

// intern spares the commonest methods an allocation.
func intern(b []byte) string {
	switch string(b) {
	case "tools/call":
		return "tools/call"
	case "tools/list":
		return "tools/list"
	case "ping":
		return "ping"
	case "initialize":
		return "initialize"
	case "notifications/initialized":
		return "notifications/initialized"
	}
	return string(b)
}

// is returns which of the names a key is once it is unescaped, or -1.
func is(key []byte, escaped bool, names ...string) int {
	k := string(key)
	if escaped {
		var err error
		if k, err = unescape(append(append([]byte{'"'}, key...), '"')); err != nil {
			return -1
		}
	}
	for i, n := range names {
		if k == n {
			return i
		}
	}
	return -1
}

// envelopeKey returns which envelope key a key is, or noKey. Of a client's
// message it refuses one that only some parsers would take for it.
func (s *scanner) envelopeKey(key []byte, escaped bool) (envelopeKey, error) {
	for i, n := range envelopeKeys {
		if string(key) == n {
			return envelopeKey(i), nil
		}
	}
	k := string(key)
	if escaped {
		var err error
		if k, err = unescape(append(append([]byte{'"'}, key...), '"')); err != nil {
			return noKey, ErrSyntax
		}
	}
	for i, n := range envelopeKeys {
		switch {
		case s.lenient && k == n:
			return envelopeKey(i), nil
		case !s.lenient && strings.EqualFold(k, n):
			return noKey, invalid("the member %q is written with escapes or in another letter case", n)
		}
	}
	return noKey, nil
}
