package texproxy

import (
	"fmt"
	"path"
	"strings"
)

// maxPath is the longest path, in bytes, before and after it is cleaned.
const maxPath = 8 << 10

// cleanPath resolves dots and doubled slashes of an escaped path and undoes the
// escapes of characters that need none, so that one resource has one path. What
// could be read as another path further on is refused: an escaped slash,
// backslash, percent sign or control character.
func cleanPath(escaped string) (string, bool) {
	if escaped == "" {
		escaped = "/"
	}
	if escaped[0] != '/' || len(escaped) > maxPath {
		return "", false
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		c := escaped[i]
		if c <= ' ' || c == 0x7f || c == '\\' || c == '?' || c == '#' || c >= 0x80 {
			return "", false
		}
		if c != '%' {
			if plainPath(c) {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "%%%02X", c)
			}
			continue
		}
		if i+2 >= len(escaped) {
			return "", false
		}
		hi, lo := unhex(escaped[i+1]), unhex(escaped[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		i += 2
		switch d := byte(hi<<4 | lo); {
		case d == '/' || d == '\\' || d == '%' || d < ' ' || d == 0x7f:
			return "", false
		case unreserved(d):
			b.WriteByte(d)
		default:
			b.WriteByte('%')
			b.WriteString(strings.ToUpper(escaped[i-1 : i+1]))
		}
	}
	plain := b.String()
	if len(plain) > maxPath { // what was not escaped has become longer
		return "", false
	}
	clean := path.Clean(plain)
	if strings.HasSuffix(plain, "/") && clean != "/" {
		clean += "/"
	}
	for segment := range strings.SplitSeq(plain, "/") {
		if segment == ".." {
			return "", false // nothing honest climbs
		}
	}
	return clean, true
}

// unreserved characters mean the same with and without an escape (RFC 3986 §2.3).
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// plainPath reports whether a path may hold c without an escape.
func plainPath(c byte) bool { return unreserved(c) || strings.IndexByte("/!$&'()*+,;=:@", c) >= 0 }

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
