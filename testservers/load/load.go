// Package load drives an MCP server over raw connections: a session and a
// connection for each worker, one call after another. It reads and writes
// HTTP/1.1 itself, since a usual client costs more than the proxy that is
// measured.
package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options say what to do.
type Options struct {
	Addr     string        // host:port
	Path     string        // of the MCP endpoint
	Header   []string      // more header lines, "Name: value"
	Sessions int           // workers
	Duration time.Duration // of the calls
	Calls    int           // a worker's most calls; 0 = as many as Duration allows
	Tool     string        // small or big; empty = small
	Pids     []int         // whose CPU time counts
}

// Result is what came of it.
type Result struct {
	Calls      int
	Errors     int
	FirstError error
	Elapsed    time.Duration
	Bytes      int64 // of the answers' bodies
	P50, P99   time.Duration
	CPU        []time.Duration // of Options.Pids, in their order
}

// PerSecond is the throughput in calls.
func (r Result) PerSecond() float64 { return float64(r.Calls) / r.Elapsed.Seconds() }

// CPUPerCall is the CPU time of process i for each call.
func (r Result) CPUPerCall(i int) time.Duration {
	return r.CPU[i] / time.Duration(max(1, r.Calls))
}

// opening is how many sessions are opened at once.
const opening = 16

// Run opens the sessions, calls, measures the calls alone, and ends the sessions.
func Run(ctx context.Context, o Options) (Result, error) {
	workers, err := openAll(ctx, o, true)
	defer func() { closeAll(workers) }()
	if err != nil {
		return Result{}, err
	}

	var r Result
	before, err := cpuTimes(o.Pids)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Duration)
	defer cancel()
	var wg sync.WaitGroup
	start := time.Now()
	for _, w := range workers {
		wg.Go(func() { w.run(ctx, o.Calls) })
	}
	wg.Wait()
	r.Elapsed = time.Since(start)
	after, err := cpuTimes(o.Pids)
	if err != nil {
		return r, err
	}
	for i := range before {
		r.CPU = append(r.CPU, after[i]-before[i])
	}
	var took []time.Duration
	for _, w := range workers {
		took = append(took, w.took...)
		r.Bytes += w.bytes
		if w.err != nil {
			r.Errors++
			if r.FirstError == nil {
				r.FirstError = w.err
			}
		}
	}
	r.Calls = len(took)
	if slices.Sort(took); len(took) > 0 {
		r.P50, r.P99 = took[len(took)/2], took[len(took)*99/100]
	}
	return r, nil
}

// Sessions opens n idle sessions over a few connections and returns how to end
// them.
func Sessions(ctx context.Context, o Options) (*Held, error) { return hold(ctx, o, false) }

// Streams opens n sessions and a GET stream for each.
func Streams(ctx context.Context, o Options) (*Held, error) { return hold(ctx, o, true) }

// Held are sessions that stay open until Close.
type Held struct{ workers []*worker }

func hold(ctx context.Context, o Options, streams bool) (*Held, error) {
	// A session alone needs no connection of its own, and many at once would leave
	// their mark on the memory that is measured.
	workers, err := openAll(ctx, o, streams)
	h := &Held{workers}
	for _, w := range workers {
		if err == nil && streams {
			err = w.listen()
		}
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Close ends the sessions.
func (h *Held) Close() { closeAll(h.workers) }

// openAll opens the sessions, with stay on connections that stay open.
func openAll(ctx context.Context, o Options, stay bool) ([]*worker, error) {
	var mu sync.Mutex
	var workers []*worker
	var failed error
	var wg sync.WaitGroup
	slots := make(chan struct{}, opening)
	for range o.Sessions {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			w, err := openWorker(ctx, o)
			if err == nil && !stay {
				w.leave()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			workers = append(workers, w)
		})
		mu.Lock()
		stop := failed != nil
		mu.Unlock()
		if stop {
			break
		}
	}
	wg.Wait()
	return workers, failed
}

func closeAll(workers []*worker) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, opening)
	for _, w := range workers {
		slots <- struct{}{}
		wg.Go(func() {
			w.end()
			<-slots
		})
	}
	wg.Wait()
}

// patience bounds every answer.
const patience = 30 * time.Second

// worker is a session with its connection.
type worker struct {
	o       Options
	c       net.Conn
	r       *bufio.Reader
	session string
	request []byte // a tools/call, complete
	idAt    int    // of the 8 digits of its id
	body    []byte
	took    []time.Duration
	bytes   int64
	err     error
}

func openWorker(ctx context.Context, o Options) (*worker, error) {
	w := &worker{o: o}
	if err := w.dial(ctx); err != nil {
		return nil, err
	}
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"load","version":"1"}}}`
	head, err := w.roundTrip([]byte(w.head("POST", len(initialize)) + initialize))
	if err != nil {
		w.leave()
		return nil, fmt.Errorf("initialize: %w", err)
	}
	if w.session = head.session; w.session == "" {
		w.leave()
		return nil, fmt.Errorf("initialize: no session id: %.300s", w.body)
	}
	const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	if _, err := w.roundTrip([]byte(w.head("POST", len(initialized)) + initialized)); err != nil {
		w.leave()
		return nil, fmt.Errorf("initialized: %w", err)
	}
	tool := o.Tool
	if tool == "" {
		tool = "small"
	}
	const digits = "00000000"
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":1%s,"method":"tools/call","params":{"name":%q,"arguments":{"url":"http://example.com/a/page"}}}`, digits, tool)
	w.request = []byte(w.head("POST", len(call)) + call)
	w.idAt = bytes.LastIndex(w.request, []byte(digits))
	return w, nil
}

