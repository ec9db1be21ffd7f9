// Command modern is the session-less MCP test server.
package main

import (
	"flag"

	"github.com/vancetope/mcp-lease-gateway/testservers/listen"
	"github.com/vancetope/mcp-lease-gateway/testservers/modern"
)

func main() {
	addr := flag.String("listen", "127.0.0.1:8932", "address to listen on")
	flag.Parse()
	listen.Main(*addr, "/mcp", modern.New())
}
