package main

import (
	"context"
	"errors"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/client"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Exit codes of the lease commands besides those of every command.
const (
	codeNotFound    = 3
	codeUnreachable = 4
)

func usage(err error) error       { return &codeError{codeUsage, err} }
func unreachable(err error) error { return &codeError{codeUnreachable, err} }

// coded gives an error the code that the process ends with.
func coded(err error) error {
	var (
		already     *codeError
		missing     *view.NotFoundError
		invalid     *view.InvalidError
		unavailable *view.UnavailableError
		noPod       *client.UnreachableError
	)
	switch {
	case err == nil, errors.As(err, &already):
		return err
	case errors.As(err, &missing), errors.Is(err, lease.ErrNotFound):
		return &codeError{codeNotFound, err}
	case errors.As(err, &invalid):
		return usage(err)
	case errors.As(err, &unavailable), errors.As(err, &noPod), errors.Is(err, context.DeadlineExceeded):
		return unreachable(err)
	}
	return &codeError{codeFailed, err}
}
