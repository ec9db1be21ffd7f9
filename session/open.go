package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// open serves initialize: acquire → initialize upstream → payload → answer.
// Whatever fails after the acquire gives the lease back at once and ends an
// upstream session that was opened; so does a client that is gone before the
// answer.
func (t *turn) open() {
	p := t.p
	if p.draining.Load() {
		t.refuse(stopping())
		return
	}
	if !p.traffic.enter(t.who, true) {
		t.refuse(p.shareTaken())
		return
	}
	defer p.traffic.exit(t.who, true)
	if most := p.opt.Limits().PerPrincipal; !p.table.book(t.owner, most) {
		t.refuse(limitReached("limits.perPrincipal", most))
		return
	}
	// The place is kept until the session counts by itself, or is not opened.
	unbook := sync.OnceFunc(func() { p.table.unbook(t.owner) })
	defer unbook()

	number := newNumber()
	sl, f := t.acquire(t.r.Context(), number, t.body.B)
	if f != nil {
		t.refuse(f)
		return
	}
	opened := p.keepOpening(t.r.Context(), sl)
	defer opened()
	if t.doc.Transport == "stdio" {
		t.openChild(number, sl, unbook, opened)
		return
	}

	x := &exchange{p: p, w: t.w, call: true, silence: t.doc.Timeout}
	// Not the client's context: an initialize that is cancelled on its way may
	// leave a session upstream whose id nobody here has read.
	x.ctx, x.cancel = context.WithCancelCause(context.WithoutCancel(t.r.Context()))
	defer x.cancel(nil)
	o, f := t.initialize(x.ctx, x.cancel, t.body, t.r.Header)
	if f != nil {
		p.giveBackUnopened(x.ctx, sl)
		t.refuse(f)
		return
	}
	defer func() { _ = o.body.Close() }()
	s := &live{
		number: number, owner: t.owner, tenant: t.c.Tenant, project: t.c.Project, server: t.server, label: labelOf(t.doc),
		opened: time.Now(), slot: sl, upstream: o.session, version: o.version, endpoint: endpointOf(t.doc.URL),
	}
	if o.refused {
		// The upstream's own refusal passes unchanged, without a session.
		p.closeOpened(x.ctx, s, sl, t.doc, t.c.Authorization.Reveal())
		t.relayOpened(x, o)
		return
	}
	if f := t.settle(x.ctx, s, sl, t.body.B); f != nil {
		p.closeOpened(x.ctx, s, sl, t.doc, t.c.Authorization.Reveal())
		t.refuse(f)
		return
	}
	opened()
	id := s.seal(p)
	p.enlist(s)
	unbook()
	x.s = s
	if !s.enter(x) { // revoked already
		t.gone(s, true)
		return
	}
	defer func() { s.exit(x, p.now()) }()
	if t.r.Context().Err() == nil {
		t.w.Header()[upstream.HeaderSession] = []string{string(id)}
		x.watch()
		defer x.unwatch()
		if t.relayOpened(x, o) {
			return
		}
	}
	// The client is gone and has not read its id: nobody can use the session.
	if s.close(hasEnded, "", errEnded) {
		p.closeSession(x.ctx, s, sl, t.doc, t.c.Authorization.Reveal())
	}
}

// keepOpening touches a lease while its session is being opened, until the
// returned function is called: the first start of a program can take longer than
// the lease's TTL. A loss is found when the session is settled.
func (p *Proxy) keepOpening(ctx context.Context, sl slot) (opened func()) {
	every := lookEvery(sl)
	if every == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if err := sl.Check(ctx); err != nil && ctx.Err() == nil {
				p.opt.Log.WarnContext(ctx, "the lease of a session that is being opened could not be touched", "error", err)
			}
		}
	}()
	return cancel
}

// seal makes the id of a session from its state.
func (s *live) seal(p *Proxy) ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := sealed{Number: s.number, Owner: s.owner, Endpoint: s.endpoint, Opened: s.opened, Lease: s.slot.Ref(), Upstream: s.upstream, Version: s.version}
	if s.child != nil {
		st.Pod = p.opt.Pod
	}
	if len(s.upstream) > maxSealedUpstream && !s.slot.Noop() {
		st.Upstream, st.InPayload = "", true
	}
	return st.seal(p.ids, route(s.tenant, s.project, s.server))
}

