package session

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Why an exchange was cancelled, besides a *loss.
var (
	errSilent  = errors.New("session: the upstream was silent for too long")
	errTooLong = errors.New("session: the call took too long")
	errStopped = errors.New("session: the gateway is stopping")
	errStuck   = errors.New("session: the client does not read")
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

	uses    bool          // a tools/call: its lease is in use
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
	x := &exchange{p: q.p, s: s}
	x.client.init(q.w, q.p.epoch)
	ctx := q.r.Context()
	if q.r.Method == http.MethodPost {
		x.silence = q.doc.Timeout
		ctx = context.WithoutCancel(ctx)
	}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	return x
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
	x.keeper = lease.NewKeeper(l, x.uses, time.Now())
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
	if x.silence > 0 && x.paused.Load() == 0 {
		consider(x.active.Load() + int64(x.silence))
	}
	if x.until > 0 {
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
	} else if x.until > 0 && now >= x.until {
		x.stop(errTooLong)
	} else if x.silence > 0 && x.paused.Load() == 0 && now-x.active.Load() >= int64(x.silence) {
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
	x.keeper.Lease = h.lease
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
	x.alive()
	x.paused.Add(-1)
	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	if !x.stopped && x.timer != nil && x.ctx.Err() == nil {
		x.timer.Reset(x.due(x.p.now()))
	}
}
