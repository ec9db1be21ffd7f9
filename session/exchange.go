package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

const (
	// keepAliveEvery is how long an SSE stream may be silent towards a client.
	keepAliveEvery = 25 * time.Second
	// stuckAfter is how long one write to a client may take.
	stuckAfter = 60 * time.Second
	// lookTimeout bounds a check or peek of an exchange under way.
	lookTimeout = 5 * time.Second
)

// Why an exchange was cancelled, besides *lostCause.
var (
	errSilent  = errors.New("session: the upstream was silent for too long")
	errTooLong = errors.New("session: the call took too long")
	errEnded   = errors.New("session: the session has ended")
	errStopped = errors.New("session: the gateway is stopping")
	errStuck   = errors.New("session: the client does not read")
)

// lostCause cancels what is under way in a session that is lost.
type lostCause struct{ reason lease.Reason }

func (e *lostCause) Error() string { return (&lease.LostError{Reason: e.reason}).Error() }

// exchange is one request on its way through: the upstream's answer flows to
// the client while one timer watches over it. There is no goroutine of its own
// and no buffer outside a copy.
type exchange struct {
	p      *Proxy
	s      *live // nil without a session
	w      http.ResponseWriter
	ctx    context.Context // of the upstream request; its cause says why it ended
	cancel context.CancelCauseFunc

	next, prev *exchange // in s.first, under s.mu

	uses    bool          // a tools/call: its lease is in use
	call    bool          // Drain waits for it
	silence time.Duration // longest silence of the upstream; 0 for streams that listen
	until   int64         // Proxy.now() at which the call is too long; 0 for never
	look    time.Duration // between two looks at the lease; 0 without a lease

	// The timer reads these while a client may hold a write, and with it mu, up.
	active  atomic.Int64 // Proxy.now() of the upstream's last sign of life
	writing atomic.Int64 // Proxy.now() of the start of a write under way, or 0
	lastOut atomic.Int64 // Proxy.now() of the last write
	stream  atomic.Bool  // the answer is an SSE stream

	mu    sync.Mutex // guards what follows and every use of w once an answer has begun
	begun bool       // a header has gone out
	over  bool       // the handler has returned: w is no longer ours
	left  bool       // the client has gone
	sse   wire.Stream
	waits *wire.Answers // of a stream that answers a POST: the requests without a response

	timerMu  sync.Mutex
	timer    *time.Timer
	nextLook int64
	stopped  bool
}

// now is monotonic time since the Proxy was made.
func (p *Proxy) now() int64 { return int64(time.Since(p.epoch)) }

// lookEvery is a third of the TTL, so that two looks may fail before an idle
// reap could come.
func lookEvery(sl slot) time.Duration {
	if sl.Noop() {
		return 0
	}
	return max(sl.Ref().TTL/3, 10*time.Millisecond)
}

// watch starts the exchange's timer.
func (x *exchange) watch() {
	now := x.p.now()
	x.active.Store(now)
	x.lastOut.Store(now)
	x.nextLook = now + int64(x.look)
	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	x.timer = time.AfterFunc(x.due(now), x.tick)
}

// unwatch ends the timer. A tick under way finds w out of its reach.
func (x *exchange) unwatch() {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	x.stopped = true
	if x.timer != nil {
		x.timer.Stop()
	}
}

// due is the time until the next thing that tick has to look at. What is due
// already and could not be done (a comment in the middle of an event) is looked
// at again after a second, not at once.
func (x *exchange) due(now int64) time.Duration {
	next := now + int64(keepAliveEvery)
	consider := func(at int64) {
		if at <= now {
			at = now + int64(time.Second)
		}
		next = min(next, at)
	}
	if x.look > 0 {
		consider(x.nextLook)
	}
	if x.silence > 0 {
		consider(x.active.Load() + int64(x.silence))
	}
	if x.until > 0 {
		consider(x.until)
	}
	if x.stream.Load() {
		consider(x.lastOut.Load() + int64(keepAliveEvery))
	}
	if since := x.writing.Load(); since > 0 {
		consider(since + int64(stuckAfter))
	}
	return max(time.Duration(next-now), time.Millisecond)
}

// tick is the timer's turn. Turns never overlap: each sets up the next.
func (x *exchange) tick() {
	now := x.p.now()
	if since := x.writing.Load(); since > 0 && now-since >= int64(stuckAfter) {
		x.stop(errStuck)
	} else if x.until > 0 && now >= x.until {
		x.stop(errTooLong)
	} else if x.silence > 0 && now-x.active.Load() >= int64(x.silence) {
		x.stop(errSilent)
	}
	if x.look > 0 && now >= x.nextLook && x.ctx.Err() == nil {
		x.lookAtLease()
		x.nextLook = x.p.now() + int64(x.look)
	}
	x.keepAlive()

	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	if !x.stopped && x.ctx.Err() == nil {
		x.timer.Reset(x.due(x.p.now()))
	}
}

