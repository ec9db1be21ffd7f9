package definition

import (
	"errors"
	"fmt"
	"strings"
)

// InlineResource is the resource of a project's inline lease.
func InlineResource(tenant, project, name string) string {
	return InlinePrefix + EncodePart(tenant) + "/" + EncodePart(project) + "/" + EncodePart(name)
}

const upperHex = "0123456789ABCDEF"

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '_' || c == '.' || c == '@' || c == '-'
}

// EncodePart makes a part of a resource or counter id that holds no separator:
// percent-encoded outside [A-Za-z0-9_.@-], so that two scopes never share an id
// (spec §4).
func EncodePart(s string) string {
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return string(b)
}

// DecodePart is the inverse of EncodePart and takes nothing else: one spelling
// for one name.
func DecodePart(s string) (string, error) {
	if s == "" {
		return "", errors.New("a part is empty")
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if plain(c) {
			b = append(b, c)
			continue
		}
		if c != '%' || i+2 >= len(s) {
			return "", fmt.Errorf("%q stands unencoded", c)
		}
		hi, lo := strings.IndexByte(upperHex, s[i+1]), strings.IndexByte(upperHex, s[i+2])
		if hi < 0 || lo < 0 || plain(byte(hi<<4|lo)) {
			return "", fmt.Errorf("%q is not an encoding", s[i:i+3])
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), nil
}
