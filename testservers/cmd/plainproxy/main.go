// Command plainproxy is httputil.ReverseProxy in front of an upstream.
package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"

	"github.com/vancetope/mcp-lease-gateway/testservers/listen"
	"github.com/vancetope/mcp-lease-gateway/testservers/plainproxy"
)

func main() {
	addr := flag.String("listen", "127.0.0.1:8934", "address to listen on")
	to := flag.String("to", "http://127.0.0.1:8933", "upstream")
	flag.Parse()
	u, err := url.Parse(*to)
	if err != nil || u.Host == "" {
		fmt.Fprintf(os.Stderr, "-to %q: want http://host:port\n", *to)
		os.Exit(2)
	}
	listen.Main(*addr, "/mcp", plainproxy.New(u))
}
