//go:build unix

// Command bench measures the gateway against httputil.ReverseProxy, in front of
// the same lean upstream, on loopback. It does so against two of them: one as it
// is usually set up, with a Transport that keeps enough connections, and one that
// has a BufferPool as well, which spares it a buffer of 32 KiB for every answer.
// It measures throughput, CPU time a call and p99 at
// several numbers of sessions, the time of a large result, and the memory of an
// idle session and of an open stream. It starts and ends everything itself.
//
// The rounds of the two are interleaved and the median counts, since a machine
// does not stay as fast as it was. What it prints is a table for people; nothing
// fails because of a number.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/lean"
	"github.com/vancetope/mcp-lease-gateway/testservers/listen"
	"github.com/vancetope/mcp-lease-gateway/testservers/plainproxy"
)

type options struct {
	gateway  string
	sessions []int
	rounds   int
	duration time.Duration
	held     int
	direct   bool
	large    bool
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == asLean {
		runLean()
		return
	}
	if len(os.Args) > 2 && os.Args[1] == asProxy {
		listen.Main("127.0.0.1:0", "/mcp", plainproxy.WithoutPool(mustParse(os.Args[2])))
		return
	}
	if len(os.Args) > 2 && os.Args[1] == asPooled {
		listen.Main("127.0.0.1:0", "/mcp", plainproxy.New(mustParse(os.Args[2])))
		return
	}
	var o options
	sessions := flag.String("sessions", "1,32,256", "numbers of sessions")
	flag.StringVar(&o.gateway, "gateway", "bin/mcp-lease-gateway", "the gateway's program")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each measurement")
	flag.DurationVar(&o.duration, "duration", 2*time.Second, "length of a round")
	flag.IntVar(&o.held, "held", 2000, "sessions and streams held for the memory figures; 0 leaves them out")
	flag.BoolVar(&o.large, "large", true, "measure a result of 1 MiB as well")
	flag.BoolVar(&o.direct, "direct", false, "measure the upstream alone as well")
	flag.Parse()
	for s := range strings.SplitSeq(*sessions, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			fmt.Fprintf(os.Stderr, "-sessions %q: want numbers with commas\n", *sessions)
			os.Exit(2)
		}
		o.sessions = append(o.sessions, n)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// run sets the stage and measures.
func run(ctx context.Context, o options) error {
	st, err := setUp(ctx, o.gateway)
	if err != nil {
		return err
	}
	defer st.tearDown()
	if err := measureCalls(ctx, o, st); err != nil {
		return err
	}
	if o.large {
		if err := measureLarge(ctx, o, st); err != nil {
			return err
		}
	}
	if o.held == 0 {
		return nil
	}
	fresh, err := st.another(ctx, o.gateway)
	if err != nil {
		return err
	}
	defer fresh.tearDown()
	return measureMemory(ctx, o, fresh)
}

// runLean is the upstream's process.
func runLean() {
	s, err := lean.Listen("127.0.0.1:0", lean.Options{})
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
