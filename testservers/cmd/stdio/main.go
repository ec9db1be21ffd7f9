//go:build unix

// Command stdio is the MCP test server over stdio. With the argument "stubborn"
// it ignores SIGTERM and the end of its input.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/vancetope/mcp-lease-gateway/testservers/stdio"
)

func main() {
	stdio.MaybeRun()
	if err := stdio.Run(context.Background(), len(os.Args) > 1 && os.Args[1] == "stubborn"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
