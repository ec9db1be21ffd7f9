package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
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

func bubble(t *testing.T, w http.ResponseWriter, silence time.Duration) (x *Exchange, up *io.PipeWriter, done chan error) {
	t.Helper()
	x = &Exchange{}
	x.Init(t.Context(), Config{Owner: &alone{}, Client: w, Epoch: time.Now().Add(-time.Second), Silence: silence})
	r, up := io.Pipe()
	context.AfterFunc(x.ctx, func() { _ = r.CloseWithError(context.Cause(x.ctx)) })
	x.Begin(200, true)
	x.Watch()
	done = make(chan error, 1)
	go func() { done <- x.CopyAll(r) }()
	return x, up, done
}

// alone is an owner without a lease, whose client may owe an answer.
type alone struct {
	owes    atomic.Bool
	settled atomic.Int32
	mu      sync.Mutex
	asked   []string
}

func (o *alone) ClientOwes() bool { return o.owes.Load() }
func (o *alone) Asked(ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, ids...)
	o.owes.Store(true)
}
func (o *alone) Settled()                  { o.settled.Add(1) }
func (*alone) Kept() (*lease.Lease, bool)  { return nil, false }
func (*alone) NotKept(*lease.Lease, error) {}

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
		x.Unwatch()
		before := w.String()
		time.Sleep(time.Minute)
		if w.String() != before {
			t.Error("something was written after the end")
		}
		x.Cancel(nil)
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
		if took := time.Since(start); !errors.Is(context.Cause(x.ctx), ErrSilent) || took < 59*time.Second || took > 61*time.Second {
			t.Errorf("%v after %v", context.Cause(x.ctx), took)
		}
		x.Unwatch()
	})
}

func TestAClientThatDoesNotReadIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &recorder{h: http.Header{}, stuck: make(chan struct{})}
		x, up, done := bubble(t, w, 0)
		_, _ = io.WriteString(up, "data: 1\n\n")
		start := time.Now()
		if err := <-done; err != nil || time.Since(start) > 2*stuckAfter || !errors.Is(context.Cause(x.ctx), ErrStuck) {
			t.Errorf("%v after %v: %v", err, time.Since(start), context.Cause(x.ctx))
		}
		x.Unwatch()
		if strings.Contains(w.String(), "data") {
			t.Error("it has read")
		}
	})
}

func TestTheClockOfASilenceStandsWhileTheClientOwesAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, up, done := bubble(t, &recorder{h: http.Header{}}, time.Minute)
		o := x.owner.(*alone)
		x.Await()
		_, _ = io.WriteString(up, `data: {"jsonrpc":"2.0","id":"s1","method":"elicitation/create","params":{}}`+"\n\n")
		time.Sleep(20 * time.Minute) // a person thinks
		synctest.Wait()
		if context.Cause(x.ctx) != nil || len(o.asked) != 1 || o.asked[0] != wire.MatchKey([]byte(`"s1"`)) {
			t.Fatalf("%v, asked %q", context.Cause(x.ctx), o.asked)
		}
		o.owes.Store(false)
		x.Restart()
		start := time.Now()
		<-done
		if took := time.Since(start); !errors.Is(context.Cause(x.ctx), ErrSilent) || took < 59*time.Second || took > 61*time.Second {
			t.Errorf("%v after %v", context.Cause(x.ctx), took)
		}
		x.Unwatch()
	})
}

func TestNothingEndsAStreamWhoseResponseIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, up, _ := bubble(t, &recorder{h: http.Header{}}, time.Minute)
		const call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}`
		x.Limit(2 * time.Minute)
		x.pending.env, x.pending.body = mustScan(t, call), []byte(call)
		x.Await()
		_, _ = io.WriteString(up, "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n")
		time.Sleep(time.Hour)
		synctest.Wait()
		if o := x.owner.(*alone); context.Cause(x.ctx) != nil || o.settled.Load() == 0 {
			t.Error(context.Cause(x.ctx), o.settled.Load())
		}
		x.Unwatch()
		x.Cancel(nil)
	})
}

func TestABatchIsDoneWithTheLastOfItsResponses(t *testing.T) {
	const batch = `[{"jsonrpc":"2.0","id":1,"method":"tools/call"},{"jsonrpc":"2.0","id":2,"method":"tools/call"}]`
	p := pending{env: mustScan(t, batch), body: []byte(batch)}
	if p.cancel("1") {
		t.Error("done with one of two")
	}
	p.await()
	if done, _ := p.feed([]byte("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")); done {
		t.Error("done with one of two, cancelled and answered")
	}
	if done, _ := p.feed([]byte("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n")); !done {
		t.Error("not done with both")
	}
}
