package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// operatorDeps is what the lease commands need of the rest of the program. They
// make no secrets: what a pod has not made, no pod takes.
func operatorDeps() leaseDeps {
	return leaseDeps{
		config: func(path string) (*config.Gateway, error) { return loadForLease(path, os.LookupEnv) },
		audit:  func(path string) (string, error) { return auditPath(path, os.LookupEnv) },
		token:  internalToken,
		store:  openStore,
		definitions: func(_ context.Context, c *config.Gateway) (definition.Resolver, func(), error) {
			d, err := openDocuments(c, slog.New(slog.DiscardHandler))
			if err != nil {
				return nil, nil, err
			}
			return d.definitions, func() { d.close(context.Background()) }, nil
		},
		terminal: func(r io.Reader) bool {
			f, ok := r.(*os.File)
			return ok && term.IsTerminal(int(f.Fd()))
		},
	}
}
