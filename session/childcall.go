package session

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

const (
	// childTimeout bounds the end of a child's tree.
	childTimeout = 15 * time.Second
	// defaultSlowStart is how long a stdio server may take to answer initialize
	// before the client's waiting is kept alive by an event stream. Clients that
	// give up, give up about then; a start that fails does so earlier as a rule,
	// and is then refused without a session id.
	defaultSlowStart = 4 * time.Second
	// podsKept is how long the list of living pods is good for forwarding.
	podsKept = 3 * time.Second
)

var errChildEnded = errors.New("session: the stdio server's program has ended")

func acceptsEvents(h http.Header) bool {
	for _, v := range h["Accept"] {
		if strings.Contains(v, "text/event-stream") || strings.Contains(v, "*/*") {
			return true
		}
	}
	return false
}

func (x *exchange) hasBegun() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.begun
}

func (x *exchange) hasLeft() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.left
}

// collect takes a child's messages for a POST until each of its requests is
// answered. It goes on when the client has left, as an HTTP upstream would.
func (t *turn) collect(x *exchange, c *child, b *mailbox) error {
	pending := make(map[string]bool)
	for i := range t.env.Messages {
		if m := &t.env.Messages[i]; m.Request() {
			pending[wire.IDKey(m.ID.Of(t.body.B))] = true
		}
	}
	var answers [][]byte // of a client that takes no events
	silent := time.NewTimer(keepAliveEvery)
	defer silent.Stop()
	for len(pending) > 0 {
		select {
		case message := <-b.ch:
			x.active.Store(t.p.now())
			env, err := wire.Scan(message)
			if err != nil {
				return err // it was scanned before
			}
			if m := env.One(); m.Response() {
				delete(pending, wire.Answered(pending, m.ID.Of(message)))
				if !x.stream.Load() && (!b.events || len(pending) == 0 && len(answers) == 0 && !t.env.Batch) {
					answers = append(answers, message)
					continue
				}
			}
			t.event(x, message)
		case <-silent.C:
			if b.events && !x.hasBegun() {
				t.beginEvents(x)
			}
		case <-x.ctx.Done():
			return context.Cause(x.ctx)
		case <-c.ended:
			return errChildEnded
		}
	}
	if len(answers) == 0 {
		return nil
	}
	body := answers[0]
	if t.env.Batch {
		body = append(append([]byte{'['}, bytes.Join(answers, []byte{','})...), ']')
	}
	h := t.w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.begin(http.StatusOK, false)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(body)
	return nil
}

func (t *turn) beginEvents(x *exchange) {
	h := t.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	x.begin(http.StatusOK, true)
}

// event writes one message as an event.
func (t *turn) event(x *exchange, message []byte) {
	if !x.hasBegun() {
		t.beginEvents(x)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(wire.AppendEvent(make([]byte, 0, len(message)+32), message))
}

// childFailed answers a POST that the child did not answer.
func (t *turn) childFailed(s *live, x *exchange, err error, waits bool) {
	switch {
	case t.p.isLost(x.ctx):
		t.gone(s, waits)
	case errors.Is(err, errChildEnded), errors.Is(err, stdio.ErrClosed):
		if c := s.getChild(); c != nil {
			t.p.childExited(s, c)
		}
		t.gone(s, waits)
	case errors.Is(err, stdio.ErrTooLong):
		t.refuse(upstreamDown(t.server, "the message is over the 32 MiB that a stdio server takes"))
	default:
		t.refuse(t.p.failed(x.ctx, t, err))
	}
}

// listenToChild serves GET: the messages that belong to no call.
func (t *turn) listenToChild(s *live, x *exchange) {
	c := s.getChild()
	if c == nil {
		t.gone(s, false)
		return
	}
	b := newMailbox(true)
	kept, ok := c.listen(b)
	if !ok {
		t.refuse(&refusal{status: http.StatusConflict, code: http.StatusConflict, message: "this session has a GET stream already"})
		return
	}
	defer c.leave(b)
	t.beginEvents(x)
	for _, m := range kept {
		t.event(x, m)
	}
	for {
		select {
		case m := <-b.ch:
			t.event(x, m)
			if x.hasLeft() {
				return
			}
		case <-x.ctx.Done():
			return
		case <-c.ended:
			return
		}
	}
}

// startChild starts the program of a stdio server and its reader.
func (t *turn) startChild(ctx context.Context) (*child, *refusal) {
	p := t.p
	if most := p.opt.Limits().StdioPerTenant; !p.table.addChild(t.c.Tenant, most) {
		return nil, limitReached("limits.stdioPerTenant", most)
	}
	if !p.traffic.enter(t.who, false) {
		p.table.dropChild(t.c.Tenant)
		return nil, p.shareTaken()
	}
	ctx, cancel := context.WithTimeout(ctx, t.doc.InitTimeout)
	defer cancel()
	var proc process
	env, err := t.doc.ResolvedEnv() // with the secrets of now
	if err == nil {
		proc, err = p.spawn(ctx, stdio.Command{Args: t.doc.Command, Dir: t.doc.Cwd, Env: env, Log: p.opt.Log.With("server", t.server)})
	}
	if err != nil {
		p.table.dropChild(t.c.Tenant)
		p.traffic.exit(t.who, false)
		p.opt.Log.WarnContext(ctx, "a stdio server could not be started", "server", t.server, "error", err)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, t.slowInit()
		}
		return nil, upstreamDown(t.server, "its program could not be started; the gateway's log says why")
	}
	c := newChild(proc)
	c.who = t.who
	return c, nil
}

