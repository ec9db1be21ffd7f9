package session

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/relay"
	"github.com/vancetope/mcp-lease-gateway/session/routing"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// Why an exchange was cancelled, besides a *loss and its own watch.
var (
	errStopped   = errors.New("session: the gateway is stopping")
	errTakenOver = errors.New("session: a newer stream has taken over")
)

// exchange is a client's request and the upstream's answer to it, under way. While
// a request of it has neither had its response nor been cancelled, it is at work:
// its lease is in use, and a drain waits for it.
type exchange struct {
	relay.Exchange

	p *Proxy
	s *session // nil without a session

	next, prev *exchange // in s.first, under s.mu

	uses    bool        // a message of it is a tools/call
	resumes bool        // a GET for the rest of some stream
	looks   bool        // after the session's lease
	working atomic.Bool // a drain waits for it
	inUse   atomic.Bool // its lease is in use
}

// exchange begins one. A stream that listens ends with its client, and a client
// that leaves its POST has not cancelled: only what ends the exchange itself ends
// the upstream request.
func (q *request) exchange(s *session) *exchange {
	x := &exchange{p: q.p, s: s, uses: q.uses, resumes: q.r.Header.Get(upstream.HeaderLastEventID) != ""}
	c := relay.Config{Owner: x, Client: q.w, Epoch: q.p.epoch}
	ctx := q.r.Context()
	if q.env != nil {
		c.Body, c.Envelope, c.Silence = q.body.B, q.env, q.doc.Timeout
		ctx = context.WithoutCancel(ctx)
	}
	if q.doc.PodBound() {
		// Messages of a program or an event stream are routed here: also of what does not reach the answer, such as progress for a client that
		// takes JSON only.
		ctx = routing.WithActivity(ctx, x.Alive)
	}
	x.Init(ctx, c)
	return x
}

// ClientOwes implements relay.Owner. A question on another stream of the session
// counts: some servers ask there what a call needs.
func (x *exchange) ClientOwes() bool { return x.s != nil && x.s.owes.Load() > 0 }

// Asked implements relay.Owner.
func (x *exchange) Asked(ids []string) {
	if x.s != nil {
		x.s.asks(x, ids)
	}
}

// Settled implements relay.Owner: the lease is not in use any more, and no drain
// waits. The stream may go on as long as its session lives.
func (x *exchange) Settled() {
	if x.inUse.CompareAndSwap(true, false) {
		x.s.calls.Add(-1)
	}
	if x.working.CompareAndSwap(true, false) {
		x.p.traffic.over()
	}
}

// Kept implements relay.Owner.
func (x *exchange) Kept() (l *lease.Lease, uses bool) {
	if x.s == nil || !x.looks {
		return nil, false
	}
	return x.s.hold.Load().lease, x.inUse.Load()
}

// NotKept implements relay.Owner. A store that cannot be reached loses no lease,
// so it ends nothing.
func (x *exchange) NotKept(l *lease.Lease, err error) {
	ctx := context.WithoutCancel(x.Context())
	reason, gone := lease.Lost(err)
	if !gone {
		x.p.opt.Log.WarnContext(ctx, "a lease in use could not be looked at", "session", x.s.number, "error", err)
		return
	}
	if h := x.s.hold.Load(); h.lease == l {
		x.p.end(ctx, x.s, h, ending{cause: leaseGone, reason: reason})
	}
}

// say makes the responses of an answer that ends too early.
func (v *visit) say(x *exchange) func(err error) func(m *wire.Message) []byte {
	return func(err error) func(m *wire.Message) []byte {
		var f *refusal.Refusal
		if l := lossOf(x.Context()); l != nil {
			f = v.told(l)
		} else {
			f = v.failed(x, err)
		}
		return func(m *wire.Message) []byte { return f.Respond(m, v.body.B) }
	}
}

// follow tells the session what this POST says about other exchanges: which
// requests the client gives up, and which of the server's it answers.
func (v *visit) follow() {
	for i := range v.env.Messages {
		m := &v.env.Messages[i]
		switch {
		case m.Response():
			v.s.answered(wire.MatchKey(m.ID.Of(v.body.B)))
		case m.Method == "notifications/cancelled":
			var params struct {
				RequestID json.RawMessage `json:"requestId"`
			}
			if json.Unmarshal(m.Params.Of(v.body.B), &params) == nil && len(params.RequestID) > 0 {
				v.s.cancelled(wire.MatchKey(params.RequestID))
			}
		}
	}
}
