package identity

import "net/http"

// The codes of RFC 6750 that a challenge may carry.
const (
	InvalidToken      = "invalid_token"
	InsufficientScope = "insufficient_scope"
)

// Error is a credential that does not suffice. Its text is for the client: it
// names no key, token or other tenant.
type Error struct {
	// Status is 401 where nobody vouches for the caller and 403 where the caller
	// is known and may not.
	Status int
	// Code is InvalidToken, InsufficientScope or "" where there was no credential.
	Code string
	// Why is one sentence for the client.
	Why string
	// Err is for the log.
	Err error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Why + ": " + e.Err.Error()
	}
	return e.Why
}

func (e *Error) Unwrap() error { return e.Err }

func unauthorized(code, why string, err error) *Error {
	return &Error{Status: http.StatusUnauthorized, Code: code, Why: why, Err: err}
}

func forbidden(why string) *Error {
	return &Error{Status: http.StatusForbidden, Code: InsufficientScope, Why: why}
}
