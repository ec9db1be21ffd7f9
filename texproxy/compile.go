package texproxy

import (
	"context"
	"errors"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// compile serves a submit in sync mode: one request is one compile and holds a
// lease from the end of its upload to the head of the service's answer. Such a
// service answers when it has compiled, so what is then left of the answer needs
// no slot, however slowly the client reads it.
//
// The service goes on compiling when its client leaves, or when this process
// dies: the request goes on without its client, and the lease is not bound to the
// pod. It is the service's compile that its TTL counts, and its handler cancels.
func (q *request) compile() (*answer, error) {
	body, err := q.upload()
	if err != nil {
		return nil, err
	}
	defer body.drop()
	if err := q.mayUseName(); err != nil {
		return nil, err
	}
	l, err := q.acquire(q.r.Context(), lease.Request{Payload: q.compilePayload()})
	if err != nil {
		return nil, err
	}
	ctx := q.r.Context()
	if !l.Noop() {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, use := q.p.uses.begin(ctx, l.Lease)
	c := q.call(body)
	c.within = q.s.HoldMax
	a, sent, err := q.p.exchange(ctx, q.s, c)
	use.settle()
	if err != nil {
		return nil, q.notCompiled(ctx, l, sent, err)
	}
	q.p.giveBack(l.Lease)
	return q.bound(a)
}

// compilePayload is what any pod needs to cancel the compile.
func (q *request) compilePayload() lease.Payload {
	payload := lease.Payload{payloadService: q.s.Name}
	for name, v := range q.m.values {
		payload[payloadValue+name] = v
	}
	return payload
}

// notCompiled decides what becomes of the slot when there is no answer. A service
// that is silent for longer than its timeout has the document and may be
// compiling it still; at hold.max the slot is given back in any case.
func (q *request) notCompiled(ctx context.Context, l leased, sent bool, err error) error {
	if _, lost := lease.Lost(err); lost {
		return err // the handler cancels
	}
	if overdue := errors.Is(err, errOverdue); sent && (overdue || errors.Is(err, errSilent)) {
		cancelled := q.s.cancel != nil && q.p.cancelUpstream(ctx, q.s, q.m.values)
		if !cancelled && !overdue {
			q.log().Warn("the TeX service did not answer in time; the lease is held until its TTL")
			return err
		}
	}
	q.p.giveBack(l.Lease)
	return err
}
