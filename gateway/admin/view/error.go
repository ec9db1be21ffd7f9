package view

import (
	"errors"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Code says for programs what kind of failure an Error is. The API sends it as it
// is, and its client reads it back.
type Code string

// The codes.
const (
	// Unauthenticated means that the credential is missing or nobody's.
	Unauthenticated Code = "UNAUTHENTICATED"
	// Forbidden means that the credential may not do this.
	Forbidden Code = "FORBIDDEN"
	// NotFound means that nothing matches, or nothing of the tenant that asked.
	NotFound Code = "NOT_FOUND"
	// Method means that the address takes another method.
	Method Code = "METHOD_NOT_ALLOWED"
	// Invalid means that a question or an order makes no sense as it stands.
	Invalid Code = "INVALID"
	// InvalidDefinition means that a definition is there and wrong. The message is
	// for operators: it names file, line and field.
	InvalidDefinition Code = "INVALID_DEFINITION"
	// Unavailable means that the store or the documents could not be reached, so
	// nothing is known.
	Unavailable Code = "UNAVAILABLE"
	// CutShort means that an order was carried out in part; the message says how
	// far, and how it is gone on with.
	CutShort Code = "CUT_SHORT"
	// Unrecorded means that an order was carried out and that the audit log did
	// not take the record of it. An Engine that writes it itself returns it.
	Unrecorded Code = "UNRECORDED"
)

// Error is every failure of a View, and of a client that asks one over HTTP.
type Error struct {
	Code Code
	// Message is for whoever asked. It names no host and no secret.
	Message string
	// RanOut says, of CutShort, that the time given was too short.
	RanOut bool
	// Err is the cause, for the log; it can name hosts and users of the store.
	Err error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf is the code of an Error, and "" for any other error and none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// Unreachable is the Error of a store that gives no answer.
func Unreachable(err error) *Error {
	if u, ok := errors.AsType[*lease.UnavailableError](err); ok && u.Err != nil {
		err = u.Err // its own words are for clients
	}
	return unavailable("the lease store", err)
}

func unavailable(what string, err error) *Error {
	return &Error{Code: Unavailable, Message: what + " cannot be reached", Err: err}
}
