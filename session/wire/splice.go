package wire

// Splice returns body with one part replaced and every other byte as it was.
func Splice(body []byte, at Span, with []byte) []byte {
	out := make([]byte, 0, len(body)-(at.To-at.From)+len(with))
	out = append(out, body[:at.From]...)
	out = append(out, with...)
	return append(out, body[at.To:]...)
}

// IDKey returns a text that is equal for equal ids: numbers as they are written,
// strings by what they say, since the other side may escape differently.
func IDKey(id []byte) string {
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

// Line makes a body fit for a line-delimited stream: line breaks, which valid
// JSON has between tokens only, become spaces. It works in place.
func Line(body []byte) []byte {
	for i, c := range body {
		if c == '\n' || c == '\r' {
			body[i] = ' '
		}
	}
	return body
}