// definition resolves the lease of the server's document; nil for none.
func (t *turn) definition(ctx context.Context) (*definition.Definition, error) {
	switch {
	case t.doc.Inline != nil:
		return t.doc.Inline, nil
	case t.doc.Lease == "" || t.doc.Lease == "none":
		return nil, nil
	}
	d, err := t.p.opt.Definitions.Resolve(ctx, t.c.Tenant, t.c.Project, t.doc.Lease)
	if err == nil {
		return d, nil
	}
	un := &lease.UnavailableError{Why: "the definition of the lease " + t.doc.Lease + " could not be read", Err: err}
	var wrong *definition.Error
	if errors.As(err, &wrong) {
		un.Why, un.Permanent = wrong.Client(), !wrong.Transient
	}
	return nil, un
}

// acquire takes the session's lease, with what onBusy allows.
func (t *turn) acquire(ctx context.Context, n Number, init []byte) (slot, *refusal) {
	p := t.p
	def, err := t.definition(ctx)
	if err != nil {
		p.opt.Log.WarnContext(ctx, "lease definition refused", "tenant", t.c.Tenant, "project", t.c.Project, "server", t.server, "error", err)
		return nil, leaseRefusal(err)
	}
	req := lease.Request{
		Type: HandlerType, Definition: def, Tenant: t.c.Tenant, Project: t.c.Project, User: t.c.User,
		HolderRef: t.server + " session " + n.String(), PodBound: t.doc.Transport == "stdio",
		Payload: p.payload(n, t.owner, t.doc, init, t.c.Authorization.Reveal()),
		MaxWait: p.opt.Session.OpenWait,
	}
	if req.MaxWait == 0 {
		req.MaxWait = lease.NoWait
	}
	if t.doc.OnBusy == "replaceOwn" && !def.Noop() {
		first := req
		first.MaxWait = lease.NoWait
		sl, err := p.engine.acquire(ctx, first)
		if err == nil {
			return sl, nil
		}
		var busy *lease.BusyError
		if !errors.As(err, &busy) {
			return nil, leaseRefusal(err)
		}
		t.replaceOwn(ctx)
	}
	sl, err := p.engine.acquire(ctx, req)
	if err != nil {
		var un *lease.UnavailableError
		if errors.As(err, &un) && ctx.Err() == nil {
			// The client is told that the store is out of reach, the operator why.
			p.opt.Log.WarnContext(ctx, "a lease could not be taken", "server", t.server, "error", err)
		}
		return nil, leaseRefusal(err)
	}
	return sl, nil
}

// settle writes what a revocation needs into the holder.
func (t *turn) settle(ctx context.Context, s *live, sl slot, init []byte) *refusal {
	if t.c.OnLost == onLostReopen && len(init) <= maxKeptInit {
		s.init = bytes.Clone(init)
	}
	s.lastUse.Store(t.p.now())
	s.forward = fingerprint(t.c.Authorization.Reveal())
	if sl.Noop() {
		return nil
	}
	pl := t.p.payload(s.number, t.owner, t.doc, init, t.c.Authorization.Reveal())
	pl[paySession], pl[payProtocol] = string(s.upstream), s.version
	err := sl.UpdatePayload(ctx, pl)
	if err == nil {
		return nil
	}
	if reason, isLost := lostLease(err); isLost {
		f := lost(http.StatusOK, reason)
		f.message = (&lease.LostError{Reason: reason}).Error() + " while the session was being opened; try again"
		return f
	}
	t.p.opt.Log.WarnContext(ctx, "a session's payload could not be written", "session", s.number, "error", err)
	return leaseRefusal(err)
}

// opened is an upstream's answer to initialize.
type opened struct {
	resp    *http.Response
	raw     []byte // what has been read of the body
	rest    io.Reader
	body    io.Closer
	session upstream.SessionID
	version string
	refused bool // a JSON-RPC error
}

// maxInitAnswer bounds an answer to initialize, which is read before it is
// passed on: no header may go out before it is known to be a success.
const maxInitAnswer = 4 << 20

// slowInit refuses an open whose upstream took longer than its document allows.
func (t *turn) slowInit() *refusal {
	return upstreamDown(t.server, fmt.Sprintf("it did not answer initialize within initTimeoutSeconds (%.0f s)", t.doc.InitTimeout.Seconds()))
}

