package h1

import "bytes"

// verdict says what the bytes at hand are.
type verdict int

const (
	refused    verdict = iota // not accepted here, or not certainly so
	incomplete                // acceptable so far, and not whole
	accepted
)

const maxFields = 100

// scan looks for an accepted head at the start of b: head is its length, the empty
// line included, and length that of the body behind it. What it does not know for
// certain it refuses, which leaves it to net/http.
func scan(b []byte) (head, length int, v verdict) {
	n, v := scanRequestLine(b)
	if v != accepted {
		return 0, 0, v
	}
	fields := fieldScan{length: -1}
	at := n
	for range maxFields {
		line, n, v := cutLine(b[at:])
		if v != accepted {
			return 0, 0, v
		}
		at += n
		if len(line) == 0 {
			if !fields.host || fields.length < 0 {
				return 0, 0, refused
			}
			return at, fields.length, accepted
		}
		if !fields.take(line) {
			return 0, 0, refused
		}
	}
	return 0, 0, refused
}

// scanRequestLine looks for "POST /… HTTP/1.1" and returns its length.
func scanRequestLine(b []byte) (n int, v verdict) {
	const method = "POST "
	if len(b) < len(method) {
		if string(b) == method[:len(b)] {
			return 0, incomplete
		}
		return 0, refused
	}
	if string(b[:len(method)]) != method {
		return 0, refused
	}
	line, n, v := cutLine(b)
	if v != accepted {
		return 0, v
	}
	target, ok := bytes.CutSuffix(line[len(method):], []byte(" HTTP/1.1"))
	if !ok || !isTarget(target) {
		return 0, refused
	}
	return n, accepted
}

// fieldScan is what the fields of a head have said so far.
type fieldScan struct {
	host   bool
	length int // -1 for none
}

// take judges one field.
func (f *fieldScan) take(line []byte) bool {
	name, value, ok := cutField(line)
	if !ok {
		return false
	}
	switch framingOf(name) {
	case framingLength:
		if f.length >= 0 {
			return false
		}
		f.length, ok = parseLength(value)
		return ok
	case framingHost:
		ok = !f.host && isHost(value)
		f.host = true
		return ok
	case framingConnection:
		return equalFold(value, "keep-alive")
	case framingOther:
		return false
	}
	return true
}