func (w *worker) dial(ctx context.Context) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", w.o.Addr)
	if err != nil {
		return err
	}
	w.c, w.r = c, bufio.NewReaderSize(c, 64<<10)
	return nil
}

// head is a request's head.
func (w *worker) head(method string, length int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n", method, w.o.Path, w.o.Addr)
	if w.session != "" {
		fmt.Fprintf(&b, "Mcp-Session-Id: %s\r\nMCP-Protocol-Version: 2025-11-25\r\n", w.session)
	}
	for _, h := range w.o.Header {
		b.WriteString(h + "\r\n")
	}
	if method == "POST" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", length)
	}
	return b.String() + "\r\n"
}

func (w *worker) run(ctx context.Context, most int) {
	if most == 0 {
		most = 99_999_999
	}
	w.took = make([]time.Duration, 0, min(most, 1<<16))
	for i := range most {
		if ctx.Err() != nil {
			return
		}
		id := w.request[w.idAt : w.idAt+8]
		for j, n := 7, i; j >= 0; j-- {
			id[j] = byte('0' + n%10)
			n /= 10
		}
		start := time.Now()
		h, err := w.roundTrip(w.request)
		took := time.Since(start)
		if err == nil && (h.status != 200 || !bytes.Contains(w.body[:min(len(w.body), 200)], id) || !bytes.Contains(w.body[:min(len(w.body), 200)], []byte(`"result"`))) {
			err = fmt.Errorf("call %d: status %d, %.200s", i, h.status, w.body)
		}
		if err != nil {
			w.err = err
			return
		}
		w.took = append(w.took, took)
		w.bytes += int64(len(w.body))
	}
}

// listen opens a GET stream on the worker's connection.
func (w *worker) listen() error {
	_ = w.c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(w.c, w.head("GET", 0)); err != nil {
		return err
	}
	h, err := readHead(w.r)
	if err != nil {
		return err
	}
	if h.status != 200 {
		return fmt.Errorf("GET: status %d", h.status)
	}
	return nil
}

func (w *worker) leave() {
	if w.c != nil {
		_ = w.c.Close()
		w.c = nil
	}
}

// end deletes the session, over a fresh connection where the old one is used up.
func (w *worker) end() {
	w.leave()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if w.dial(ctx) == nil {
		_, _ = w.roundTrip([]byte(w.head("DELETE", 0)))
		w.leave()
	}
}

// responseHead is what is read of a response's head.
type responseHead struct {
	status  int
	length  int // -1 = chunked or none
	chunked bool
	session string
}

// roundTrip sends a whole request and reads the whole answer into w.body.
func (w *worker) roundTrip(request []byte) (responseHead, error) {
	_ = w.c.SetDeadline(time.Now().Add(patience))
	if _, err := w.c.Write(request); err != nil {
		return responseHead{}, err
	}
	h, err := readHead(w.r)
	if err != nil {
		return h, err
	}
	w.body = w.body[:0]
	switch {
	case h.chunked:
		err = w.readChunks()
	case h.length > 0:
		err = w.read(h.length)
	}
	return h, err
}

// read appends n bytes to the body.
func (w *worker) read(n int) error {
	start := len(w.body)
	w.body = slices.Grow(w.body, n)[:start+n]
	_, err := io.ReadFull(w.r, w.body[start:])
	return err
}

func (w *worker) readChunks() error {
	for {
		line, err := w.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return err
		}
		if err := w.read(int(n)); err != nil {
			return err
		}
		if _, err := w.r.Discard(2); err != nil || n == 0 {
			return err
		}
	}
}

func readHead(r *bufio.Reader) (responseHead, error) {
	var h responseHead
	line, err := r.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	if len(line) < 12 {
		return h, fmt.Errorf("status line %q", line)
	}
	if h.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return h, fmt.Errorf("status line %q", line)
	}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return h, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if h.length, err = strconv.Atoi(string(value)); err != nil {
				return h, err
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			h.chunked = true
		case bytes.EqualFold(name, []byte("Mcp-Session-Id")):
			h.session = string(value)
		}
	}
}

// tick is the unit of /proc/PID/stat, which Linux fixes at 100 a second.
const tick = 10 * time.Millisecond

// cpuTimes reads the user and system time of processes.
func cpuTimes(pids []int) ([]time.Duration, error) {
	var times []time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil, err
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) < 13 {
			return nil, fmt.Errorf("/proc/%d/stat: %q", pid, b)
		}
		user, err1 := strconv.ParseInt(f[11], 10, 64)
		system, err2 := strconv.ParseInt(f[12], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		times = append(times, time.Duration(user+system)*tick)
	}
	return times, nil
}
