package texproxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// submit starts a job: upload, slot, upstream, payload, answer.
//
// From the slot on the work belongs to the compile and not to the client: it
// goes on when the client leaves, since the upstream may have the job and the
// slot must know which.
func (q *request) submit() (*answer, error) {
	body, err := q.upload()
	if err != nil {
		return nil, err
	}
	defer body.drop()
	if err := q.mayUseName(); err != nil {
		return nil, err
	}
	// A client that leaves while it waits for a slot has not submitted yet.
	l, err := q.acquire(q.r.Context(), lease.Request{Payload: lease.Payload{payloadService: q.s.Name}})
	if err != nil {
		return nil, err
	}
	since := time.Now()
	ctx, use := q.p.uses.begin(context.WithoutCancel(q.r.Context()), l.Lease)
	c := q.call(body)
	c.within = q.s.HoldMax
	a, sent, err := q.p.ask(ctx, q.s, c)
	use.settle() // from here on it is the job's poll that uses the lease
	if err != nil {
		return nil, q.notSubmitted(l, sent, err)
	}
	return q.submitted(ctx, l, since, a)
}

// notSubmitted decides what becomes of the slot when there is no answer: where
// the upstream may have the whole request, it may have the job. At hold.max the
// slot is given back whatever there may be.
func (q *request) notSubmitted(l leased, sent bool, err error) error {
	switch _, lost := lease.Lost(err); {
	case lost:
	case !sent || errors.Is(err, errOverdue):
		q.p.giveBack(l.Lease)
	case !l.Noop():
		q.log().Warn("the TeX service may have accepted a compile; its lease is held until its TTL", "err", err)
	}
	return err
}

// submitted decides what an answer means for the slot.
func (q *request) submitted(ctx context.Context, l leased, since time.Time, a *answer) (*answer, error) {
	if !q.m.route.accepts(a.StatusCode) {
		q.p.giveBack(l.Lease)
		return a, nil
	}
	id := a.pick(q.m.route.JobID)
	if id != "" && !tex.ValidJob(id) {
		q.log().Warn("the TeX service gave a job an id that cannot be used")
		id = ""
	}
	outcome, over := a.ended(q.m.route.Terminal)
	if id == "" {
		switch {
		case over:
			q.p.opt.Observer.Ended(q.s.Name, string(outcome))
			q.p.giveBack(l.Lease)
		case !l.Noop():
			// There may be a compile that nobody can ask for: its slot is taken
			// until its TTL says that it has ended.
			q.log().Warn("the TeX service accepted a compile and named no job; its lease is held until its TTL", "status", a.StatusCode)
		}
		return q.bound(a)
	}
	j := newJob(q.s, id, q.owner, q.m.values, l, since)
	if over {
		q.p.end(ctx, j, outcome)
		return q.bound(a)
	}
	if err := q.record(ctx, j); err != nil {
		a.Body.Close()
		return nil, err
	}
	return q.bound(a)
}

// record writes down whose job it is, and which job the lease is for. An error
// means that the client may not have it.
func (q *request) record(ctx context.Context, j *job) error {
	if err := patiently(ctx, func(ctx context.Context) error { return j.lease.UpdatePayload(ctx, j.payload()) }); err != nil {
		if _, lost := lease.Lost(err); lost {
			// Revoked between acquire and now: its handler knew of no job, so the
			// job is ended from here.
			q.m.values = j.values
			q.p.cancelUpstream(ctx, q.s, j.values)
			return err
		}
		j.unstored = true
		q.log().Error("a job could not be written to its holder; this pod goes on trying", "err", err)
	}
	got, err := q.p.claim(ctx, recordJob, j.key(), q.owner, q.s.HoldMax+afterEnd)
	switch {
	case err != nil:
		q.log().Error("the owner of a job could not be recorded", "err", err)
	case !got.owner.is(q.owner):
		// The service names the same thing alike for all its users, and this
		// one is another owner's.
		q.p.giveBack(j.lease.Lease)
		return errNotFound
	case j.lease.Noop():
	case !got.fresh && q.counted(ctx, j):
		q.p.giveBack(j.lease.Lease)
		return nil
	}
	if j.lease.Noop() {
		q.p.owners.put(recordJob, j.key(), known{owner: q.owner, free: true})
		return nil
	}
	q.p.owners.put(recordJob, j.key(), known{owner: q.owner})
	q.p.jobs.put(j)
	return nil
}

// counted reports whether an earlier lease of the owner counts this very compile
// already (a service that answers a second submit with the first job).
func (q *request) counted(ctx context.Context, j *job) bool {
	living, err := q.p.livingLeases(ctx, j.key())
	// Where nobody knows both count: too many rather than too few.
	return err == nil && slices.ContainsFunc(living, func(h lease.Holder) bool { return h.Token != j.token() })
}

// giveBack releases a lease, and where the store cannot be reached goes on
// trying behind the request's back until the TTL would have done it.
func (p *Proxy) giveBack(l *lease.Lease) (done bool) {
	if l.Noop() {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), storePatience)
	defer cancel()
	err := patiently(ctx, l.Release)
	if err == nil || !retryable(err) {
		return true
	}
	p.opt.Log.Warn("a lease could not be released; going on trying", "err", err)
	p.enter() // Drain waits for it
	go func() {
		defer p.leave()
		p.release(l)
	}()
	return false
}

// release tries to release a lease until its TTL has done it: after an outage of the
// store nobody is reaped for one TTL more, and within that a try must come.
func (p *Proxy) release(l *lease.Lease) {
	ttl := l.Ref().TTL
	ctx, cancel := context.WithTimeout(context.Background(), max(2*ttl, storePatience))
	defer cancel()
	longest := max(storePause, min(ttl/4, 5*time.Second))
	for pause := storePause; ; pause = min(2*pause, longest) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err := l.Release(ctx); err == nil || !retryable(err) {
			return
		}
	}
}
