package upstream

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// gone is how servers say in the wild that they do not know a session. It has to
// be what the whole message says: a tool may speak of sessions of its own.
var gone = regexp.MustCompile(`(?i)^\s*(?:(?:bad request|not found|invalid request|error|mcp error -?\d+)[:.,]\s*)*` +
	`(?:` + absent + `\s` + session + `(?:\s(?:provided|found|given|header))?` +
	`|(?:no transport|no connection|no server)\s(?:was\s)?found\sfor\s` + session +
	`|` + session + `\s` + ended + `(?:\sor\s(?:` + absent + `|` + ended + `))?)` +
	`\s*(?:[.;:,!(\-].{0,160})?$`)

const (
	absent  = `(?:no valid|no such|no|invalid|unknown|expired|terminated|missing|(?:could not|cannot|can't|did not) find|(?:invalid|missing|unknown|expired) or (?:invalid|missing|unknown|expired))`
	session = `(?:(?:the|this|your|mcp)[ -])*session(?:[ -]?id)?(?:\swith\sid)?(?:[\s:]+["'\x60]?[!-~]{1,300}?["'\x60]?)?`
	ended   = `(?:(?:was|is|has|has been|does|could|can)\s)?(?:not (?:be )?found|not exist|not known|not valid|not active|unknown|invalid|expired|terminated|closed|no longer \w+)`
)

// plainText is how long a word on a session is in plain text at most.
const plainText = 512

// Gone reports whether an answer to a request with a session id says that the
// session is gone. prefix is the beginning of its body.
func Gone(status int, prefix []byte) bool {
	switch status {
	case http.StatusNotFound, http.StatusGone:
		return true
	case http.StatusBadRequest:
		return NamesSession(prefix)
	}
	return false
}

// maxQuoted is how much of a refusal's words a client is told, in characters.
const maxQuoted = 200

// Quote is what a refusal of the upstream says of itself, in one line; "" where it
// says nothing that a person would read, or repeats what was sent to it with the
// request, which holds the credential.
func Quote(resp *http.Response, prefix []byte) string {
	text, ok := serversWord(prefix)
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text))
	if !ok || text == "" || strings.HasPrefix(text, "<") || resp.Request == nil {
		return ""
	}
	for k, values := range resp.Request.Header {
		if strings.HasPrefix(k, "Accept") || strings.HasPrefix(k, "Content-") || k == "User-Agent" {
			continue
		}
		for _, v := range values {
			_, secret, _ := strings.Cut(v, " ")
			if len(v) > 3 && strings.Contains(text, v) || len(secret) > 3 && strings.Contains(text, secret) {
				return ""
			}
		}
	}
	if runes := []rune(text); len(runes) > maxQuoted {
		text = string(runes[:maxQuoted]) + "…"
	}
	return text
}

// NamesSession reports whether a refusal says in words that the session is gone,
// whatever its status: a server without a route for GET answers 404 too.
func NamesSession(prefix []byte) bool {
	text, ok := serversWord(prefix)
	return ok && gone.MatchString(text)
}

// serversWord is what a refusal says of the request as such: plain text, or the
// message of an error that answers no request of the client. What answers its
// request is the tool's word.
func serversWord(body []byte) (text string, ok bool) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return "", false
	}
	if body[0] != '{' {
		return string(body), len(body) <= plainText
	}
	var v struct {
		ID      json.RawMessage `json:"id"`
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(body, &v) != nil {
		return "", false
	}
	switch string(v.ID) {
	case "", "null", `""`, `"server-error"`: // the last is what Python's SDK writes
	default:
		return "", false
	}
	var inner struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(v.Error, &inner) == nil && inner.Message != "" {
		return inner.Message, true
	}
	if json.Unmarshal(v.Error, &text) == nil && text != "" {
		return text, true
	}
	return v.Message, v.Message != ""
}
