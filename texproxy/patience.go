package texproxy

import (
	"context"
	"errors"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

const (
	// storePatience is how long a store that is out of reach is asked again
	// before a client is told.
	storePatience = 2 * time.Second
	storePause    = 100 * time.Millisecond
)

// patiently repeats an idempotent store call while the store is out of reach,
// for at most storePatience.
func patiently(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	for {
		err := call(ctx)
		if err == nil || !retryable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(storePause):
		}
	}
}

// retryable reports whether a call may succeed when it is made again. A lost
// lease stays lost, and a definition that is wrong stays wrong.
func retryable(err error) bool {
	if _, lost := lease.Lost(err); lost || errors.Is(err, lease.ErrNotFound) {
		return false
	}
	if _, busy := errors.AsType[*lease.BusyError](err); busy {
		return false
	}
	if u, ok := errors.AsType[*lease.UnavailableError](err); ok {
		return !u.Permanent && u.Level == ""
	}
	return true
}

// unavailable is what a client is told of records that cannot be had.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &lease.UnavailableError{Why: "the lease store could not be reached; try again", Err: err}
}
