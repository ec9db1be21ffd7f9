// Package httpbody reads the rest of an HTTP response that nobody wants, so that its
// connection can be used again, and looks at the beginning of one that decides what
// the response means.
//
// It must not know whose response it is.
package httpbody

import (
	"bytes"
	"io"
)

const (
	// peeked is how much of a body its beginning is, in bytes.
	peeked = 4 << 10
	// rest is how much more is read to keep the connection.
	rest = 64 << 10
)

// Peek reads the beginning of a body and returns it with the whole body.
func Peek(from io.ReadCloser) (beginning []byte, whole io.ReadCloser) {
	beginning, err := io.ReadAll(io.LimitReader(from, peeked))
	var then io.Reader = from
	if err != nil {
		then = failing{err}
	}
	return beginning, struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(beginning), then), from}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Drain reads a body to its end where that is near, closes it and returns its
// beginning. The request's context bounds the wait.
func Drain(from io.ReadCloser) (beginning []byte) {
	beginning, err := io.ReadAll(io.LimitReader(from, peeked))
	if err == nil {
		_, _ = io.CopyN(io.Discard, from, rest) // more costs more than a new connection
	}
	_ = from.Close()
	return beginning
}
