package session

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// orphanKept is how long an upstream is still listened to that has not answered
// initialize within its initTimeoutSeconds.
const orphanKept = time.Minute

// reply is what a request to an upstream came to.
type reply struct {
	resp *http.Response
	err  error
}

// sendInitialize sends an initialize within ctx. The request itself goes on when
// ctx ends: a slow upstream does not notice that nobody waits any more, and the
// session that it then opens has an id that only its answer tells. So that answer
// is waited for out of the client's sight, and the session ended.
func (o *opening) sendInitialize(ctx context.Context, u upstreamRequest) (*http.Response, error) {
	q, p := o.q, o.q.p
	up, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	got := make(chan reply, 1)
	body := u.body.Reader() // the client's request may be over, and its body free, before this one is
	go func() {
		defer func() { _ = body.Close() }()
		resp, err := p.send(up, u)
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
		placed := p.traffic.enter(q.share, false)
		if !placed || !p.orphans.listen(cancel, func() {
			defer p.traffic.exit(q.share, false)
			o.endOrphan(up, u, got)
		}) {
			if placed {
				p.traffic.exit(q.share, false)
			}
			cancel(errInitTimeout)
			go func() { (<-got).drop() }()
		}
		return nil, context.Cause(ctx)
	}
}

// endOrphan ends the session that a late answer to initialize names.
func (o *opening) endOrphan(ctx context.Context, u upstreamRequest, got <-chan reply) {
	q := o.q
	r := <-got
	defer r.drop()
	if r.err != nil {
		return
	}
	id := upstream.SessionID(r.resp.Header.Get(upstream.HeaderSession))
	if id == "" || !id.Valid() {
		return
	}
	q.p.opt.Log.WarnContext(ctx, "an upstream has answered initialize too late; the session that it opened is ended", "server", q.server)
	q.p.endUpstream(ctx, scope{}, &hold{upstream: id}, ending{doc: u.doc, authorization: u.authorization})
}

func (r reply) drop() {
	if r.err == nil {
		_ = r.resp.Body.Close()
	}
}

// orphans are the initializes that are listened to beyond their time, since the
// sessions that they open are nobody's.
type orphans struct {
	mu      sync.Mutex
	stopped bool
	next    int
	cancels map[int]context.CancelCauseFunc
	running sync.WaitGroup
}

// listen runs wait, for which the request that cancel ends has orphanKept; false
// where the pod is stopping.
func (o *orphans) listen(cancel context.CancelCauseFunc, wait func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		return false
	}
	n := o.next
	o.next++
	if o.cancels == nil {
		o.cancels = make(map[int]context.CancelCauseFunc)
	}
	o.cancels[n] = cancel
	o.running.Go(func() {
		limit := time.AfterFunc(orphanKept, func() { cancel(errInitTimeout) })
		wait()
		limit.Stop()
		cancel(nil)
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.cancels, n)
	})
	return true
}

// stop gives the requests up that are still without an answer, and waits for the
// ends of sessions that are under way.
func (o *orphans) stop() {
	o.mu.Lock()
	o.stopped = true
	for _, cancel := range o.cancels {
		cancel(errStopped)
	}
	o.mu.Unlock()
	o.running.Wait()
}
