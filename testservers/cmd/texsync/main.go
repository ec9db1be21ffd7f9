// Command texsync is the TeX test service in sync mode.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/listen"
	"github.com/vancetope/mcp-lease-gateway/testservers/texengine"
	"github.com/vancetope/mcp-lease-gateway/testservers/texsync"
)

func main() {
	addr := flag.String("listen", "127.0.0.1:8001", "address to listen on")
	timeout := flag.Duration("timeout", 240*time.Second, "longest compile")
	flag.Parse()
	if err := texengine.Installed(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	listen.Main(*addr, "/compile", texsync.New(*timeout))
}
