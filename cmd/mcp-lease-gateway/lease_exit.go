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
		already *codeError
		noPod   *client.UnreachableError
	)
	if err == nil || errors.As(err, &already) {
		return err
	}
	if errors.As(err, &noPod) || errors.Is(err, context.DeadlineExceeded) {
		return unreachable(err)
	}
	switch view.CodeOf(err) {
	case view.NotFound:
		return &codeError{codeNotFound, err}
	case view.Invalid:
		return usage(err)
	case view.Unavailable:
		return unreachable(err)
	}
	if errors.Is(err, lease.ErrNotFound) {
		return &codeError{codeNotFound, err}
	}
	return &codeError{codeFailed, err}
}
