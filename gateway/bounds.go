package gateway

import "time"

// Bounds of a connection. None of them bounds a stream that lives.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10

	// Of a body that nobody wants any more.
	restSilence = 5 * time.Second
	restLasts   = 30 * time.Second
	maxRest     = 64 << 20 // bytes
)

// bounds are the times that a client has.
type bounds struct {
	stall    time.Duration // an answer may make no progress
	stranger time.Duration // an answer to a stranger, in all
	silence  time.Duration // a body may not come
	form     time.Duration // a body of a form or of an admin's call, in all
	message  time.Duration // a body of an MCP message, in all
	upload   time.Duration // a body for a TeX service, in all
}

// usualBounds leave a client of 2 KiB/s its answer, and one of 64 KiB/s a message
// of 32 MiB.
func usualBounds() bounds {
	return bounds{
		stall:    30 * time.Second,
		stranger: time.Minute,
		silence:  time.Minute,
		form:     30 * time.Second,
		message:  10 * time.Minute,
		upload:   time.Hour,
	}
}

// bodyInAll is how long a body for a kind of route may take in all.
func (b bounds) bodyInAll(k kind) time.Duration {
	switch k {
	case kindMCP:
		return b.message
	case kindTex:
		return b.upload
	}
	return b.form
}
