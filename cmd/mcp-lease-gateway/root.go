package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Exit codes that the program itself gives; the lease commands have more.
const (
	codeFailed = 1
	codeUsage  = 2
)

// codeError is an error with the code that the process ends with.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		_, _ = fmt.Fprintln(errs, "mcp-lease-gateway: "+harmless(text, "\n\t"))
	}
	var coded *codeError
	if errors.As(err, &coded) {
		return coded.code
	}
	return codeFailed
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
			return &codeError{codeUsage, errors.New("name a command")}
		},
		Args: wrongUsage(cobra.NoArgs),
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &codeError{codeUsage, fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	root.AddCommand(newInitCommand(), newServeCommand(), newCheckCommand(), newHealthcheckCommand(), newDoctorCommand(), newLeaseCommand(operatorDeps()), newVersionCommand())
	return root
}

// wrongUsage makes a wrong number of arguments a wrong usage.
func wrongUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &codeError{codeUsage, fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
		}
		return nil
	}
}

// configFlag adds --config.
func configFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "config", "gateway.yaml", "the configuration `file`")
}
