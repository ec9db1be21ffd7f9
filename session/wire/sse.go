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
	lines   lines
	head    [3]byte // the beginning of the current line
	n       int     // of its bytes in head
	partial bool    // an event has begun and has not ended
	ids     bool
}

// Feed takes the next bytes of the stream.
func (s *Stream) Feed(p []byte) {
	for len(p) > 0 {
		if !s.partial {
			if p = s.lines.skip(p); len(p) == 0 {
				return
			}
		}
		part, n, ended := s.lines.cut(p)
		p = p[n:]
		s.n += copy(s.head[s.n:], part)
		s.partial = s.partial || s.n > 0
		if !ended {
			continue
		}
		switch line := string(s.head[:s.n]); line {
		case "": // a blank line ends the event
			s.partial = false
		case "id", "id:": // the former is a whole line
			s.ids = true
		}
		s.n = 0
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
	Type string // its event line; "" is a message
	Data []byte // its data lines, joined by a line feed
}

// ErrEventTooLarge says that an event is longer than the reader's limit.
var ErrEventTooLarge = errors.New("wire: SSE event over the limit")

// EventReader takes an SSE stream apart without losing a byte.
type EventReader struct {
	r     *bufio.Reader
	max   int
	lines lines
}

// NewEventReader reads events of at most max bytes.
func NewEventReader(r io.Reader, max int) *EventReader {
	return &EventReader{r: bufio.NewReaderSize(r, 4<<10), max: max}
}

// Next returns the next event; its bytes are the caller's. At the end of the
// stream it returns what was left of an unfinished one with io.EOF. An LF that
// belongs to the CR at the end of an event is the first byte of the next.
func (e *EventReader) Next() (Event, error) {
	var ev Event
	first := true
	for {
		line, err := e.readLine(&ev.Raw)
		if err != nil {
			return ev, err
		}
		if len(line) == 0 {
			return ev, nil
		}
		line = bytes.TrimPrefix(line, []byte(bom))
		if data, ok := field(line, "data"); ok {
			if !first {
				ev.Data = append(ev.Data, '\n')
			}
			first = false
			ev.Data = append(ev.Data, data...)
		} else if name, ok := field(line, "event"); ok {
			ev.Type = string(name)
		}
	}
}

// readLine appends a line with its end to raw and returns it without. It is valid
// until the next call.
func (e *EventReader) readLine(raw *[]byte) (line []byte, err error) {
	from := -1 // of the line in raw
	for {
		if _, err := e.r.Peek(1); err != nil {
			return nil, err
		}
		have, err := e.r.Peek(e.r.Buffered())
		if err != nil {
			return nil, err
		}
		part, n, ended := e.lines.cut(have)
		if len(*raw)+n > e.max {
			return nil, ErrEventTooLarge
		}
		if from < 0 && (ended || len(part) > 0) {
			from = len(*raw)
		}
		*raw = append(*raw, have[:n]...)
		if _, err := e.r.Discard(n); err != nil {
			return nil, err
		}
		if ended {
			return (*raw)[from : len(*raw)-1], nil
		}
	}
}

// Rest is what follows the events that were read.
func (e *EventReader) Rest() io.Reader { return e.r }

// field returns the value of a line of this name.
func field(line []byte, name string) (value []byte, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(name))
	if !ok {
		return nil, false
	}
	if len(rest) == 0 {
		return nil, true
	}
	if rest[0] != ':' {
		return nil, false
	}
	return bytes.TrimPrefix(rest[1:], []byte(" ")), true
}

// AppendEvent appends an event with one message. Line breaks, which JSON has
// between its tokens only, become spaces.
func AppendEvent(dst, message []byte) []byte {
	dst = append(dst, "event: message\ndata: "...)
	from := len(dst)
	dst = append(dst, message...)
	if lineEnd(message) < len(message) {
		for i, c := range dst[from:] {
			if c == '\n' || c == '\r' {
				dst[from+i] = ' '
			}
		}
	}
	return append(dst, "\n\n"...)
}

// KeepAlive is a comment between events that no client sees.
const KeepAlive = ": keepalive\n\n"
