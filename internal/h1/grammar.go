package h1

import (
	"bytes"
	"strconv"
)

// text is a part of a head: bytes that were read, or a string to be written.
type text interface{ ~[]byte | ~string }

// tokenChars are the characters of a token (RFC 9110, 5.6.2).
var tokenChars = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

// hostChars are the characters of a host, with or without a port, that needs no
// translation: neither an international name nor a zone.
var hostChars = func() (t [256]bool) {
	for _, c := range ".-_:[]0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

// isToken reports whether s can be a field's name.
func isToken[T text](s T) bool {
	for i := range len(s) {
		if !tokenChars[s[i]] {
			return false
		}
	}
	return len(s) > 0
}

// isFieldValue reports whether s is a field's value: no control characters but
// tabs, and no white space around it.
func isFieldValue[T text](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return len(s) == 0 || !isSpace(s[0]) && !isSpace(s[len(s)-1])
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

// isHost reports whether s is a host, with or without a port.
func isHost[T text](s T) bool {
	for i := range len(s) {
		if !hostChars[s[i]] {
			return false
		}
	}
	return len(s) > 0 && s[len(s)-1] != ':'
}

// isTarget reports whether s is a request target in origin form: visible ASCII
// that begins with a slash.
func isTarget[T text](s T) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return len(s) > 0 && s[0] == '/'
}

// maxLengthDigits bounds Content-Length: no body here is longer than 64 KiB.
const maxLengthDigits = 6

// parseLength reads a Content-Length: digits and nothing else.
func parseLength(b []byte) (n int, ok bool) {
	if len(b) == 0 || len(b) > maxLengthDigits {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// equalFold compares without regard to the case of ASCII letters; lower is in
// lower case.
func equalFold[T text](s T, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// framing names a field that says where a message ends, to whom it goes or what
// becomes of its connection.
type framing int

const (
	notFraming framing = iota
	framingHost
	framingLength
	framingConnection
	framingOther // one that is never accepted from a client nor copied from a caller
)

// framingOf classifies a field's name. The first switch keeps the common case to
// one comparison of lengths.
func framingOf[T text](name T) framing {
	switch len(name) {
	case len("host"):
		if equalFold(name, "host") {
			return framingHost
		}
	case len("content-length"):
		if equalFold(name, "content-length") {
			return framingLength
		}
		if equalFold(name, "http2-settings") {
			return framingOther
		}
	case len("connection"):
		if equalFold(name, "connection") {
			return framingConnection
		}
	case len("te"), len("expect"), len("upgrade"), len("proxy-connection"), len("transfer-encoding"):
		if equalFold(name, "te") || equalFold(name, "expect") || equalFold(name, "upgrade") || equalFold(name, "trailer") ||
			equalFold(name, "proxy-connection") || equalFold(name, "transfer-encoding") {
			return framingOther
		}
	}
	return notFraming
}

// cutLine returns the line at the start of b and its length with the line's end,
// which is CR LF and nothing else.
func cutLine(b []byte) (line []byte, n int, v verdict) {
	i := bytes.IndexByte(b, '\n')
	switch {
	case i < 0:
		return nil, 0, incomplete
	case i == 0 || b[i-1] != '\r':
		return nil, 0, refused
	}
	return b[:i-1], i + 1, accepted
}

// cutField splits a header line, whose value loses the white space around it.
func cutField(line []byte) (name, value []byte, ok bool) {
	name, value, ok = bytes.Cut(line, []byte{':'})
	if !ok || !isToken(name) {
		return nil, nil, false
	}
	value = bytes.Trim(value, " \t")
	return name, value, isFieldValue(value)
}

// appendChunkStart begins a chunk of n > 0 bytes.
func appendChunkStart(b []byte, n int) []byte {
	return append(strconv.AppendInt(b, int64(n), 16), "\r\n"...)
}

// appendChunkEnd ends a chunk.
func appendChunkEnd(b []byte) []byte { return append(b, "\r\n"...) }

// appendLastChunk ends a chunked body that has no trailers.
func appendLastChunk(b []byte) []byte { return append(b, "0\r\n\r\n"...) }