// initialize opens the upstream session within initTimeoutSeconds.
func (t *turn) initialize(ctx context.Context, cancel context.CancelCauseFunc, init *wire.Buffer, header http.Header) (*opened, *refusal) {
	p := t.p
	timer := time.AfterFunc(t.doc.InitTimeout, func() { cancel(errInitTimeout) })
	defer timer.Stop()
	fail := func(err error) *refusal {
		if errors.Is(context.Cause(ctx), errInitTimeout) {
			return t.slowInit()
		}
		return p.failed(ctx, t, err)
	}
	resp, err := t.sendInitialize(ctx, leg{doc: t.doc, method: http.MethodPost, header: header, caller: t.c.Authorization.Reveal(), body: init})
	if err != nil {
		return nil, fail(err)
	}
	o := &opened{resp: resp, body: resp.Body, session: upstream.SessionID(resp.Header.Get(upstream.HeaderSession))}
	refuse := func(f *refusal) (*opened, *refusal) {
		_ = resp.Body.Close()
		if o.session.Valid() {
			// It opened a session and said something else than its result, whatever the
			// status: an id that it names is one that it keeps.
			p.endUpstream(ctx, t.doc, o.session, o.version, t.c.Authorization.Reveal())
		}
		return nil, f
	}
	if why := unusable(resp, t.doc.Auth.Type == "forward", true); why != "" {
		return refuse(upstreamDown(t.server, why))
	}
	if resp.StatusCode >= 400 && kindOf(resp.Header) != jsonBody {
		return refuse(upstreamDown(t.server, fmt.Sprintf("it answered HTTP %d", resp.StatusCode)))
	}
	if !o.session.Valid() {
		return refuse(upstreamDown(t.server, "its session id is not visible ASCII of at most 16 KiB"))
	}
	env, err := wire.Scan(init.B)
	if err != nil {
		return refuse(scanRefusal(err))
	}
	err = o.read(env.One().ID.Of(init.B))
	switch {
	case err == nil:
	case errors.Is(err, errNoResult), errors.Is(err, wire.ErrEventTooLarge):
		return refuse(upstreamDown(t.server, "its answer to initialize is not a JSON-RPC result"))
	default:
		return refuse(fail(err))
	}
	if resp.StatusCode >= 300 && !o.refused {
		return refuse(upstreamDown(t.server, fmt.Sprintf("it answered HTTP %d", resp.StatusCode)))
	}
	return o, nil
}

var (
	errNoResult    = errors.New("session: not a result of initialize")
	errInitTimeout = errors.New("session: initialize took too long")
)

// read reads the answer up to the message that answers id.
func (o *opened) read(id []byte) error {
	if kindOf(o.resp.Header) == jsonBody {
		b, err := io.ReadAll(io.LimitReader(o.resp.Body, maxInitAnswer+1))
		if err != nil {
			return err
		}
		if len(b) > maxInitAnswer {
			return errNoResult
		}
		o.raw, o.rest = b, ended{io.EOF}
		if !o.takes(b, id) {
			return errNoResult
		}
		return nil
	}
	events := wire.NewEventReader(o.resp.Body, maxInitAnswer)
	for {
		ev, err := events.Next()
		if errors.Is(err, io.EOF) {
			return errNoResult
		}
		if err != nil {
			return err
		}
		o.raw = append(o.raw, ev.Raw...)
		if len(o.raw) > maxInitAnswer {
			return errNoResult
		}
		if o.takes(ev.Data, id) {
			o.rest = events.Rest()
			return nil
		}
	}
}

// takes notes the result if the message answers id.
func (o *opened) takes(message, id []byte) bool {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
		Result *struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(message, &m) != nil || m.Method != nil {
		return false
	}
	if m.Error != nil && (string(m.ID) == "null" || m.ID == nil || wire.AnswersID(id, m.ID)) {
		o.refused = true
		return true
	}
	if m.Result == nil || !wire.AnswersID(id, m.ID) || m.Result.ProtocolVersion == "" || len(m.Result.ProtocolVersion) > 64 {
		return false
	}
	o.version = m.Result.ProtocolVersion
	return true
}

// relayOpened passes the answer to initialize on, and reports whether the client
// was still there when the result had gone out. One that leaves the rest of a
// stream after that has its session.
func (t *turn) relayOpened(x *exchange, o *opened) (delivered bool) {
	stream := kindOf(o.resp.Header) == eventStream
	answerHeader(t.w, o.resp, stream)
	if !stream {
		t.w.Header()["Content-Length"] = []string{strconv.Itoa(len(o.raw))}
	}
	x.begin(o.resp.StatusCode, stream)
	// Asked before the result goes out: a client that has read it may leave the
	// stream before this goroutine gets to ask.
	there := t.r.Context().Err() == nil
	x.mu.Lock()
	x.put(o.raw)
	delivered = there && !x.left
	x.mu.Unlock()
	err := x.relay(o.rest)
	// The result has gone out, so an end from here on needs no words.
	x.finish(err, nil, nil, nil)
	return delivered
}
