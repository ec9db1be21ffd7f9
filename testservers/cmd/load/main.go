// Command load calls a tool over raw connections for a while and prints what
// came of it.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/load"
)

func main() {
	target := flag.String("url", "http://127.0.0.1:8933/mcp", "MCP endpoint, http only")
	header := flag.String("header", "", "a header line to send, \"Name: value\"")
	pids := flag.String("pids", "", "processes whose CPU time is measured, with commas")
	var o load.Options
	flag.IntVar(&o.Sessions, "sessions", 32, "sessions, each with a connection")
	flag.DurationVar(&o.Duration, "duration", 5*time.Second, "how long")
	flag.IntVar(&o.Calls, "calls", 0, "a session's most calls; 0 = no limit")
	flag.StringVar(&o.Tool, "tool", "small", "tool to call")
	flag.Parse()
	if err := run(*target, *header, *pids, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(target, header, pids string, o load.Options) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	o.Addr, o.Path = u.Host, u.Path
	if header != "" {
		o.Header = []string{header}
	}
	for p := range strings.SplitSeq(pids, ",") {
		if p == "" {
			continue
		}
		pid, err := strconv.Atoi(p)
		if err != nil {
			return err
		}
		o.Pids = append(o.Pids, pid)
	}
	r, err := load.Run(context.Background(), o)
	if err != nil {
		return err
	}
	fmt.Printf("%d calls in %s: %.0f/s, p50 %s, p99 %s, %d errors\n", r.Calls, r.Elapsed.Round(time.Millisecond), r.PerSecond(), r.P50, r.P99, r.Errors)
	for i, pid := range o.Pids {
		fmt.Printf("process %d: %s CPU a call\n", pid, r.CPUPerCall(i))
	}
	return r.FirstError
}
