package texproxy

import (
	"context"
	"errors"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// compile serves a submit in sync mode: one request is one compile and holds a
// lease from the end of its upload to the end of the upstream's answer.
//
// The upstream goes on compiling when its client leaves, so the request goes on
// too, and only its end frees the slot.
func (q *request) compile() {
	body, ok := q.take()
	if !ok {
		return
	}
	defer body.drop()
	if key, ok := q.s.owned(q.m); ok {
		mine, err := q.mayUseName(q.r.Context(), key, q.owner)
		if err != nil {
			q.refused(err)
			return
		}
		if !mine {
			notFound(q.w)
			return
		}
	}
	d, err := q.definition(q.r.Context())
	if err != nil {
		q.refused(err)
		return
	}
	payload := lease.Payload{payloadService: q.s.Name}
	for name, v := range q.m.values {
		payload[payloadValue+name] = v
	}
	sl, err := q.acquire(q.r.Context(), d, lease.Request{PodBound: true, Payload: payload})
	if err != nil {
		q.refused(err)
		return
	}
	ctx := q.r.Context()
	if sl != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, q.s.HoldMax)
	defer cancel()
	ctx, run := q.runs.begin(ctx, sl)
	defer run.end()
	var once sync.Once
	release := func() {
		once.Do(func() {
			run.settle()
			q.giveBack(sl)
		})
	}

	resp, sent, err := q.exchange(ctx, q.s, q.call(body, false))
	if err == nil {
		q.bindResult(ctx, resp.Header.Get("Location"))
		relay(q.w, q.r, q.s, resp, sl != nil, func(err error) {
			if compileMayRun(ctx, err) {
				run.settle()
				q.log().Warn("the TeX service broke off its answer; the lease is held until its TTL", "err", err)
				return
			}
			release()
		})
		return
	}
	var lost *lease.LostError
	if errors.As(context.Cause(ctx), &lost) {
		q.lost(q.w, q.s, "", lost.Reason)
		return
	}
	overdue := errors.Is(err, context.DeadlineExceeded) // hold.max
	if sent && (overdue || errors.Is(err, errSilent)) {
		// It has the document and may be compiling it still.
		run.settle()
		cancelled := q.s.cancel != nil && q.cancelUpstream(ctx, q.s, q.m.values, q.r.URL.RawQuery)
		if !cancelled && !overdue {
			q.log().Warn("the TeX service did not answer in time; the lease is held until its TTL")
			q.upstreamFailed(err)
			return
		}
	}
	if overdue {
		err = errSilent
	}
	release()
	q.upstreamFailed(err)
}

// compileMayRun reports whether an answer that broke off leaves a compile: one
// that stood still may, one whose connection was cut has ended.
func compileMayRun(ctx context.Context, err error) bool {
	var lost *lease.LostError
	return err != nil && errors.Is(err, errSilent) && !errors.As(context.Cause(ctx), &lost)
}

// bindResult gives the result that a compile redirects to to its owner, before
// the client and anybody else can ask for it.
func (q *request) bindResult(ctx context.Context, location string) {
	if location == "" || len(q.s.Owned) == 0 {
		return
	}
	to, err := q.s.url(q.m.path, "").Parse(location)
	if err != nil || to.Host != q.s.base.Host {
		return
	}
	m, ok := q.s.find("GET", to.EscapedPath()[min(len(q.s.base.EscapedPath()), len(to.EscapedPath())):])
	if !ok {
		return
	}
	if key, ok := q.s.owned(m); ok {
		ctx, cancel := context.WithTimeout(ctx, storePatience)
		defer cancel()
		if _, err := q.claim(ctx, recordName, key, q.owner, namesLive); err != nil {
			q.owners.put(recordName+" "+key, q.owner, false)
			q.log().Warn("the owner of a result could not be recorded", "err", err)
		}
	}
}