// serveChild reads the child until it ends, and then ends its session.
func (p *Proxy) serveChild(s *live, c *child) {
	if err := c.read(); err != nil && c.ctx.Err() == nil {
		p.opt.Log.Warn("reading from a stdio server failed", "server", s.server, "session", s.number, "error", err)
	}
	p.childExited(s, c)
}

// childExited ends the session of a program that has ended by itself.
func (p *Proxy) childExited(s *live, c *child) {
	s.mu.Lock()
	current, sl := s.child == c, s.slot
	s.mu.Unlock()
	if !current || !s.close(wasLost, "", &lostCause{}) {
		return
	}
	if s.takeChild() != c {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout+releaseTimeout)
	defer cancel()
	p.closeChild(ctx, s.tenant, c)
	p.opt.Log.Warn("a stdio server's program has ended by itself", "server", s.server, "session", s.number, "error", c.proc.Err())
	p.giveBack(ctx, s, sl, false)
}

// openChild opens a session on a stdio server. listed is called when the session
// counts by itself.
func (t *turn) openChild(number Number, sl slot, listed, settled func()) {
	p := t.p
	x := &exchange{p: p, w: t.w, call: true}
	x.ctx, x.cancel = context.WithCancelCause(context.WithoutCancel(t.r.Context()))
	defer x.cancel(nil)
	c, f := t.startChild(x.ctx)
	if f != nil {
		p.release(x.ctx, sl, true)
		t.refuse(f)
		return
	}
	s := &live{
		number: number, owner: t.owner, tenant: t.c.Tenant, project: t.c.Project, server: t.server, label: labelOf(t.doc),
		opened: time.Now(), slot: sl, endpoint: endpointOf(nil), child: c,
	}
	go p.serveChild(s, c)
	id := s.seal(p)
	p.enlist(s)
	listed()
	if !s.enter(x) {
		t.gone(s, true)
		return
	}
	defer func() { s.exit(x, p.now()) }()
	x.s = s
	x.watch()
	defer x.unwatch()

	answer, f := t.initializeChild(s, x, c, t.body.B, t.env, func() {
		t.w.Header()[upstream.HeaderSession] = []string{string(id)}
		t.beginEvents(x)
	})
	if f == nil && answer != nil && s.version != "" {
		f = t.settle(x.ctx, s, sl, t.body.B)
	}
	settled()
	opened := f == nil && s.version != "" && t.r.Context().Err() == nil
	if !opened && s.close(hasEnded, "", errEnded) {
		p.closeSession(x.ctx, s, sl, t.doc, "")
	}
	if f != nil {
		answer = f.answer(t.body.B, t.env)
	}
	switch {
	case x.hasBegun():
		// The client has waited on an event stream. If this is an error, its id
		// names nothing any more.
		t.event(x, answer)
	case f != nil:
		t.refuse(f)
	default:
		h := t.w.Header()
		if opened {
			h[upstream.HeaderSession] = []string{string(id)}
		}
		h["Content-Type"] = []string{"application/json"}
		h["Content-Length"] = []string{strconv.Itoa(len(answer))}
		x.begin(http.StatusOK, false)
		x.mu.Lock()
		x.put(answer)
		x.mu.Unlock()
	}
	// Not asked whether the client is still there: one that has read its answer may
	// have left the stream.
	if opened && x.hasLeft() && s.close(hasEnded, "", errEnded) {
		p.closeSession(x.ctx, s, sl, t.doc, "")
	}
}

