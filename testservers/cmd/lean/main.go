// Command lean is the MCP server for benchmarks.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/vancetope/mcp-lease-gateway/testservers/lean"
)

func main() {
	addr := flag.String("listen", "127.0.0.1:8933", "address to listen on")
	var o lean.Options
	flag.IntVar(&o.Small, "small", 0, "bytes of the tool small's text; 0 = 100")
	flag.IntVar(&o.Big, "big", 0, "bytes of the tool big's text; 0 = 1 MiB")
	flag.Parse()
	s, err := lean.Listen(*addr, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("listening on http://%s/mcp\n", s.Addr())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
	s.Close()
}
