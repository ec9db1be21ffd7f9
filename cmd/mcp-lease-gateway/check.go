package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/check"
)

// checkTime is the longest that a check may take, a collection included.
const checkTime = time.Minute

func newCheckCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "check",
		Short: "Check gateway.yaml and every document",
		Long: `check reads gateway.yaml and every document of every source and prints what is wrong
with them, a line each: file:line: key: what. It ends with 1 where anything is wrong.
It warns of what is right and probably not meant, and of that ends with 0.`,
		Example: `  mcp-lease-gateway check --config gateway.yaml`,
		Args:    wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), checkTime)
			defer cancel()
			r, err := checkAll(ctx, path)
			if err != nil {
				return err
			}
			return r.print(c.OutOrStdout())
		},
	}
	configFlag(c, &path)
	return c
}

// report is what a check has found.
type report struct{ found check.Report }

func (r *report) print(w io.Writer) error {
	for _, p := range r.found.Problems {
		if _, err := fmt.Fprintln(w, harmless(p.Error(), "")); err != nil {
			return err
		}
	}
	for _, p := range r.found.Warnings {
		if _, err := fmt.Fprintln(w, harmless(p.Where()+": warning: "+keyed(p), "")); err != nil {
			return err
		}
	}
	if n := len(r.found.Problems); n > 0 && r.found.Unlooked {
		return &codeError{codeFailed, fmt.Errorf("%s in gateway.yaml; the documents were not looked at, since it says where they are", count(n, "problem"))}
	} else if n > 0 {
		return &codeError{codeFailed, fmt.Errorf("%s in gateway.yaml and %s", count(n, "problem"), r.documents())}
	}
	_, err := fmt.Fprintf(w, "gateway.yaml and %s are in order\n", r.documents())
	return err
}

// documents says how many were looked at: one's own, and those in the program.
func (r *report) documents() string {
	return fmt.Sprintf("%s of your own (and %d that the gateway brings along)", count(r.found.Documents, "document"), r.found.Bundled)
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

func keyed(p config.Problem) string {
	if p.Key == "" {
		return p.What
	}
	return p.Key + ": " + p.What
}

// checkAll reads everything. Its error is that nothing could be checked; what is
// wrong is in the report.
func checkAll(ctx context.Context, path string) (*report, error) {
	conf, err := config.Load(path, os.LookupEnv)
	var wrong config.Problems
	if errors.As(err, &wrong) {
		// Without gateway.yaml it is not known where the documents are.
		return &report{check.Report{Problems: wrong, Unlooked: true}}, nil
	}
	if err != nil {
		return nil, err
	}
	docs, err := openDocuments(conf, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer docs.close(context.WithoutCancel(ctx))
	return &report{check.Run(ctx, check.Parts{
		Gateway: conf, Cascade: docs.cascade, Definitions: docs.definitions, Settings: docs.settings,
		Secrets: docs.secrets, Limits: docs.limits, Variables: docs.vars,
	})}, nil
}
