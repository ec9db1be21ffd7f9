package texproxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// An upload whose rest will be here in a moment runs ahead: its slot is taken
// already and its bytes go up as they come, so that the way up does not begin
// when the way here has ended. It has one try, and whatever is in the way ends
// that try without a trace: the upload goes on, and the submit follows when it is
// whole.
//
//	arriving ──► whole       the rest has come: an ordinary submit from here on
//	    ├──────► answered    the service has answered before it had all
//	    └──────► abandoned   the rest stood still, or broke off
//
// Only a whole upload gives out its last byte, so a service has nothing to
// compile from one that was abandoned, and no client holds a slot by being slow.

// leading says when an upload runs ahead.
type leading struct {
	from   int64         // bytes that are here by then, and that are still to come
	within time.Duration // at the pace so far, the rest takes no longer
	atMost time.Duration // longest that an upload which is not whole has a slot
}

var usualLeading = leading{from: 1 << 20, within: time.Second, atMost: 2 * time.Second}

// promises reports whether the rest of an upload will be here soon.
func (l leading) promises(here, length int64, took time.Duration) bool {
	rest := length - here
	return here >= l.from && rest >= l.from && float64(rest)*float64(took) <= float64(here)*float64(l.within)
}

var errAbandoned = errors.New("the rest of the upload is not here in time")

type phase int

const (
	arriving phase = iota
	whole
	answered
	abandoned
)

// lead is the early try of one upload. A nil lead is that of an upload that has
// none.
type lead struct {
	leading
	length int64
	start  time.Time
	try    func(context.Context, *lead) (tell func())
	ctx    context.Context // of the try
	cancel context.CancelCauseFunc
	ended  chan struct{} // nil before the try; closed after it
	tell   func()        // what has become of it; nil for nothing

	up *upload // since the try

	mu    sync.Mutex
	grown sync.Cond
	phase phase
	here  int64 // bytes of the upload that can be read
}

// newLead makes the lead of a request whose upload has a known length.
func (q *request) newLead() *lead {
	if q.r.ContentLength < 2*q.leading.from {
		return nil
	}
	l := &lead{leading: q.leading, length: q.r.ContentLength, start: time.Now(), try: q.runAhead}
	l.grown.L = &l.mu
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(q.r.Context()))
	return l
}

// runAhead takes a slot without waiting and submits the upload while it comes.
func (q *request) runAhead(ctx context.Context, l *lead) (tell func()) {
	d, err := q.definition(ctx)
	switch {
	case err != nil && !retryable(err):
		return func() { q.refused(err) } // to ask again would make two refusals of one
	case err != nil:
		return nil
	}
	sl, err := q.acquire(ctx, d, lease.Request{Payload: q.unnamed(), Trial: true})
	if err != nil {
		return nil
	}
	late := time.AfterFunc(l.atMost, func() {
		if l.abandon() {
			q.log().Info("an upload that ran ahead stands still; its slot is given back until it is here")
		}
	})
	defer late.Stop()
	return q.send(ctx, sl, l)
}

// reached is told by the one who reads the upload how much of it is here. It
// begins the try when the time has come.
func (l *lead) reached(u *upload) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.here = u.n
	if l.here == l.length && l.phase == arriving {
		l.phase = whole
	}
	l.grown.Broadcast()
	l.mu.Unlock()
	if l.ended == nil && l.promises(u.n, l.length, time.Since(l.start)) {
		l.up, l.ended = u, make(chan struct{})
		u.hold()
		go func() {
			defer close(l.ended)
			defer u.drop()
			l.tell = l.try(l.ctx, l)
		}()
	}
}

// pool is where the one who reads the upload has its buffers from.
func (l *lead) pool() *sync.Pool {
	if l == nil || l.ended == nil {
		return &buffers
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == abandoned {
		return &buffers
	}
	return &pieces
}

// abandon ends the try of an upload that is not whole, and reports whether it
// was this call that did.
func (l *lead) abandon() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != arriving {
		return false
	}
	l.phase = abandoned
	l.grown.Broadcast()
	l.cancel(errAbandoned)
	return true
}

// outcome waits for the try, which no longer depends on the client, and returns
// how to tell the client what has become of it: nil where nothing has, and the
// submit is still to be made.
func (l *lead) outcome() (tell func()) {
	if l == nil || l.ended == nil {
		return nil
	}
	<-l.ended
	return l.tell
}

// close ends what the try has left open. No tell may be called after it.
func (l *lead) close() {
	if l != nil {
		l.cancel(nil)
	}
}

func (l *lead) size() int64 { return l.length }

func (l *lead) complete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase == whole
}

// settle makes the service's answer the one that counts. It is too late for that
// once the upload has been abandoned.
func (l *lead) settle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == arriving {
		l.phase = answered
	}
	return l.phase != abandoned
}

// open returns the upload from its start; its reads wait for what is to come,
// until ctx ends.
func (l *lead) open(ctx context.Context) io.ReadCloser {
	l.up.hold()
	t := &tail{reader: reader{upload: l.up}, lead: l, ctx: ctx}
	t.stop = context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.grown.Broadcast()
	})
	return t
}

// tail reads an upload behind the one who writes it.
type tail struct {
	reader
	lead *lead
	ctx  context.Context
	stop func() bool
}

// Read returns no less than b takes, where that will come: to follow each packet
// of the client would cost more than it brings forward.
func (t *tail) Read(b []byte) (int, error) {
	end := min(t.at+int64(len(b)), t.lead.length)
	if err := t.lead.await(t.ctx, end); err != nil {
		return 0, err
	}
	return t.read(b, end)
}

// await returns when end bytes are here, or never will be.
func (l *lead) await(ctx context.Context, end int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.here < end && l.phase != abandoned && ctx.Err() == nil {
		l.grown.Wait()
	}
	if l.phase == abandoned {
		return errAbandoned
	}
	return context.Cause(ctx)
}

func (t *tail) Close() error {
	t.stop()
	return t.reader.Close()
}
