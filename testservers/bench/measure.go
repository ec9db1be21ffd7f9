//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/load"
)

// figures are the rounds of one target at one number of sessions.
type figures struct{ perSecond, cpu, p50, p99 []float64 }

func (f *figures) add(r load.Result) {
	f.perSecond = append(f.perSecond, r.PerSecond())
	f.cpu = append(f.cpu, float64(r.CPUPerCall(0))/float64(time.Microsecond))
	f.p50 = append(f.p50, float64(r.P50)/float64(time.Microsecond))
	f.p99 = append(f.p99, float64(r.P99)/float64(time.Microsecond))
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// ratio is a's median to b's.
func ratio(a, b []float64) float64 {
	if median(b) == 0 {
		return 0
	}
	return median(a) / median(b)
}

// round runs one round and fails on any wrong answer: a quick refusal would look
// like speed.
func round(ctx context.Context, t target, tool string, sessions int, d time.Duration) (load.Result, error) {
	r, err := load.Run(ctx, load.Options{Addr: t.addr, Path: t.path, Sessions: sessions, Duration: d, Tool: tool, Pids: []int{t.pid}})
	if err == nil {
		err = r.FirstError
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return r, fmt.Errorf("%s, %d sessions: %w", t.name, sessions, err)
	}
	return r, nil
}

// rounds interleaves the targets, each of them first in turn.
func rounds(ctx context.Context, o options, targets []target, tool string, sessions int) ([]figures, error) {
	for _, t := range targets { // warm connections, pools and the processor
		if _, err := round(ctx, t, tool, sessions, o.duration/4); err != nil {
			return nil, err
		}
	}
	all := make([]figures, len(targets))
	for i := range o.rounds {
		for j := range targets {
			k := (i + j) % len(targets)
			r, err := round(ctx, targets[k], tool, sessions, o.duration)
			if err != nil {
				return nil, err
			}
			all[k].add(r)
		}
	}
	return all, nil
}

// The aims: at least this throughput, at most this CPU time and p99, as ratios of
// the plain proxy's.
var aims = map[int]float64{1: 1.3, 32: 1.6, 256: 1.5}

const (
	aimCPU = 0.7
	aimP99 = 0.9
)

func measureCalls(ctx context.Context, o options, st *stage) error {
	targets := []target{st.plain, st.pooled, st.lease}
	if o.direct {
		targets = append(targets, st.direct)
	}
	fmt.Printf("tools/call with a lease on the embedded store, %d rounds of %s each, medians\n\n", o.rounds, o.duration)
	fmt.Printf("%8s  %-12s %10s %10s %10s %10s\n", "SESSIONS", "TARGET", "CALLS/S", "CPU µs", "P50 µs", "P99 µs")
	var summary strings.Builder
	for _, n := range o.sessions {
		all, err := rounds(ctx, o, targets, "small", n)
		if err != nil {
			return err
		}
		for i, t := range targets {
			f := all[i]
			fmt.Printf("%8d  %-12s %10.0f %10.1f %10.0f %10.0f\n", n, t.name, median(f.perSecond), median(f.cpu), median(f.p50), median(f.p99))
		}
		lease := all[2]
		for i, plain := range all[:2] {
			fmt.Fprintf(&summary, "%8d  %-12s  %s  %s  %s\n", n, targets[i].name,
				verdict(ratio(lease.perSecond, plain.perSecond), aims[n], true),
				verdict(ratio(lease.cpu, plain.cpu), aimCPU, false),
				verdict(ratio(lease.p99, plain.p99), aimP99, false))
		}
	}
	fmt.Printf("\ngateway's figure / plain proxy's\n\n%8s  %-12s  %-20s  %-20s  %-20s\n%s\n", "SESSIONS", "PLAIN PROXY", "THROUGHPUT", "CPU A CALL", "P99", summary.String())
	return nil
}

// verdict shows a ratio beside its aim.
func verdict(got, aim float64, atLeast bool) string {
	if aim == 0 {
		return fmt.Sprintf("%.2f%16s", got, "")
	}
	sign, reached := "≤", got <= aim
	if atLeast {
		sign, reached = "≥", got >= aim
	}
	word := "missed"
	if reached {
		word = "ok"
	}
	return fmt.Sprintf("%.2f (%s %.1f %-6s)  ", got, sign, aim, word)
}

func measureLarge(ctx context.Context, o options, st *stage) error {
	for _, n := range []int{1, 4} {
		all, err := rounds(ctx, o, []target{st.pooled, st.lease}, "big", n)
		if err != nil {
			return err
		}
		plain, lease := all[0], all[1]
		fmt.Printf("a result of 1 MiB, %d sessions: time %.2f of that of the plain proxy with a pool (p50 %.0f µs against %.0f), CPU %.2f, p99 %.2f\n",
			n, 1/ratio(lease.perSecond, plain.perSecond), median(lease.p50), median(plain.p50), ratio(lease.cpu, plain.cpu), ratio(lease.p99, plain.p99))
	}
	return nil
}

// memory is what a process holds, in bytes.
type memory struct{ resident, inUse int64 }

// measureMemory opens many sessions, then streams, and looks at what the gateway
// grew by. Resident memory holds garbage too; in use are heap spans and stacks.
func measureMemory(ctx context.Context, o options, st *stage) error {
	t := st.lease
	hold := load.Options{Addr: t.addr, Path: t.path, Sessions: o.held}
	warm, err := load.Streams(ctx, load.Options{Addr: t.addr, Path: t.path, Sessions: 50})
	if err != nil {
		return fmt.Errorf("open streams: %w", err)
	}
	warm.Close()

	fmt.Println()
	before, err := st.memory(ctx)
	if err != nil {
		return err
	}
	idle, err := load.Sessions(ctx, hold)
	if err != nil {
		return fmt.Errorf("open sessions: %w", err)
	}
	after, err := st.memory(ctx)
	idle.Close()
	if err != nil {
		return err
	}
	printMemory("an idle session", before, after, o.held, "5 kB")

	if before, err = st.memory(ctx); err != nil {
		return err
	}
	streams, err := load.Streams(ctx, hold)
	if err != nil {
		return fmt.Errorf("open streams: %w", err)
	}
	after, err = st.memory(ctx)
	streams.Close()
	if err != nil {
		return err
	}
	printMemory("an open GET stream", before, after, o.held, "70 kB")
	return nil
}

func printMemory(what string, before, after memory, n int, aim string) {
	kB := func(bytes int64) float64 { return float64(bytes) / float64(n) / 1000 }
	fmt.Printf("%s (%d held, aim ≤ %s): resident %.1f kB", what, n, aim, kB(after.resident-before.resident))
	if after.inUse > 0 {
		fmt.Printf(", heap and stacks %.1f kB", kB(after.inUse-before.inUse))
	}
	fmt.Println()
}

// memory reads the gateway's resident memory, and what its metrics tell.
func (st *stage) memory(ctx context.Context) (memory, error) {
	var m memory
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", st.lease.pid))
	if err != nil {
		return m, err
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return m, fmt.Errorf("statm %q", b)
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return m, err
	}
	m.resident = pages * int64(os.Getpagesize())

	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+st.internal+"/metrics", nil)
	if err != nil {
		return m, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return m, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name == "go_memstats_heap_inuse_bytes" || name == "go_memstats_stack_inuse_bytes" {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return m, err
			}
			m.inUse += int64(v)
		}
	}
	return m, lines.Err()
}
