// Package output holds what a program or a log writes while a test reads it.
package output

import (
	"bytes"
	"sync"
)

// Buffer keeps all that is written to it. It is safe for concurrent use; the zero
// value is empty.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns what has been written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