// initializeChild sends initialize and waits for the answer within
// initTimeoutSeconds, for the first start of a program may install it. slow is
// called once where the client should see a sign of life. It sets the session's
// version; an answer without one is the program's own refusal.
func (t *turn) initializeChild(s *live, x *exchange, c *child, init []byte, env *wire.Envelope, slow func()) ([]byte, *refusal) {
	limit := time.NewTimer(t.doc.InitTimeout)
	defer limit.Stop()
	patience := time.NewTimer(t.p.slowStart)
	defer patience.Stop()
	b := newMailbox(false)
	c.post(b, init, env, true)
	defer c.leave(b)
	ended := func() *refusal {
		return upstreamDown(t.server, "its program ended before it answered initialize; the gateway's log says why")
	}
	sending, cancel := context.WithTimeout(x.ctx, t.doc.InitTimeout)
	defer cancel()
	if err := c.proc.Send(sending, init); err != nil {
		if sending.Err() != nil && x.ctx.Err() == nil {
			return nil, t.slowInit()
		}
		return nil, ended()
	}
	for {
		select {
		case message := <-b.ch:
			var o opened
			if !o.takes(message, env.One().ID.Of(init)) {
				return nil, upstreamDown(t.server, "its answer to initialize is not a JSON-RPC result")
			}
			s.mu.Lock()
			s.version = o.version
			s.mu.Unlock()
			return message, nil
		case <-patience.C:
			if slow != nil && acceptsEvents(t.r.Header) && t.r.Context().Err() == nil {
				slow()
			}
		case <-limit.C:
			return nil, t.slowInit()
		case <-x.ctx.Done():
			var isLost *lostCause
			if errors.As(context.Cause(x.ctx), &isLost) {
				return nil, lost(http.StatusNotFound, isLost.reason)
			}
			return nil, t.p.failed(x.ctx, t, context.Cause(x.ctx))
		case <-c.ended:
			return nil, ended()
		}
	}
}

// reopenChild is reopen for a stdio server.
func (t *turn) reopenChild(ctx context.Context, s *live, sl slot, init []byte) *refusal {
	p := t.p
	env, err := wire.Scan(init)
	if err != nil {
		p.release(ctx, sl, true)
		return scanRefusal(err)
	}
	c, f := t.startChild(ctx)
	if f != nil {
		p.release(ctx, sl, true)
		return f
	}
	next := &live{number: s.number, owner: s.owner, tenant: s.tenant, server: s.server, slot: sl, child: c}
	go func() { // it is the session's child from revive on
		if err := c.read(); err != nil && c.ctx.Err() == nil {
			p.opt.Log.Warn("reading from a stdio server failed", "server", s.server, "session", s.number, "error", err)
		}
		p.childExited(s, c)
	}()
	x := &exchange{p: p, w: t.w, ctx: ctx}
	answer, f := t.initializeChild(next, x, c, init, env, nil)
	if f == nil && (answer == nil || next.version == "") {
		f = upstreamDown(t.server, "it refused to open the session again")
	}
	if f == nil {
		if err := c.proc.Send(ctx, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
			f = upstreamDown(t.server, "its program ended")
		}
	}
	if f == nil {
		f = t.settle(ctx, next, sl, init)
	}
	if f != nil {
		p.closeOpened(ctx, next, sl, t.doc, "")
		return f
	}
	s.revive(next, p)
	select {
	case <-c.ended: // before it was the session's
		p.childExited(s, c)
	default:
	}
	return nil
}

// childGone says why a stdio session is not in the pod that had it.
func (p *Proxy) childGone(ctx context.Context, st *sealed) *refusal {
	if st.Lease.Token == "" {
		return unknownSession()
	}
	reason := p.engine.lostReason(ctx, st.Lease.Token)
	if reason == "" && st.Pod != p.opt.Pod {
		reason = lease.ReasonPod
	}
	return lost(http.StatusNotFound, reason)
}

// forward takes a stdio session's request to the pod that runs its child.
func (t *turn) forward(st *sealed) *refusal {
	p := t.p
	if p.opt.Forwarder == nil {
		return p.childGone(t.r.Context(), st)
	}
	pods, err := p.livingPods(t.r.Context())
	if err != nil {
		return leaseRefusal(err)
	}
	for _, pod := range pods {
		if pod.ID != st.Pod {
			continue
		}
		var body []byte
		if t.body != nil {
			body = t.body.B
		}
		if err := p.opt.Forwarder.Forward(t.w, t.r, pod, t.c, t.server, body); err != nil {
			p.opt.Log.WarnContext(t.r.Context(), "a request could not be forwarded", "pod", pod.ID, "server", t.server, "error", err)
			return upstreamDown(t.server, "the gateway process that runs it cannot be reached; try again in about 5 s")
		}
		return nil
	}
	return p.childGone(t.r.Context(), st)
}

func (p *Proxy) livingPods(ctx context.Context) ([]lease.Pod, error) {
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	if !p.pods.at.IsZero() && time.Since(p.pods.at) < podsKept {
		return p.pods.pods, nil
	}
	pods, err := p.engine.livingPods(ctx)
	if err != nil {
		return nil, &lease.UnavailableError{Why: "the lease store could not be reached", Err: err}
	}
	p.pods.at, p.pods.pods = time.Now(), pods
	return pods, nil
}
