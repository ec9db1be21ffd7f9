package main

import (
	"context"
	"fmt"
	"os"

	"github.com/vancetope/mcp-lease-gateway/session/stdio"
)

func main() {
	// In the process that guards a stdio server's tree this does not return.
	stdio.MaybeRunGuard()
	if err := stdio.Protect(); err != nil {
		// A child under the same user could read our memory and with it every secret.
		fmt.Fprintln(os.Stderr, "mcp-lease-gateway: the process cannot be protected from its children:", err)
		os.Exit(codeFailed)
	}
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