// stop ends the exchange and wakes a write that the client holds up.
func (x *exchange) stop(cause error) {
	x.cancel(cause)
	if x.writing.Load() > 0 {
		_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now())
	}
}

// lookAtLease touches the lease of a call, and only looks at that of a stream.
// A store that cannot be reached loses no lease, so it ends nothing.
func (x *exchange) lookAtLease() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), lookTimeout)
	defer cancel()
	sl, _, _ := x.s.held()
	err := look(ctx, sl, x.uses)
	if reason, isLost := lostLease(err); isLost {
		x.p.lose(ctx, x.s, sl, reason)
	} else if err != nil {
		x.p.opt.Log.WarnContext(ctx, "a lease in use could not be looked at", "session", x.s.number, "error", err)
	}
}

// keepAlive puts a comment between two events of a silent stream.
func (x *exchange) keepAlive() {
	if !x.mu.TryLock() { // something is being written
		return
	}
	defer x.mu.Unlock()
	if !x.stream.Load() || x.over || x.left || !x.sse.Between() || x.p.now()-x.lastOut.Load() < int64(keepAliveEvery) {
		return
	}
	x.put([]byte(wire.KeepAlive))
}

// begin sends the header of an answer.
func (x *exchange) begin(status int, stream bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begun = true
	x.stream.Store(stream)
	x.w.WriteHeader(status)
	if stream {
		x.flush()
	}
}

// put writes to the client, under x.mu.
func (x *exchange) put(b []byte) {
	if x.left {
		return
	}
	now := x.p.now()
	x.writing.Store(now)
	_, err := x.w.Write(b)
	if err == nil && x.stream.Load() {
		x.sse.Feed(b)
		if x.waits != nil {
			x.waits.Feed(b)
		}
		err = x.flush()
	}
	x.writing.Store(0)
	x.lastOut.Store(now)
	x.left = err != nil
}

func (x *exchange) flush() error {
	if f, ok := x.w.(http.Flusher); ok {
		f.Flush()
		return nil
	}
	return http.NewResponseController(x.w).Flush()
}

// await follows the event stream that answers a POST, so that each of its
// requests gets a response.
func (x *exchange) await(body []byte, env *wire.Envelope) {
	for i := range env.Messages {
		if m := &env.Messages[i]; m.Request() {
			if x.waits == nil {
				x.waits = new(wire.Answers)
			}
			x.waits.Await(m.ID.Of(body))
		}
	}
}

// errUnanswered says that a stream ended as it should and left a request without
// its response.
var errUnanswered = errors.New("session: the upstream ended its answer without a result")

// finish ends a begun answer that the upstream did not end by itself, or ended
// too early: with an error event for each request without a response where the
// client can still read one, by cutting the connection otherwise, so that nobody
// takes a part for the whole. A stream whose events have ids ends as the upstream
// ended it, since the client can resume it.
func (x *exchange) finish(err error, why func(cause error) *refusal, body []byte, env *wire.Envelope) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left {
		return
	}
	cause := context.Cause(x.ctx)
	if err == nil {
		if x.waits == nil || !x.waits.Open() || x.sse.HasIDs() {
			return
		}
		err = errUnanswered
	}
	resumable := cause == nil && x.sse.HasIDs()
	if !x.stream.Load() || !x.sse.Between() || resumable {
		panic(http.ErrAbortHandler)
	}
	if env == nil {
		return // a stream that listens just ends
	}
	if cause == nil {
		cause = err
	}
	f := why(cause)
	var out []byte
	for i := range env.Messages {
		if m := &env.Messages[i]; m.Request() && (x.waits == nil || x.waits.Waits(m.ID.Of(body))) {
			out = wire.AppendEvent(out, f.render(m.ID.Of(body)))
		}
	}
	if len(out) > 0 {
		x.put(out)
	}
}

func tookTooLong(cause error, silence, longest time.Duration) string {
	if errors.Is(cause, errTooLong) {
		return fmt.Sprintf("the call took longer than maxCallSeconds (%.0f s)", longest.Seconds())
	}
	return fmt.Sprintf("it sent nothing for timeoutSeconds (%.0f s)", silence.Seconds())
}
