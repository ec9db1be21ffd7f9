package h1

import "bytes"

// verdict says what the bytes at hand are.
type verdict int

const (
	other verdict = iota // not plain, or not certainly so
	more                 // plain so far, and not whole
	plain                // a plain head
)

const (
	maxFields = 100
	maxDigits = 6 // of Content-Length
)

// scan looks for a plain head at the start of b: head is its length, the empty
// line included, and length that of the body behind it. It takes less than HTTP
// allows: what it does not know for certain is net/http's to judge.
func scan(b []byte) (head, length int, v verdict) {
	const start = "POST /"
	if len(b) < len(start) {
		if bytes.HasPrefix([]byte(start), b) {
			return 0, 0, more
		}
		return 0, 0, other
	}
	if string(b[:len(start)]) != start {
		return 0, 0, other
	}
	line, n, v := cutLine(b)
	if v != plain {
		return 0, 0, v
	}
	if !requestLine(line) {
		return 0, 0, other
	}
	at, host := n, false
	length = -1
	for range maxFields {
		line, n, v = cutLine(b[at:])
		if v != plain {
			return 0, 0, v
		}
		at += n
		if len(line) == 0 {
			if !host || length < 0 {
				return 0, 0, other
			}
			return at, length, plain
		}
		name, value, ok := field(line)
		if !ok {
			return 0, 0, other
		}
		switch {
		case is(name, "content-length"):
			if length >= 0 || !number(value, &length) {
				return 0, 0, other
			}
		case is(name, "host"):
			if host || !hostname(value) {
				return 0, 0, other
			}
			host = true
		case is(name, "connection"):
			if !is(value, "keep-alive") {
				return 0, 0, other
			}
		case is(name, "transfer-encoding"), is(name, "expect"), is(name, "upgrade"), is(name, "trailer"), is(name, "te"),
			is(name, "proxy-connection"), is(name, "http2-settings"):
			return 0, 0, other
		}
	}
	return 0, 0, other
}

// cutLine returns the line at the start of b and its length with the line's end,
// which is CR LF and nothing else.
func cutLine(b []byte) (line []byte, n int, v verdict) {
	i := bytes.IndexByte(b, '\n')
	switch {
	case i < 0:
		return nil, 0, more
	case i == 0 || b[i-1] != '\r':
		return nil, 0, other
	}
	return b[:i-1], i + 1, plain
}

// requestLine judges "POST /… HTTP/1.1".
func requestLine(line []byte) bool {
	target, ok := bytes.CutSuffix(line[len("POST "):], []byte(" HTTP/1.1"))
	if !ok {
		return false
	}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// field splits a header line, whose value loses the white space around it.
func field(line []byte) (name, value []byte, ok bool) {
	i := bytes.IndexByte(line, ':')
	if i < 1 {
		return nil, nil, false
	}
	for _, c := range line[:i] {
		if !token[c] {
			return nil, nil, false
		}
	}
	for _, c := range line[i+1:] {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, false
		}
	}
	return line[:i], bytes.Trim(line[i+1:], " \t"), true
}

// is compares without regard to case; lower is in lower case.
func is(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func number(b []byte, n *int) bool {
	if len(b) == 0 || len(b) > maxDigits {
		return false
	}
	v := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
		v = 10*v + int(c-'0')
	}
	*n = v
	return true
}

func hostname(b []byte) bool {
	for _, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-', c == '_', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return len(b) > 0
}

// token are the characters of a field's name (RFC 9110, 5.6.2).
var token = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()
