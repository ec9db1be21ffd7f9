package relay

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// Why an exchange was cancelled by its own watch.
var (
	ErrSilent  = errors.New("relay: the upstream was silent for too long")
	ErrTooLong = errors.New("relay: the call took too long")
	ErrStuck   = errors.New("relay: the client does not read")
)

// Owner is who an exchange belongs to.
type Owner interface {
	// ClientOwes reports whether the client has a request of the server to answer:
	// then the upstream owes no sign of life.
	ClientOwes() bool
	// Asked is told of requests of the server that go out, by wire.MatchKey.
	Asked(ids []string)
	// Settled is told when every request has had its response, or at once where the
	// client has cancelled them. It can be told again.
	Settled()
	// Kept is the lease to look after, and whether it is in use.
	Kept() (l *lease.Lease, uses bool)
	// NotKept is told of a look that failed, see lease.Keeper.
	NotKept(l *lease.Lease, err error)
}

// Config is what an Exchange begins with.
type Config struct {
	Owner  Owner
	Client http.ResponseWriter
	Epoch  time.Time // Now counts from here
	// Body and Envelope are the client's messages; nil for a stream that listens.
	Body     []byte
	Envelope *wire.Envelope
	// Silence is the longest silence of the upstream; 0 for a stream that listens,
	// which nobody but the client wants.
	Silence time.Duration
}

// Exchange is one request on its way through. Its methods may be called by many,
// but Copy and what copies.
type Exchange struct {
	owner   Owner
	epoch   time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	client  client
	pending pending

	silence  time.Duration
	until    atomic.Int64 // Now at which the call is too long; 0 for never
	active   atomic.Int64 // Now of the upstream's last sign of life
	paused   atomic.Int32 // while it is not zero, the upstream owes no sign of life
	answered atomic.Bool  // nobody waits for more of the upstream's answer

	ticking sync.Mutex   // one tick at a time
	keeper  lease.Keeper // of the tick under way
	timerMu sync.Mutex
	timer   *time.Timer
	stopped bool
}

// Init begins the exchange; the upstream request runs in Context, which ends with
// ctx or by Cancel.
func (x *Exchange) Init(ctx context.Context, c Config) {
	x.owner, x.epoch, x.silence = c.Owner, c.Epoch, c.Silence
	x.pending.body, x.pending.env = c.Body, c.Envelope
	x.client.w, x.client.epoch, x.client.passed = c.Client, c.Epoch, x.passed
	x.ctx, x.cancel = context.WithCancelCause(ctx)
}

// Context is that of the upstream request; its cause says why it ended.
func (x *Exchange) Context() context.Context { return x.ctx }

// Cancel ends the upstream request.
func (x *Exchange) Cancel(cause error) { x.cancel(cause) }

// Listens reports whether nobody but the client wants the answer.
func (x *Exchange) Listens() bool { return x.silence == 0 }

// Listen makes a stream that listens of it, before Watch.
func (x *Exchange) Listen() { x.silence = 0 }

// Limit is the longest that it may take from now on, before its responses are out.
func (x *Exchange) Limit(longest time.Duration) { x.until.Store(x.Now() + int64(longest)) }

// Alive notes a sign of life of the upstream.
func (x *Exchange) Alive() { x.active.Store(x.Now()) }

// Now is monotonic time since Config.Epoch.
func (x *Exchange) Now() int64 { return int64(time.Since(x.epoch)) }

// passed follows a stream on its way to the client.
func (x *Exchange) passed(b []byte, left bool) {
	done, asked := x.pending.feed(b)
	if done {
		x.answered.Store(true)
		x.owner.Settled()
	}
	if len(asked) > 0 && !left {
		x.owner.Asked(asked)
	}
}

// CancelRequest notes that the client has given up the request with this
// wire.MatchKey.
func (x *Exchange) CancelRequest(key string) {
	if x.pending.cancel(key) {
		x.owner.Settled()
	}
}

// Watch starts the timer. The owner's lease has been checked just now.
func (x *Exchange) Watch() {
	now := x.Now()
	x.active.Store(now)
	x.client.lastOut.Store(now)
	l, uses := x.owner.Kept()
	x.keeper = lease.NewKeeper(l, uses, time.Now())
	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	x.timer = time.AfterFunc(x.due(now), x.tick)
}

// Unwatch ends the timer. A tick under way finds the client out of its reach.
func (x *Exchange) Unwatch() {
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
func (x *Exchange) due(now int64) time.Duration {
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
	if until := x.until.Load(); until > 0 && !x.answered.Load() {
		consider(until)
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
func (x *Exchange) tick() {
	x.ticking.Lock()
	defer x.ticking.Unlock()
	now, until := x.Now(), x.until.Load()
	if since := x.client.writing.Load(); since > 0 && now-since >= int64(stuckAfter) {
		x.stop(ErrStuck)
	} else if until > 0 && !x.answered.Load() && now >= until {
		x.stop(ErrTooLong)
	} else if x.waits() && now-x.active.Load() >= int64(x.silence) {
		x.stop(ErrSilent)
	}
	if x.ctx.Err() == nil && !x.keeper.Lease.Noop() {
		x.keep()
	}
	x.client.keepAlive()

	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	if !x.stopped && x.ctx.Err() == nil {
		x.timer.Reset(x.due(x.Now()))
	}
}

// keep touches the lease of a call, and only looks at that of a stream.
func (x *Exchange) keep() {
	l, uses := x.owner.Kept()
	x.keeper.Lease, x.keeper.Uses = l, uses
	if err := x.keeper.Tick(context.WithoutCancel(x.ctx), time.Now()); err != nil {
		x.owner.NotKept(l, err)
	}
}

// stop ends the exchange and wakes a write that the client holds up.
func (x *Exchange) stop(cause error) {
	x.cancel(cause)
	x.client.wake()
}

// waits reports whether the upstream owes a sign of life within silence.
func (x *Exchange) waits() bool {
	return x.silence > 0 && !x.answered.Load() && x.paused.Load() == 0 && !x.owner.ClientOwes()
}

// Pause stands the clock of the upstream's silence still until Resume.
func (x *Exchange) Pause() { x.paused.Add(1) }

// Resume ends a Pause.
func (x *Exchange) Resume() {
	x.paused.Add(-1)
	x.Restart()
}

// Restart has the clock of the upstream's silence begin anew.
func (x *Exchange) Restart() {
	x.Alive()
	x.timerMu.Lock()
	defer x.timerMu.Unlock()
	if !x.stopped && x.timer != nil && x.ctx.Err() == nil {
		x.timer.Reset(x.due(x.Now()))
	}
}
