package principal

import (
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// Principal is a scope together with the issuer that vouched for it. Two
// requests with the same scope but different issuers are different principals:
// a session opened by one is a 404 for the other. The zero Principal is nobody.
type Principal struct {
	Tenant  string
	Project string
	// User is empty where the credential names none and may not speak for one.
	User string
	// Issuer is "anonymous", "key:<name>" or "jwt:<issuer>".
	Issuer string
}

// ID returns a text that is equal for equal principals only.
func (p Principal) ID() string {
	b := make([]byte, 0, 128)
	for i, part := range [...]string{p.Issuer, p.Tenant, p.Project, p.User} {
		if i > 0 {
			b = append(b, '/')
		}
		b = strconv.AppendQuote(b, part)
	}
	return string(b)
}

// Caller is a principal with what else its credential is good for in this
// request. It is made per request and never stored whole.
type Caller struct {
	Principal
	// OnLost is what this caller is answered where its lease is lost.
	OnLost OnLost
	// Expires is when the credential counts no more; zero for never.
	Expires time.Time
	// Authorization is the caller's own credential where it may go upstream
	// (auth: forward). It is empty for the gateway's own keys, which never do.
	Authorization Secret
}

// OnLost is how a client learns that its lease is lost.
type OnLost string

// The forms of LEASE_LOST. The zero OnLost is Reopen: few clients open a new
// session by themselves.
const (
	// NotFound is a 404: the client opens a new session.
	NotFound OnLost = "notFound"
	// Reopen is one tools/call that says so, and the next one goes on under the
	// client's session id.
	Reopen OnLost = "reopen"
)

// Secret is a text that does not show itself in logs, errors or JSON.
type Secret string

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// String hides the text from fmt.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[hidden]"
}

// GoString hides the text from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the text from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the text from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// form reports whether s has at most max bytes, all of them letters, digits or
// in others. It is asked several times for every request.
func form(s string, max int, others string) bool {
	if s == "" || len(s) > max {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte(others, c) < 0:
			return false
		}
	}
	return true
}

// ValidUser reports whether a user named by a header or a path has the form
// that the gateway takes: [A-Za-z0-9._@-]{1,128}.
func ValidUser(s string) bool { return form(s, 128, "._@-") }

// NameForm says what ValidName takes.
const NameForm = "a name begins with a letter, digit or _ and has letters, digits, . _ and - after it, at most 64 and no \"..\""

// ValidName reports whether s may stand as a tenant, project, server or
// service in a URL: [A-Za-z0-9_][A-Za-z0-9._-]{0,63}. No name holds "..": names
// become folder names.
func ValidName(s string) bool {
	return form(s, 64, "._-") && s[0] != '.' && s[0] != '-' && !strings.Contains(s, "..")
}
