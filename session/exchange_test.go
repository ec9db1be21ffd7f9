package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// recorder is a client in a bubble of fake time: it takes what is written, or
// holds a write up until its deadline is set.
type recorder struct {
	mu    sync.Mutex
	h     http.Header
	body  bytes.Buffer
	stuck chan struct{} // not nil: writes wait for it
}

func (w *recorder) Header() http.Header { return w.h }
func (w *recorder) WriteHeader(int)     {}
func (w *recorder) Flush()              {}
func (w *recorder) Write(b []byte) (int, error) {
	if w.stuck != nil {
		<-w.stuck
		return 0, errors.New("deadline")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.body.Write(b)
}
func (w *recorder) SetWriteDeadline(time.Time) error {
	close(w.stuck)
	return nil
}
func (w *recorder) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.body.String()
}

func bubble(t *testing.T, w http.ResponseWriter, silence time.Duration) (x *exchange, up *io.PipeWriter, done chan error) {
	t.Helper()
	p := &Proxy{epoch: time.Now().Add(-time.Second)}
	x = &exchange{p: p, silence: silence}
	x.client.init(w, p.epoch)
	x.client.passed = x.passed
	x.pending.q = &request{}
	x.ctx, x.cancel = context.WithCancelCause(t.Context())
	r, up := io.Pipe()
	context.AfterFunc(x.ctx, func() { _ = r.CloseWithError(context.Cause(x.ctx)) })
	x.client.begin(200, true)
	x.watch(nil)
	done = make(chan error, 1)
	go func() { done <- x.copyAll(r) }()
	return x, up, done
}

func keep(body string) *wire.Buffer { return wire.Keep([]byte(body)) }

func mustScan(t *testing.T, body string) *wire.Envelope {
	t.Helper()
	env, err := wire.Scan([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestAnIdleStreamIsKeptAliveBetweenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &recorder{h: http.Header{}}
		x, up, done := bubble(t, w, 0)
		say := func(s string) {
			_, _ = io.WriteString(up, s)
			synctest.Wait()
		}
		say("data: 1\n\n")
		time.Sleep(26 * time.Second)
		say("data: 2")
		time.Sleep(100 * time.Second)
		say("2\n\n")
		time.Sleep(51 * time.Second)
		if want := "data: 1\n\n: keepalive\n\ndata: 22\n\n: keepalive\n\n: keepalive\n\n"; w.String() != want {
			t.Errorf("got %q\nwant %q", w.String(), want)
		}
		_ = up.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		x.unwatch()
		before := w.String()
		time.Sleep(time.Minute)
		if w.String() != before {
			t.Error("something was written after the end")
		}
		x.cancel(nil)
	})
}

func TestSilenceIsMeasuredFromTheLastByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, up, done := bubble(t, &recorder{h: http.Header{}}, time.Minute)
		for range 5 {
			time.Sleep(50 * time.Second)
			_, _ = io.WriteString(up, ": x\n\n")
		}
		start := time.Now()
		<-done
		if took := time.Since(start); !errors.Is(context.Cause(x.ctx), errSilent) || took < 59*time.Second || took > 61*time.Second {
			t.Errorf("%v after %v", context.Cause(x.ctx), took)
		}
		x.unwatch()
	})
}

func TestAClientThatDoesNotReadIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &recorder{h: http.Header{}, stuck: make(chan struct{})}
		x, up, done := bubble(t, w, 0)
		_, _ = io.WriteString(up, "data: 1\n\n")
		start := time.Now()
		if err := <-done; err != nil || time.Since(start) > 2*stuckAfter || !errors.Is(context.Cause(x.ctx), errStuck) {
			t.Errorf("%v after %v: %v", err, time.Since(start), context.Cause(x.ctx))
		}
		x.unwatch()
		if strings.Contains(w.String(), "data") {
			t.Error("it has read")
		}
	})
}
