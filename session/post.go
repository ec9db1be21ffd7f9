package session

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// message takes one POST of a session up and its answer down: the hot path.
func (t *turn) message(s *live) {
	p := t.p
	waits, uses := false, false
	for i := range t.env.Messages {
		m := &t.env.Messages[i]
		waits = waits || m.Request()
		// Also without an id: servers exist that do what such a notification says.
		uses = uses || m.Method == "tools/call"
	}
	if !p.traffic.enter(t.who, true) {
		t.refuse(p.shareTaken())
		return
	}
	defer p.traffic.exit(t.who, true)

	x := &exchange{p: p, s: s, w: t.w, uses: uses, call: true, silence: t.doc.Timeout}
	// A client that leaves its POST has not cancelled: only what ends the
	// exchange itself ends the upstream request.
	x.ctx, x.cancel = context.WithCancelCause(context.WithoutCancel(t.r.Context()))
	defer x.cancel(nil)
	if !t.enter(s, x, waits) {
		return
	}
	defer func() { s.exit(x, p.now()) }()

	if f := t.check(x.ctx, s, uses); f == errLost {
		t.gone(s, waits)
		return
	} else if f != nil {
		t.refuse(f)
		return
	}
	sl, upID, version := s.held()
	if uses {
		x.look = lookEvery(sl)
	}
	if t.doc.MaxCall > 0 {
		x.until = p.now() + int64(t.doc.MaxCall)
	}
	x.watch()
	defer x.unwatch()

	if t.doc.Transport == "stdio" { // by the document: the child itself may be ending just now
		t.relayChild(s, x, waits)
		return
	}
	t.rememberCaller(x.ctx, s, sl)
	resp, err := p.send(x.ctx, leg{doc: t.doc, method: http.MethodPost, header: t.r.Header, caller: t.c.Authorization.Reveal(),
		body: t.body, session: upID, version: version})
	if err != nil {
		if p.isLost(x.ctx) {
			t.gone(s, waits)
			return
		}
		t.refuse(p.failed(x.ctx, t, err))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	x.active.Store(p.now())
	t.answer(s, x, resp, waits)
}

// errLost stands for a loss that check has found and dealt with.
var errLost = &refusal{}

// check asks the store before a use (spec §3). A tools/call touches the lease;
// other messages only look, and go on where the store cannot be reached: they
// are no use of the resource.
func (t *turn) check(ctx context.Context, s *live, uses bool) *refusal {
	sl, _, _ := s.held()
	err := look(ctx, sl, uses)
	if err == nil {
		return nil
	}
	if reason, isLost := lostLease(err); isLost {
		if !t.successor(ctx, s, sl) {
			t.p.lose(ctx, s, sl, reason)
			return errLost
		}
		sl, _, _ = s.held()
		if err = look(ctx, sl, uses); err == nil {
			return nil
		}
		if reason, isLost := lostLease(err); isLost {
			t.p.lose(ctx, s, sl, reason)
			return errLost
		}
	}
	if !uses {
		return nil
	}
	t.p.opt.Log.WarnContext(ctx, "a lease could not be checked", "session", s.number, "error", err)
	return leaseRefusal(err)
}

// look is one store call: a touch for a use, a look otherwise.
func look(ctx context.Context, sl slot, uses bool) error {
	if uses {
		return sl.Check(ctx)
	}
	return sl.Peek(ctx)
}

func (p *Proxy) isLost(ctx context.Context) bool {
	var cause *lostCause
	return errors.As(context.Cause(ctx), &cause)
}

// answer relays the upstream's answer to a POST.
func (t *turn) answer(s *live, x *exchange, resp *http.Response, waits bool) {
	p := t.p
	status := resp.StatusCode
	if s.upstreamSession() != "" && (status == http.StatusNotFound || status == http.StatusGone || status == http.StatusBadRequest) {
		prefix, whole := upstream.Peek(resp.Body)
		resp.Body = whole
		if upstream.Gone(status, prefix) {
			t.upstreamGone(x.ctx, s)
			t.gone(s, waits)
			return
		}
	}
	if why := unusable(resp, t.doc.Auth.Type == "forward", waits); why != "" {
		upstream.Drain(resp.Body)
		t.refuse(upstreamDown(t.server, why))
		return
	}
	k := kindOf(resp.Header)
	if status < 300 && !waits || status == http.StatusAccepted || status == http.StatusNoContent {
		// 202 is the answer to a notification whatever 2xx the upstream chose.
		upstream.Drain(resp.Body)
		upstream.CopyResponseHeader(t.w.Header(), resp.Header)
		t.w.Header().Del("Content-Type")
		t.w.WriteHeader(http.StatusAccepted)
		return
	}
	c := x.copy(resp.Body, resp.ContentLength)
	defer c.free()
	if k == eventStream {
		x.await(t.body.B, t.env)
	} else {
		// The last chance to refuse in words; after it the answer has begun.
		held, broke := c.fill()
		switch {
		case broke != nil && p.isLost(x.ctx):
			t.gone(s, waits)
			return
		case broke != nil:
			t.refuse(p.failed(x.ctx, t, broke))
			return
		case k == jsonBody && status < 300 && !begins(held):
			t.refuse(upstreamDown(t.server, "its answer is not a JSON-RPC message"))
			return
		}
	}
	answerHeader(t.w, resp, k == eventStream)
	x.begin(status, k == eventStream)
	err := c.run()
	x.finish(err, func(cause error) *refusal {
		var isLost *lostCause
		if errors.As(cause, &isLost) {
			return lost(http.StatusOK, isLost.reason)
		}
		return p.failed(x.ctx, t, cause)
	}, t.body.B, t.env)
}

// begins reports whether b can be the beginning of a JSON-RPC message.
func begins(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && (b[0] == '{' || b[0] == '[')
}

// ended is a reader at its end.
type ended struct{ err error }

func (e ended) Read([]byte) (int, error) { return 0, e.err }

func (s *live) upstreamSession() upstream.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.upstream
}

// rememberCaller keeps the credential that a session with auth forward last
// used in the payload, sealed, so that any pod can send the DELETE with it.
func (t *turn) rememberCaller(ctx context.Context, s *live, sl slot) {
	caller := t.c.Authorization.Reveal()
	if t.doc.Auth.Type != "forward" || caller == "" || sl.Noop() {
		return
	}
	print := fingerprint(caller)
	s.mu.Lock()
	same := s.forward == print
	s.forward = print
	s.mu.Unlock()
	if same {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	h, err := t.p.holder(ctx, lease.Filter{Token: sl.Ref().Token})
	if err == nil && h != nil {
		if t.p.keptCaller(h.Payload) == caller {
			return
		}
		h.Payload[payForward] = t.p.kept.Seal([]byte(caller), []byte(s.number.key()))
		err = sl.UpdatePayload(ctx, h.Payload)
	}
	if err != nil {
		// The older credential stays; the next request tries again.
		s.mu.Lock()
		s.forward = 0
		s.mu.Unlock()
		t.p.opt.Log.WarnContext(ctx, "a session's credential could not be kept", "session", s.number, "error", err)
	}
}
