package wire

import (
	"strconv"
	"strings"
)

// idKey returns a text that is equal for equal ids: numbers as they are written,
// strings by what they say, since the other side may escape differently.
func idKey(id []byte) string {
	if len(id) > 1 && id[0] == '"' {
		for _, c := range id {
			if c == '\\' {
				if t, err := unescape(id); err == nil {
					return `"` + t
				}
				break
			}
		}
		return string(id[:len(id)-1])
	}
	return string(id)
}

// MatchKey returns a text that is equal for ids that clients take for the same in
// a response: strings by what they say, numbers by their value as a float, and a
// string that is a number as that number. Many servers and clients read them so:
// they write 1.0 back as 1 and 1 as "1", and round what is beyond 2^53.
func MatchKey(id []byte) string {
	key := idKey(id)
	text := strings.TrimPrefix(key, `"`)
	if text == "" || strings.Trim(text, "0123456789+-.eE") != "" {
		return key
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return strconv.FormatFloat(n, 'g', -1, 64)
	}
	return key
}

// AnswersID reports whether an answer with the id answered can be that to the
// request asked.
func AnswersID(asked, answered []byte) bool { return MatchKey(asked) == MatchKey(answered) }
