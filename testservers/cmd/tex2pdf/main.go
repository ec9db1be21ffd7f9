// Command tex2pdf is the TeX test service in job mode.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/listen"
	"github.com/vancetope/mcp-lease-gateway/testservers/tex2pdf"
	"github.com/vancetope/mcp-lease-gateway/testservers/texengine"
)

func main() {
	addr := flag.String("listen", "127.0.0.1:8000", "address to listen on")
	key := flag.String("key", "", "X-API-Key to ask for; empty asks for none")
	timeout := flag.Duration("timeout", 240*time.Second, "longest compile")
	maxUpload := flag.Int64("max-upload", 50<<20, "longest archive in bytes")
	perMinute := flag.Int("per-minute", 0, "submits per minute and key; 0 = any number")
	flag.Parse()
	if err := texengine.Installed(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	o := tex2pdf.Options{Timeout: *timeout, MaxUpload: *maxUpload, PerMinute: *perMinute}
	if *key != "" {
		o.Keys = []string{*key}
	}
	s := tex2pdf.New(o)
	err := listen.Serve(*addr, "/tex2pdf", s)
	s.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
