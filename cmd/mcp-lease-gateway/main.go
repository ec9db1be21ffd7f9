// Command mcp-lease-gateway is a proxy in front of MCP servers and TeX services
// whose sessions and compiles hold leases.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
