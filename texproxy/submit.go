package texproxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// submit starts a job: upload, slot, upstream, payload, answer. A fast upload's
// slot and upstream come while it is still on its way (lead.go).
//
// From the slot on the work belongs to the compile and not to the client: it
// goes on when the client leaves, since the upstream may have the job and the
// slot must know which.
func (q *request) submit() {
	l := q.newLead()
	defer l.close()
	body, err := q.spool.take(q.w, q.r, q.owner, q.s.MaxUpload, l)
	defer body.drop()
	if tell := l.outcome(); tell != nil {
		tell()
		return
	}
	if err != nil {
		q.notTaken(err)
		return
	}
	d, err := q.definition(q.r.Context())
	if err != nil {
		q.refused(err)
		return
	}
	// A client that leaves while it waits for a slot has not submitted yet.
	sl, err := q.acquire(q.r.Context(), d, lease.Request{Payload: q.unnamed()})
	if err != nil {
		q.refused(err)
		return
	}
	q.send(context.WithoutCancel(q.r.Context()), sl, body)()
}

// unnamed is the payload of a submit whose job has no name yet.
func (q *request) unnamed() lease.Payload { return lease.Payload{payloadService: q.s.Name} }

// send submits, and settles everything but the client: tell does that, once
// nothing of the upload is left to be read. A nil tell means that an upload which
// is not whole has led to nothing.
func (q *request) send(ctx context.Context, sl slot, body content) (tell func()) {
	since := time.Now()
	ctx, cancel := context.WithTimeout(ctx, q.s.HoldMax)
	ctx, run := q.runs.begin(ctx, sl)
	resp, sent, err := q.exchange(ctx, q.s, q.call(body, true))
	var a *answer
	if err == nil {
		if !body.complete() {
			// An answer that waits for a client's upload must not be one that its
			// upstream is waiting with.
			_, err = readAhead(resp)
		}
		if err == nil {
			a, err = inspect(resp)
		}
		if err == nil && !body.settle() {
			err = errAbandoned
		}
		if err != nil {
			resp.Body.Close()
		}
	}
	if err != nil {
		defer cancel()
		defer run.end()
		return q.submitFailed(ctx, sl, body, sent && body.complete(), err)
	}
	run.settle() // from here on it is the job's poll that uses the lease
	answer := q.submitted(ctx, sl, since, a)
	return func() {
		defer cancel()
		defer run.end()
		answer()
	}
}

// submitted decides what an answer means for the slot.
func (q *request) submitted(ctx context.Context, sl slot, since time.Time, a *answer) (tell func()) {
	if !q.s.accepts(a.StatusCode) {
		q.giveBack(sl)
		return q.answer(a, sl)
	}
	id := a.pick(q.s.Submit.JobID)
	if id != "" && !validJob(q.s.poll.path, id) {
		q.log().Warn("the TeX service gave a job an id that cannot be used")
		id = ""
	}
	_, over := a.ended(q.s.Submit.Terminal)
	if id == "" {
		if over {
			q.giveBack(sl)
		} else if sl != nil {
			// There may be a compile that nobody can ask for: its slot is taken
			// until its TTL says that it has ended.
			q.log().Warn("the TeX service accepted a compile and named no job; its lease is held until its TTL", "status", a.StatusCode)
		}
		return q.answer(a, sl)
	}
	q.m.values = withJob(q.m.values, id)
	return q.started(ctx, sl, id, since, over, a)
}

// submitFailed decides what becomes of the slot when there is no answer: where
// the upstream may have the whole request, it may have the job.
func (q *request) submitFailed(ctx context.Context, sl slot, body content, sent bool, err error) (tell func()) {
	var gone *lease.LostError
	if errors.As(context.Cause(ctx), &gone) {
		return func() { q.lost(q.w, q.s, "", gone.Reason) }
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errSilent
	}
	if !sent {
		q.giveBack(sl)
	} else if sl != nil {
		q.log().Warn("the TeX service may have accepted a compile; its lease is held until its TTL", "err", err)
	}
	if !sent && !body.complete() {
		return nil
	}
	return func() { q.upstreamFailed(err) }
}

