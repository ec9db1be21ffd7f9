//go:build unix

package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// past is a deadline that ends a pending read or write at once.
var past = time.Unix(1, 0)

// interrupt calls set(past) when ctx ends. The function that it returns undoes
// it, and only returns when the deadline is off again: a callback that runs late
// would cut the next caller's operation.
func interrupt(ctx context.Context, set func(time.Time) error) (undo func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = set(past)
		close(ran)
	})
	return func() {
		if !stop() {
			<-ran
			_ = set(time.Time{})
		}
	}
}

// lineWriter writes lines to a pipe, one at a time.
type lineWriter struct {
	f      *os.File
	token  chan struct{} // who takes it may write
	closed chan struct{}
	buf    []byte // a small line and its break in one write; of who has the token
}

func newLineWriter(f *os.File) *lineWriter {
	w := &lineWriter{f: f, token: make(chan struct{}, 1), closed: make(chan struct{})}
	w.token <- struct{}{}
	return w
}

// smallLine is copied rather than written in two pieces.
const smallLine = 64 << 10

func (w *lineWriter) send(ctx context.Context, line []byte) error {
	if len(line) > MaxLine {
		return ErrTooLong
	}
	select {
	case <-w.token:
	case <-w.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		w.token <- struct{}{}
		return err
	}

	var pieces [2][]byte
	if len(line) <= smallLine || bytes.ContainsAny(line, "\r\n") {
		w.buf = append(append(w.buf[:0], line...), '\n')
		oneLine(w.buf[:len(line)])
		pieces[0] = w.buf
		if len(line) > smallLine {
			w.buf = nil
		}
	} else {
		pieces[0], pieces[1] = line, []byte{'\n'}
	}

	undo := interrupt(ctx, w.f.SetWriteDeadline)
	begun := false
	for i, piece := range pieces {
		n, err := w.f.Write(piece)
		begun = begun || n > 0
		if err == nil {
			continue
		}
		undo()
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			w.token <- struct{}{}
			return ErrClosed
		case !begun:
			w.token <- struct{}{}
		default:
			rest := append([]byte(nil), piece[n:]...)
			for _, p := range pieces[i+1:] {
				rest = append(rest, p...)
			}
			// The token is given back by the goroutine; close ends its write.
			go func() {
				_, _ = w.f.Write(rest)
				w.token <- struct{}{}
			}()
		}
		return ctx.Err()
	}
	undo()
	w.token <- struct{}{}
	return nil
}

// oneLine replaces line breaks by spaces.
func oneLine(b []byte) {
	for i, c := range b {
		if c == '\n' || c == '\r' {
			b[i] = ' '
		}
	}
}

// close closes the pipe and ends every send. It may be called again.
func (w *lineWriter) close() {
	if err := w.f.Close(); err == nil { // the first of many wins
		close(w.closed)
	}
}

// lineReader reads lines from a pipe, when asked: what is not asked for stays in
// the pipe and holds the program up, so nothing here needs a queue.
type lineReader struct {
	f    *os.File
	r    *bufio.Reader
	line []byte // read so far
	long bool   // the line is over MaxLine and is being dropped
}

func newLineReader(f *os.File) *lineReader {
	return &lineReader{f: f, r: bufio.NewReaderSize(f, 64<<10)}
}

func (r *lineReader) next(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	undo := interrupt(ctx, r.f.SetReadDeadline)
	defer undo()
	for {
		part, err := r.r.ReadSlice('\n')
		if !r.long {
			r.line = append(r.line, part...)
			if len(r.line) > MaxLine+len("\r\n") {
				r.line, r.long = nil, true
			}
		}
		switch {
		case err == nil:
			line, long := bytes.TrimRight(r.line, "\r\n"), r.long
			r.line, r.long = nil, false
			if long || len(line) > MaxLine {
				return nil, ErrTooLong
			}
			if len(line) > 0 {
				return line, nil
			}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, ctx.Err()
		default:
			// What stands behind the last line break is half a message.
			_ = r.f.Close()
			return nil, io.EOF
		}
	}
}

// close gives the pipe back; a pending next ends with io.EOF.
func (r *lineReader) close() { _ = r.f.Close() }
