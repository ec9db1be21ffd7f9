package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Stream follows an SSE stream as its bytes pass, without holding any of them,
// so that a comment can be put in between events and an end can be told from
// a cut. The zero Stream stands at the beginning of one.
type Stream struct {
	line    int  // bytes of the current line, up to 3
	idMatch bool // the line so far is a beginning of "id"
	partial bool // an event has begun and has not ended
	cr      bool // the last byte was a CR, so an LF belongs to it
	ids     bool
}

// Feed takes the next bytes of the stream.
func (s *Stream) Feed(p []byte) {
	for len(p) > 0 {
		if s.line > 2 { // the rest of a long line does not matter
			i := bytes.IndexAny(p, "\r\n")
			if i < 0 {
				return
			}
			p = p[i:]
		}
		c := p[0]
		p = p[1:]
		if c == '\n' && s.cr {
			s.cr = false
			continue
		}
		s.cr = c == '\r'
		if c == '\n' || c == '\r' {
			switch {
			case s.line == 0:
				s.partial = false // a blank line ends the event
			case s.line == 2 && s.idMatch:
				s.ids = true // a line that is only "id"
			}
			s.line, s.idMatch = 0, false
			continue
		}
		s.partial = true
		switch s.line {
		case 0:
			s.idMatch = c == 'i'
		case 1:
			s.idMatch = s.idMatch && c == 'd'
		case 2:
			if s.idMatch && c == ':' {
				s.ids = true
			}
		}
		s.line++
	}
}

// Between reports whether the stream stands between two events.
func (s *Stream) Between() bool { return !s.partial }

// HasIDs reports whether an event carried an id, so that a client can resume
// the stream.
func (s *Stream) HasIDs() bool { return s.ids }

// Event is one event of an SSE stream.
type Event struct {
	Raw  []byte // every byte of it, blank line included
	Data []byte // its data lines, joined by a line feed
}

// ErrEventTooLarge says that an event is longer than the reader's limit.
var ErrEventTooLarge = errors.New("wire: SSE event over the limit")

// EventReader takes an SSE stream apart without losing a byte.
type EventReader struct {
	r   *bufio.Reader
	max int
	cr  bool // the last byte was a CR
}

// NewEventReader reads events of at most max bytes.
func NewEventReader(r io.Reader, max int) *EventReader {
	return &EventReader{r: bufio.NewReaderSize(r, 4<<10), max: max}
}

// Next returns the next event; its bytes are the caller's. At the end of the
// stream it returns what was left of an unfinished one with io.EOF.
func (e *EventReader) Next() (Event, error) {
	var ev Event
	first := true
	for {
		from := len(ev.Raw)
		blank, err := e.readLine(&ev.Raw)
		if err != nil {
			return ev, err
		}
		if blank {
			return ev, nil
		}
		if data, ok := dataLine(ev.Raw[from:]); ok {
			if !first {
				ev.Data = append(ev.Data, '\n')
			}
			first = false
			ev.Data = append(ev.Data, data...)
		}
	}
}

// readLine appends a line with its end, and reports whether it was empty. A CR
// ends a line at once: waiting for the LF that may belong to it could hold an
// event back, so that LF goes to the next one.
func (e *EventReader) readLine(raw *[]byte) (blank bool, err error) {
	for n := 0; ; {
		c, err := e.r.ReadByte()
		if err != nil {
			return false, err
		}
		if len(*raw) >= e.max {
			return false, ErrEventTooLarge
		}
		*raw = append(*raw, c)
		late := e.cr && c == '\n'
		e.cr = c == '\r'
		switch {
		case late:
		case c == '\n', c == '\r':
			return n == 0, nil
		default:
			n++
		}
	}
}

// Rest is what follows the events that were read.
func (e *EventReader) Rest() io.Reader { return e.r }

func dataLine(line []byte) ([]byte, bool) {
	line = bytes.Trim(line, "\r\n") // in front stands an LF that came late
	line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	rest, ok := bytes.CutPrefix(line, []byte("data"))
	if !ok {
		return nil, false
	}
	if len(rest) == 0 {
		return nil, true
	}
	if rest[0] != ':' {
		return nil, false
	}
	rest = rest[1:]
	if len(rest) > 0 && rest[0] == ' ' {
		rest = rest[1:]
	}
	return rest, true
}

// AppendEvent appends an event with one message, which has no line breaks.
func AppendEvent(dst, message []byte) []byte {
	dst = append(dst, "event: message\ndata: "...)
	dst = append(dst, message...)
	return append(dst, "\n\n"...)
}

// KeepAlive is a comment between events that no client sees.
const KeepAlive = ": keepalive\n\n"
