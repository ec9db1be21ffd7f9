package session

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// lateAnswer is how long an upstream is still listened to that has not answered
// initialize within its initTimeoutSeconds.
const lateAnswer = time.Minute

// reply is what a request to an upstream came to.
type reply struct {
	resp *http.Response
	err  error
}

// sendInitialize sends an initialize within ctx. The request itself goes on when
// ctx ends: a slow upstream does not notice that nobody waits any more, and the
// session that it then opens has an id that only its answer tells. So that answer
// is waited for out of the client's sight, and the session ended.
func (t *turn) sendInitialize(ctx context.Context, l leg) (*http.Response, error) {
	p := t.p
	up, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	got := make(chan reply, 1)
	hold := l.body.Reader() // the client's turn may be over, and its body free, before the request is
	go func() {
		defer func() { _ = hold.Close() }()
		resp, err := p.send(up, l)
		got <- reply{resp, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			cancel(nil)
			return nil, r.err
		}
		// In time: what is left of the answer ends with ctx.
		context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
		return r.resp, nil
	case <-ctx.Done():
		// Not for ever, and not for as many as somebody likes: it has its place among
		// what its caller has under way.
		placed := p.traffic.enter(t.who, false)
		if !placed || !p.late.listen(cancel, func() {
			defer p.traffic.exit(t.who, false)
			t.endLate(up, l, got)
		}) {
			if placed {
				p.traffic.exit(t.who, false)
			}
			cancel(errInitTimeout)
			go func() { (<-got).drop() }()
		}
		return nil, context.Cause(ctx)
	}
}

// endLate ends the session that a late answer to initialize names.
func (t *turn) endLate(ctx context.Context, l leg, got <-chan reply) {
	r := <-got
	defer r.drop()
	if r.err != nil {
		return
	}
	id := upstream.SessionID(r.resp.Header.Get(upstream.HeaderSession))
	if id == "" || !id.Valid() {
		return
	}
	t.p.opt.Log.WarnContext(ctx, "an upstream has answered initialize too late; the session that it opened is ended", "server", t.server)
	t.p.endUpstream(ctx, l.doc, id, "", l.caller)
}

func (r reply) drop() {
	if r.err == nil {
		_ = r.resp.Body.Close()
	}
}

// latecomers are the initializes that are listened to beyond their time.
type latecomers struct {
	mu      sync.Mutex
	stopped bool
	next    int
	cancels map[int]context.CancelCauseFunc
	running sync.WaitGroup
}

// listen runs wait, for which the request that cancel ends has lateAnswer; false
// where the pod is stopping.
func (l *latecomers) listen(cancel context.CancelCauseFunc, wait func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	n := l.next
	l.next++
	if l.cancels == nil {
		l.cancels = make(map[int]context.CancelCauseFunc)
	}
	l.cancels[n] = cancel
	l.running.Go(func() {
		limit := time.AfterFunc(lateAnswer, func() { cancel(errInitTimeout) })
		wait()
		limit.Stop()
		cancel(nil)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.cancels, n)
	})
	return true
}

// stop gives the requests up that are still without an answer, and waits for the
// ends of sessions that are under way.
func (l *latecomers) stop() {
	l.mu.Lock()
	l.stopped = true
	for _, cancel := range l.cancels {
		cancel(errStopped)
	}
	l.mu.Unlock()
	l.running.Wait()
}
