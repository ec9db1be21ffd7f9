package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Exit codes of every command.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnreachable = 4 // the store or the pod
)

// exitError is an error with the code that the process ends with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// ExitCode is the code that the process ends with.
func (e *exitError) ExitCode() int { return e.code }

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if text := err.Error(); text != "" {
		_, _ = fmt.Fprintln(errs, "mcp-lease-gateway: "+text)
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "mcp-lease-gateway",
		Short: "A proxy in front of MCP servers and TeX services whose sessions and compiles hold leases",
		Long: `mcp-lease-gateway stands in front of MCP servers and TeX services. A client's session
or compile takes a slot on every level that its lease caps (user, project, tenant, global),
keeps it while it works and gives it back when it ends, is idle for too long or dies.`,
		Example: `  mcp-lease-gateway init my-gateway     # a configuration that runs as it is
  mcp-lease-gateway serve --config my-gateway/gateway.yaml`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, args []string) error {
			if err := c.Help(); err != nil {
				return err
			}
			return &exitError{exitUsage, errors.New("name a command")}
		},
		Args: usage(cobra.NoArgs),
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &exitError{exitUsage, fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	root.AddCommand(newInitCommand(), newServeCommand(), newCheckCommand(), newLeaseCommand(), newVersionCommand())
	return root
}

// usage makes a wrong number of arguments a wrong usage.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &exitError{exitUsage, fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
		}
		return nil
	}
}

// configFlag adds --config.
func configFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "config", "gateway.yaml", "the configuration `file`")
}