// started records the job.
func (q *request) started(ctx context.Context, sl slot, id string, since time.Time, over bool, a *answer) (tell func()) {
	now := time.Now()
	key := q.s.jobKey(id)
	if sl == nil {
		q.owners.put(recordJob+" "+key, q.owner, true)
		return q.answer(a, sl)
	}
	j := &job{s: q.s, id: id, owner: q.owner, values: q.m.values, slot: sl, since: since, polled: now, looked: now}
	if over {
		q.end(ctx, j)
		return q.answer(a, sl)
	}
	if err := patiently(ctx, func(ctx context.Context) error { return sl.UpdatePayload(ctx, j.payload()) }); err != nil {
		var gone *lease.LostError
		if errors.As(err, &gone) {
			// Revoked between acquire and now: its handler knew of no job, so the
			// job is ended from here.
			a.Body.Close()
			q.cancelUpstream(ctx, q.s, j.values, "")
			return func() { q.lost(q.w, q.s, id, gone.Reason) }
		}
		j.unstored = true
		q.log().Error("a job could not be written to its holder; this pod goes on trying", "err", err)
	}
	got, err := q.claim(ctx, recordJob, key, q.owner, q.s.HoldMax+afterEnd)
	switch {
	case err != nil:
		q.owners.put(recordJob+" "+key, q.owner, false)
		q.log().Error("the owner of a job could not be recorded", "err", err)
	case got.owner != q.owner:
		// The service names the same thing alike for all its users, and this
		// one is another owner's.
		a.Body.Close()
		q.giveBack(sl)
		return func() { notFound(q.w) }
	case !got.fresh && q.counted(ctx, j):
		q.giveBack(sl)
		return q.answer(a, sl)
	}
	q.jobs.put(j)
	return q.answer(a, sl)
}

// counted reports whether an earlier lease of the owner counts this very compile
// already (a service that answers a second submit with the first job).
func (q *request) counted(ctx context.Context, j *job) bool {
	holders, err := q.engine.find(ctx, lease.Filter{Type: HandlerType, Key: j.key(), States: []lease.State{lease.Held}})
	if err != nil {
		return false // then both count: too many rather than too few
	}
	for _, h := range holders {
		if h.Token != j.token() {
			return true
		}
	}
	return false
}

// answer gives the upstream's answer to the client, unchanged.
func (q *request) answer(a *answer, sl slot) (tell func()) {
	return func() { relay(q.w, q.r, q.s, a.Response, sl != nil, func(error) {}) }
}

func withJob(values map[string]string, id string) map[string]string {
	with := map[string]string{"job": id}
	for k, v := range values {
		with[k] = v
	}
	return with
}

// giveBack releases a slot, and where the store cannot be reached goes on
// trying behind the request's back until the TTL would have done it.
func (p *Proxy) giveBack(sl slot) (done bool) {
	if sl == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), storePatience)
	defer cancel()
	err := patiently(ctx, sl.Release)
	if err == nil || !retryable(err) {
		return true
	}
	p.opt.Log.Warn("a lease could not be released; going on trying", "err", err)
	p.enter() // Drain waits for it
	go func() {
		defer p.leave()
		ctx, cancel := context.WithTimeout(context.Background(), max(sl.Ref().TTL, storePatience))
		defer cancel()
		for pause := storePause; ; pause = min(2*pause, 5*time.Second) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			if err := sl.Release(ctx); err == nil || !retryable(err) {
				return
			}
		}
	}()
	return false
}

// end gives a job's slot back, since the job has ended. The owner keeps its
// results for an hour more.
func (p *Proxy) end(ctx context.Context, j *job) {
	p.jobs.drop(j)
	if !p.giveBack(j.slot) {
		p.owners.put(recordJob+" "+j.key(), j.owner, false)
		return // its record of the submit is still there
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
	defer cancel()
	if _, err := p.claim(ctx, recordJob, j.key(), j.owner, afterEnd); err != nil {
		p.owners.put(recordJob+" "+j.key(), j.owner, false)
		p.opt.Log.Warn("the owner of an ended job could not be recorded", "service", j.s.Name, "err", err)
	}
	if j.retaken {
		// Without this a later poll would find the mark of the lost lease and
		// take the job for a running one.
		if _, err := p.claim(ctx, recordEnded, j.key(), j.owner, afterEnd); err != nil {
			p.opt.Log.Warn("the end of a job could not be recorded", "service", j.s.Name, "err", err)
		}
	}
}

// cancelUpstream ends a compile where the service can. Done means that there is
// nothing left to end.
func (p *Proxy) cancelUpstream(ctx context.Context, s *service, values map[string]string, query string) (done bool) {
	if s.cancel == nil {
		return true
	}
	path, err := s.cancel.path.Fill(values)
	if err != nil {
		return true // its submit never got as far as a job
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	resp, _, err := p.exchange(ctx, s, call{method: s.cancel.Methods[0], path: path, query: query, header: http.Header{}})
	if err != nil {
		p.opt.Log.Warn("a compile could not be cancelled", "service", s.Name, "err", err)
		return false
	}
	resp.Body.Close()
	return resp.StatusCode < 500
}
