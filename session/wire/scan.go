package wire

import (
	"errors"
	"fmt"
)

// MaxDepth bounds how deep values may nest, the message and its batch included. No
// MCP message comes near it, and what stands behind the gateway may read JSON by
// recursion.
const MaxDepth = 512

// ErrSyntax says that a text is not one JSON value (JSON-RPC -32700).
var ErrSyntax = errors.New("wire: not valid JSON")

// ErrDepth says that a value nests deeper than MaxDepth (JSON-RPC -32600).
var ErrDepth = fmt.Errorf("wire: nested deeper than %d levels", MaxDepth)

// stop marks the bytes at which a plain run inside a string ends.
var stop = func() (t [256]bool) {
	for c := range 0x20 {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

// scanner walks over JSON values by index. It checks the grammar of RFC 8259, but
// not that its text is UTF-8.
type scanner struct {
	b       []byte
	i       int
	lenient bool // a server's message: nothing is refused that still has a meaning
}

// bom is the byte order mark that some programs write in front of what they say.
const bom = "\xef\xbb\xbf"

// begin passes over a byte order mark.
func (s *scanner) begin() {
	if len(s.b) >= len(bom) && string(s.b[:len(bom)]) == bom {
		s.i = len(bom)
	}
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek is the byte at the scanner, 0 at the end (which no value begins with).
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// str skips a string and reports whether it holds an escape. The scanner
// stands on its opening quote.
func (s *scanner) str() (escaped bool, err error) {
	if s.peek() != '"' {
		return false, ErrSyntax
	}
	b, i := s.b, s.i+1
	for i < len(b) {
		if !stop[b[i]] {
			i++
			continue
		}
		switch b[i] {
		case '"':
			s.i = i + 1
			return escaped, nil
		case '\\':
			escaped = true
			if i+1 >= len(b) {
				return false, ErrSyntax
			}
			switch b[i+1] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i += 2
			case 'u':
				if i+6 > len(b) {
					return false, ErrSyntax
				}
				for _, c := range b[i+2 : i+6] {
					if !hex(c) {
						return false, ErrSyntax
					}
				}
				i += 6
			default:
				return false, ErrSyntax
			}
		default: // a raw control character
			return false, ErrSyntax
		}
	}
	return false, ErrSyntax
}

func hex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if !s.digits() {
		return ErrSyntax
	}
	if s.peek() == '.' {
		s.i++
		if !s.digits() {
			return ErrSyntax
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		if !s.digits() {
			return ErrSyntax
		}
	}
	return nil
}

func (s *scanner) literal(word string) error {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return ErrSyntax
	}
	s.i += len(word)
	return nil
}

// scalar skips a value that is neither object nor array.
func (s *scanner) scalar() error {
	switch c := s.peek(); {
	case c == '"':
		_, err := s.str()
		return err
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

// key skips a member's key, its colon and the space around them, and returns
// where the key stands without its quotes.
func (s *scanner) key() (k Span, escaped bool, err error) {
	s.space()
	from := s.i + 1
	if escaped, err = s.str(); err != nil {
		return k, false, err
	}
	k = Span{from, s.i - 1}
	s.space()
	if s.peek() != ':' {
		return k, false, ErrSyntax
	}
	s.i++
	s.space()
	return k, escaped, nil
}

// value skips any value; depth is how many containers it stands in. It keeps
// the open containers in a bit set instead of recursing.
func (s *scanner) value(depth int) error {
	if c := s.peek(); c != '{' && c != '[' {
		return s.scalar()
	}
	var objects [MaxDepth/64 + 1]uint64
	open := 0
	for {
		// The scanner stands on the first byte of a value.
		if c := s.peek(); c == '{' || c == '[' {
			if depth+open >= MaxDepth {
				return ErrDepth
			}
			s.i++
			s.space()
			if s.peek() == c+2 { // '{'+2 is '}', '['+2 is ']'
				s.i++
			} else {
				if c == '{' {
					objects[open/64] |= 1 << (open % 64)
				} else {
					objects[open/64] &^= 1 << (open % 64)
				}
				open++
				if c == '{' {
					if _, _, err := s.key(); err != nil {
						return err
					}
				}
				continue
			}
		} else if err := s.scalar(); err != nil {
			return err
		}
		// A value has ended: close what ends with it, or go on to the next one.
		for {
			if open == 0 {
				return nil
			}
			object := objects[(open-1)/64]&(1<<((open-1)%64)) != 0
			s.space()
			switch c := s.peek(); {
			case c == ',':
				s.i++
				s.space()
				if object {
					if _, _, err := s.key(); err != nil {
						return err
					}
				}
			case c == '}' && object, c == ']' && !object:
				s.i++
				open--
				continue
			default:
				return ErrSyntax
			}
			break
		}
	}
}

// members calls f for every member of the object at the scanner; f skips the
// value. depth is how many containers the object stands in.
func (s *scanner) members(f func(key Span, escaped bool) error) error {
	s.i++ // '{'
	s.space()
	if s.peek() == '}' {
		s.i++
		return nil
	}
	for {
		k, escaped, err := s.key()
		if err != nil {
			return err
		}
		if err := f(k, escaped); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return ErrSyntax
		}
	}
}
