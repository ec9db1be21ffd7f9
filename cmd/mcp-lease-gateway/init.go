package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// starter is the configuration that init writes. It is an example that runs, so
// the tests check and serve it.
//
//go:embed all:starter
var starter embed.FS

func newInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a commented gateway.yaml, a server and a lease that run as they are",
		Long: `init writes a configuration for one machine into DIR (default: the current folder):
gateway.yaml with a comment at each key, the MCP server "browser" and the lease "browser"
that it holds. It replaces no file.`,
		Example: `  mcp-lease-gateway init my-gateway && mcp-lease-gateway serve --config my-gateway/gateway.yaml`,
		Args:    wrongUsage(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			written, err := writeStarter(dir)
			if err != nil {
				return err
			}
			for _, path := range written {
				if _, err := fmt.Fprintln(c.OutOrStdout(), "wrote "+path); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), `
Start it:          mcp-lease-gateway serve --config %s
Point a client at: http://127.0.0.1:8080/mcp/dev/demo/browser
See who holds it:  mcp-lease-gateway lease list --config %s
`, filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "gateway.yaml"))
			return err
		},
	}
}

// writeStarter copies the starter into dir. It looks first whether a file is in
// the way, so that it writes all or nothing.
func writeStarter(dir string) ([]string, error) {
	var names []string
	err := fs.WalkDir(starter, "starter", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		names = append(names, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	target := func(name string) string {
		rel, err := filepath.Rel("starter", filepath.FromSlash(name))
		if err != nil { // every name begins with starter/
			rel = name
		}
		return filepath.Join(dir, rel)
	}
	for _, name := range names {
		if _, err := os.Lstat(target(name)); err == nil {
			return nil, fmt.Errorf("%s is there already; init replaces nothing, so name another folder", target(name))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	written := make([]string, 0, len(names))
	for _, name := range names {
		text, err := starter.ReadFile(name)
		if err != nil {
			return written, err
		}
		path := target(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return written, err
		}
		mode := fs.FileMode(0o640)
		if filepath.Base(path) == "gateway.yaml" {
			mode = 0o600 // keys will stand here
		}
		if err := os.WriteFile(path, text, mode); err != nil {
			return written, err
		}
		written = append(written, path)
	}
	return written, nil
}
