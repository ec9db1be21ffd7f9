// Command browser is the browser-like MCP test server.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/listen"
)

func main() {
	addr := flag.String("listen", "127.0.0.1:8931", "address to listen on")
	auth := flag.String("auth", "", "credential to ask for: bearer:TOKEN, basic:USER:PASSWORD or apikey:HEADER:VALUE")
	var b browser.Behavior
	initialize := flag.Int64("initialize-delay-ms", 0, "delay before a session is opened")
	call := flag.Int64("call-delay-ms", 0, "delay before each tools/call")
	ping := flag.Int64("ping-every-ms", 0, "ping each GET stream that often, and drop sessions that do not answer within 5 s")
	flag.IntVar(&b.MaxSessions, "max-sessions", 0, "sessions that fit; 0 = any number")
	flag.Parse()
	b.InitializeDelay, b.CallDelay = browser.Millis(*initialize), browser.Millis(*call)
	b.PingEvery, b.PingTimeout = browser.Millis(*ping), 5000
	var err error
	if b.Auth, err = parseAuth(*auth); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	listen.Main(*addr, "/mcp", browser.New(b))
}

func parseAuth(s string) (browser.Auth, error) {
	kind, rest, _ := strings.Cut(s, ":")
	first, second, two := strings.Cut(rest, ":")
	switch {
	case s == "":
		return browser.Auth{}, nil
	case kind == "bearer" && rest != "":
		return browser.Bearer(rest), nil
	case kind == "basic" && two:
		return browser.Basic(first, second), nil
	case kind == "apikey" && two:
		return browser.APIKey(first, second), nil
	}
	return browser.Auth{}, fmt.Errorf("-auth %q: want bearer:TOKEN, basic:USER:PASSWORD or apikey:HEADER:VALUE", s)
}
