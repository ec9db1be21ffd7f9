package wire

import "bytes"

// Answers follows what answers a POST as its bytes pass, an event stream or a JSON
// body, and knows which of the POST's requests have had their response. It holds
// the keys and the id of the message under way and nothing else of it, so a result
// of any size costs one pass and no memory.
type Answers struct {
	awaited map[string]bool // by MatchKey: whether the response has come
	heard   []string        // answered by the event under way: a client gets it when the event ends
	foreign bool
	known   bool
	asked   []string // MatchKey of the server's own requests

	lines lines
	blank bool   // the last line was
	field []byte // the line's beginning, up to its colon
	in    place
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
	if a.awaited == nil {
		a.awaited = make(map[string]bool)
	}
	a.awaited[MatchKey(id)] = false
}

// Waits reports whether the request with this id has had no response. One in an
// event that has not ended counts as none: clients throw such an event away.
func (a *Answers) Waits(id []byte) bool {
	answered, ok := a.awaited[MatchKey(id)]
	return ok && !answered
}

// Done reports whether every request has had its response, as Waits counts them.
func (a *Answers) Done() bool {
	for _, answered := range a.awaited {
		if !answered {
			return false
		}
	}
	return true
}

// Open reports whether a request is without a response at the end of the stream.
// One in an event that has not ended counts there: some clients take it.
func (a *Answers) Open() bool {
	for _, id := range a.heard {
		if _, ok := a.awaited[id]; ok {
			a.awaited[id] = true
		}
	}
	return !a.Done()
}

// Foreign reports whether a message has another id than the requests, or a result
// without one: it answers somebody else. That is known as soon as the id has
// passed, which may stand before a long result or behind it. Only FeedJSON looks
// for it: a stream has the server's own requests as well.
func (a *Answers) Foreign() bool { return a.foreign }

// Known reports whether FeedJSON has seen the id of one of the requests.
func (a *Answers) Known() bool { return a.known }

// Asked returns the ids (see MatchKey) of the server's own requests that have
// passed since it was last called.
func (a *Answers) Asked() (ids []string) {
	ids, a.asked = a.asked, nil
	return ids
}

// FeedJSON takes the next bytes of a JSON body.
func (a *Answers) FeedJSON(p []byte) {
	for len(p) > 0 {
		var what found
		p, what = a.msg.next(p)
		switch what {
		case foundID:
			awaited := a.isAwaited()
			a.foreign, a.known = a.foreign || !awaited, a.known || awaited
		case foundEnd:
			if a.msg.answers() && a.isAwaited() {
				a.awaited[MatchKey(a.msg.id)] = true
			}
			a.foreign = a.foreign || a.msg.result && !a.isAwaited()
		}
	}
}

// isAwaited reports whether the id of the message under way is that of a request,
// or nobody's.
func (a *Answers) isAwaited() bool {
	key := MatchKey(a.msg.id)
	_, ok := a.awaited[key]
	return ok || !a.msg.result && (key == "" || key == "null")
}

// Feed takes the next bytes of an event stream.
func (a *Answers) Feed(p []byte) {
	for len(p) > 0 {
		if a.blank {
			a.blank = false
			if p = a.lines.skip(p); len(p) == 0 {
				a.blank = true
				return
			}
		}
		part, n, ended := a.lines.cut(p)
		p = p[n:]
		a.line(part)
		if ended {
			a.endLine()
		}
	}
}

// line takes a part of a line.
func (a *Answers) line(p []byte) {
	for a.in == inField && len(p) > 0 {
		c := p[0]
		p = p[1:]
		switch {
		case c != ':':
			if a.field = append(a.field, c); len(a.field) > len(bom+"data") {
				a.in = inOther
			}
		case string(bytes.TrimPrefix(a.field, []byte(bom))) == "data":
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
		a.data(p)
	}
}

// data takes a part of an event's data.
func (a *Answers) data(p []byte) {
	for len(p) > 0 {
		var what found
		p, what = a.msg.next(p)
		if what != foundEnd || len(a.msg.id) == 0 || len(a.msg.id) > maxAnswerID {
			continue
		}
		switch {
		case a.msg.answers():
			a.heard = append(a.heard, MatchKey(a.msg.id))
		case a.msg.method && string(a.msg.id) != "null":
			a.asked = append(a.asked, MatchKey(a.msg.id))
		}
	}
}

func (a *Answers) endLine() {
	switch {
	case a.in == inField && len(a.field) == 0: // a blank line: the event reaches the client
		for _, id := range a.heard {
			if _, ok := a.awaited[id]; ok {
				a.awaited[id] = true
			}
		}
		a.blank = true
		a.heard, a.msg = a.heard[:0], message{key: a.msg.key[:0], id: a.msg.id[:0]}
	case a.in == inData:
		a.data([]byte{'\n'})
	}
	a.field, a.in = a.field[:0], inField
}
