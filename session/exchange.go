package session

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/routing"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// Why an exchange was cancelled, besides a *loss.
var (
	errSilent  = errors.New("session: the upstream was silent for too long")
	errTooLong = errors.New("session: the call took too long")
	errStopped = errors.New("session: the gateway is stopping")
	errStuck   = errors.New("session: the client does not read")

	errTakenOver = errors.New("session: a newer stream has taken over")
)

// exchange is one request on its way through: the upstream's answer flows to
// the client while one timer watches over it. There is no goroutine of its own
// and no buffer outside a copy.
type exchange struct {
	p      *Proxy
	s      *session        // nil without a session
	ctx    context.Context // of the upstream request; its cause says why it ended
	cancel context.CancelCauseFunc
	client clientSide

	next, prev *exchange // in s.first, under s.mu

	pending  pending
	working  atomic.Bool // something is pending that a drain waits for
	inUse    atomic.Bool // something is pending that uses the lease
	answered atomic.Bool // nobody waits for more of the upstream's answer
	resumes  bool        // a GET for the rest of some stream

	silence time.Duration // longest silence of the upstream; 0 for streams that listen
	until   int64         // Proxy.now() at which the call is too long; 0 for never
	active  atomic.Int64  // Proxy.now() of the upstream's last sign of life
	paused  atomic.Int32  // while it is not zero, the upstream owes no sign of life

	ticking sync.Mutex   // one tick at a time
	keeper  lease.Keeper // of the tick under way
	timerMu sync.Mutex
	timer   *time.Timer
	stopped bool
}

// exchange prepares one; a listening stream ends with its client, and a client
// that leaves its POST has not cancelled: only what ends the exchange itself ends
// the upstream request.
func (q *request) exchange(s *session) *exchange {
	x := &exchange{p: q.p, s: s, resumes: q.r.Header.Get(upstream.HeaderLastEventID) != ""}
	x.pending.q = q
	x.client.init(q.w, q.p.epoch)
	x.client.passed = x.passed
	ctx := q.r.Context()
	if q.r.Method == http.MethodPost {
		x.silence = q.doc.Timeout
		ctx = context.WithoutCancel(ctx)
	}
	if q.doc.Transport == "stdio" {
		// Also of what does not reach the answer, such as progress for a client that
		// takes JSON only.
		ctx = routing.WithActivity(ctx, x.alive)
	}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	return x
}

// passed follows a stream that has gone by the client's side.
func (x *exchange) passed(b []byte, left bool) {
	done, asked := x.pending.feed(b)
	if done {
		x.answered.Store(true)
		x.settle()
	}
	if len(asked) > 0 && !left && x.s != nil {
		x.s.asks(x, asked)
	}
}

// settle notes that nothing is pending any more: the lease is not in use, and no
// drain waits. The stream may go on as long as its session lives.
func (x *exchange) settle() {
	if x.inUse.CompareAndSwap(true, false) {
		x.s.calls.Add(-1)
	}
	if x.working.CompareAndSwap(true, false) {
		x.p.traffic.over()
	}
}

// listens reports whether nobody but the client wants the answer.
func (x *exchange) listens() bool { return x.silence == 0 }

// alive notes a sign of life of the upstream.
func (x *exchange) alive() { x.active.Store(x.p.now()) }

// now is monotonic time since the Proxy was made.
func (p *Proxy) now() int64 { return int64(time.Since(p.epoch)) }

// watch starts the exchange's timer. l has been checked just now, or is a NOOP
// lease; nil has nothing to look after.
func (x *exchange) watch(l *lease.Lease) {
	now := x.p.now()
	x.active.Store(now)
	x.client.lastOut.Store(now)
	x.keeper = lease.NewKeeper(l, x.inUse.Load(), time.Now())
	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	x.timer = time.AfterFunc(x.due(now), x.tick)
}

// unwatch ends the timer. A tick under way finds the client out of its reach.
func (x *exchange) unwatch() {
	x.client.close()
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
	if at := x.keeper.Next(); !at.IsZero() {
		next = min(next, now+int64(time.Until(at)))
	}
	if x.waits() {
		consider(x.active.Load() + int64(x.silence))
	}
	if x.until > 0 && !x.answered.Load() {
		consider(x.until)
	}
	if x.client.stream.Load() {
		consider(x.client.lastOut.Load() + int64(keepAliveEvery))
	}
	if since := x.client.writing.Load(); since > 0 {
		consider(since + int64(stuckAfter))
	}
	return max(time.Duration(next-now), time.Millisecond)
}

// tick is what the timer runs.
func (x *exchange) tick() {
	x.ticking.Lock()
	defer x.ticking.Unlock()
	now := x.p.now()
	if since := x.client.writing.Load(); since > 0 && now-since >= int64(stuckAfter) {
		x.stop(errStuck)
	} else if x.until > 0 && !x.answered.Load() && now >= x.until {
		x.stop(errTooLong)
	} else if x.waits() && now-x.active.Load() >= int64(x.silence) {
		x.stop(errSilent)
	}
	if x.ctx.Err() == nil {
		x.keep()
	}
	x.client.keepAlive()

	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	if !x.stopped && x.ctx.Err() == nil {
		x.timer.Reset(x.due(x.p.now()))
	}
}

// stop ends the exchange and wakes a write that the client holds up.
func (x *exchange) stop(cause error) {
	x.cancel(cause)
	x.client.wake()
}

// keep touches the lease of a call, and only looks at that of a stream. A store
// that cannot be reached loses no lease, so it ends nothing.
func (x *exchange) keep() {
	if x.keeper.Lease.Noop() {
		return
	}
	ctx := context.WithoutCancel(x.ctx)
	h := x.s.hold.Load()
	x.keeper.Lease, x.keeper.Uses = h.lease, x.inUse.Load()
	err := x.keeper.Tick(ctx, time.Now())
	if err == nil {
		return
	}
	if reason, gone := lease.Lost(err); gone {
		x.p.end(ctx, x.s, h, ending{cause: leaseGone, reason: reason})
		return
	}
	x.p.opt.Log.WarnContext(ctx, "a lease in use could not be looked at", "session", x.s.number, "error", err)
}

// pause stands the clock of the upstream's silence still until resume.
func (x *exchange) pause() { x.paused.Add(1) }

func (x *exchange) resume() {
	x.paused.Add(-1)
	x.restart()
}

// waits reports whether the upstream owes a sign of life within silence: it does
// not while the client owes an answer to a request of the server's.
func (x *exchange) waits() bool {
	return x.silence > 0 && !x.answered.Load() && x.paused.Load() == 0 && (x.s == nil || x.s.owes.Load() == 0)
}

// restart has the clock of the upstream's silence begin anew.
func (x *exchange) restart() {
	x.alive()
	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	if !x.stopped && x.timer != nil && x.ctx.Err() == nil {
		x.timer.Reset(x.due(x.p.now()))
	}
}
