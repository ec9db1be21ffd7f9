package telemetry

import (
	"context"
	"errors"
	"io"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Trail is the audit log of a command that acts without a pod. It writes the
// lines that Audit writes, and whoever adds one knows whether it was written.
// It is safe for concurrent use.
type Trail struct {
	*auditLines
	turn chan struct{} // holds one: whose write it is
}

// errNoAnswer is what is said of a disk that hangs, or a pipe that nobody reads.
var errNoAnswer = errors.New("it takes nothing in the time given")

// OpenTrail opens the audit log at path beside the gateway whose log it is; ""
// means out. What it has to make, it makes as the gateway would. It ends with ctx.
func OpenTrail(ctx context.Context, path string, out io.Writer) (*Trail, error) {
	var lines *auditLines
	err := within(ctx, func() (err error) {
		lines, err = openAuditLines(path, out, true)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Trail{auditLines: lines, turn: make(chan struct{}, 1)}, nil
}

// Event writes one line. Where that takes until ctx ends, the line may still
// come.
func (t *Trail) Event(ctx context.Context, e lease.Event) error {
	return t.alone(ctx, func() error { return t.write(auditRecord{Event: e}) })
}

// Close makes what was written durable and closes the file.
func (t *Trail) Close(ctx context.Context) error { return t.alone(ctx, t.close) }

func (t *Trail) alone(ctx context.Context, do func() error) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return errNoAnswer
	}
	return within(ctx, func() error {
		defer func() { <-t.turn }()
		return do()
	})
}

// within does what may hang. What still hangs when ctx ends is left to the end of
// the process.
func within(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errNoAnswer
	}
}
