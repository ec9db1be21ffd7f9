package texproxy

import (
	"context"
	"errors"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// place is where a job stands as the store tells it.
type place int

const (
	unknown place = iota // nobody's, or somebody else's: 404 either way
	running              // it has a living lease
	ended                // it has none and needs none: its results can be had
	gone                 // its lease was taken away
)

// located is what was found of a job.
type located struct {
	place place
	job   *job         // running
	mark  lease.Holder // gone: the revoked holder
}

// ofJob serves the requests about a job: polls, results, logs, cancels.
func (q *request) ofJob() {
	var body *upload
	if q.r.ContentLength != 0 && q.r.Body != nil {
		var ok bool
		if body, ok = q.take(); !ok {
			return
		}
		defer body.drop()
	}
	at, err := q.locate()
	if err != nil {
		q.refused(err)
		return
	}
	if at.place == running && q.asksState() {
		at, err = q.check(at)
	}
	if err == nil && at.place == gone && q.asksState() {
		at, err = q.retake(at.mark)
	}
	switch {
	case err != nil:
		q.refused(err)
	case at.place == unknown:
		notFound(q.w)
	case at.place == gone && q.asksState():
		q.lost(q.w, q.s, q.m.job(), reasonOf(at.mark))
	case at.place == running && q.readsState():
		q.poll(at.job, body)
	default:
		q.pass(body)
	}
}

// asksState reports whether the request is one that a running job's lease is
// checked for: a poll, or another route that can tell that the job has ended. A
// download neither needs a lease nor is refused for want of one.
func (q *request) asksState() bool {
	return q.m.route.kind == kindPoll || (q.m.route.kind == kindOther && len(q.m.route.Terminal) > 0)
}

// readsState reports whether the answer can end the job.
func (q *request) readsState() bool {
	return q.asksState() || q.m.route.kind == kindCancel || len(q.m.route.Terminal) > 0
}

func reasonOf(mark lease.Holder) lease.Reason {
	if mark.Revocation == nil {
		return ""
	}
	return mark.Revocation.Reason
}

// locate finds the job in this pod's memory, then in the store. A download
// needs to know only whose the job is.
func (q *request) locate() (located, error) {
	key := q.s.jobKey(q.m.job())
	if j := q.jobs.get(key); j != nil {
		if j.owner != q.owner {
			return located{}, nil
		}
		return located{place: running, job: j}, nil
	}
	if known, ok := q.owners.get(recordJob + " " + key); ok {
		switch {
		case known.owner != q.owner:
			return located{}, nil
		case known.free || q.m.route.kind == kindResult:
			return located{place: ended}, nil
		}
	}
	return q.find(key)
}

// find asks the store.
func (q *request) find(key string) (located, error) {
	var holders []lease.Holder
	err := patiently(q.r.Context(), func(ctx context.Context) (err error) {
		holders, err = q.engine.find(ctx, lease.Filter{
			Type: HandlerType, Key: key, States: []lease.State{lease.Held, lease.Revoked},
		})
		return err
	})
	if err != nil {
		return located{}, err
	}
	var mark *lease.Holder
	for i, h := range holders {
		if (owner{h.Tenant, h.Project, h.User}) != q.owner {
			return located{}, nil
		}
		if h.State == lease.Held {
			if j := q.jobFrom(h, time.Now()); j != nil {
				return located{place: running, job: q.jobs.put(j)}, nil
			}
		}
		if h.State == lease.Revoked && h.Revocation != nil && (mark == nil || h.Revocation.At.After(mark.Revocation.At)) {
			mark = &holders[i]
		}
	}
	if mark != nil {
		// A lease that was lost, taken anew and released leaves the mark of its
		// first loss.
		if _, over, err := q.lookup(q.r.Context(), recordEnded, key); err != nil || over {
			return located{place: ended}, err
		}
		return located{place: gone, mark: *mark}, nil
	}
	who, ok, err := q.lookup(q.r.Context(), recordJob, key)
	switch {
	case err != nil:
		return located{}, err
	case ok && who == q.owner:
		return located{place: ended}, nil
	case ok:
		return located{}, nil
	}
	return q.unrecorded(key)
}

// unrecorded decides on a job of which the store knows nothing. A scope without
// a lease keeps none there: its jobs belong to whoever asks first.
func (q *request) unrecorded(key string) (located, error) {
	d, err := q.definition(q.r.Context())
	if err != nil || d != nil {
		return located{}, err
	}
	q.owners.put(recordJob+" "+key, q.owner, true)
	return located{place: ended}, nil
}

// check touches the job's lease (spec §3).
func (q *request) check(at located) (located, error) {
	j := at.job
	err := patiently(q.r.Context(), func(ctx context.Context) error {
		err := j.slot.Check(ctx)
		if err == nil && j.isUnstored() {
			if err = j.slot.UpdatePayload(ctx, j.payload()); err == nil {
				j.stored()
			}
		}
		return err
	})
	var lost *lease.LostError
	if err == nil || !errors.As(err, &lost) {
		return at, err
	}
	q.jobs.drop(j)
	at, err = q.find(j.key())
	if err == nil && at.place == running && at.job.token() == j.token() {
		// A pod's list may be older than its check; the check is right.
		q.jobs.drop(at.job)
		at = located{place: gone, mark: lease.Holder{Token: j.token(), Revocation: &lease.Revocation{Reason: lost.Reason}}}
	}
	return at, err
}

func (j *job) isUnstored() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unstored
}

func (j *job) stored() {
	j.mu.Lock()
	j.unstored = false
	j.mu.Unlock()
}

// retake tries once, without waiting, to take a slot for a job that still runs
// and whose lease was reaped. What an operator took away stays away, and so
// does a job that its handler has cancelled.
func (q *request) retake(mark lease.Holder) (located, error) {
	lost := located{place: gone, mark: mark}
	reason := reasonOf(mark)
	if (reason != lease.ReasonIdle && reason != lease.ReasonPod) || q.s.cancel != nil || time.Since(mark.CreatedAt) > q.s.HoldMax {
		return lost, nil
	}
	ctx := q.r.Context()
	try, err := q.claim(ctx, recordRetake, string(mark.Token), q.owner, afterEnd)
	switch {
	case err != nil:
		return lost, err
	case !try.fresh && time.Since(try.at) > storePatience:
		return lost, nil // it was tried, and there was no slot
	case !try.fresh:
		return q.awaitRetake(q.s.jobKey(q.m.job()), lost) // another poll is at it
	}
	d, err := q.definition(ctx)
	if err != nil {
		return lost, err
	}
	now := time.Now()
	j := &job{
		s: q.s, id: q.m.job(), owner: q.owner, values: valuesOf(mark.Payload), since: mark.CreatedAt,
		retaken: true, polled: now, looked: now,
	}
	sl, err := q.acquire(ctx, d, lease.Request{Payload: j.payload(), MaxWait: lease.NoWait})
	var busy *lease.BusyError
	switch {
	case errors.As(err, &busy):
		return lost, nil
	case err != nil:
		return lost, err
	case sl == nil: // its scope has no lease any more
		return located{place: ended}, nil
	}
	j.slot = sl
	q.log().Info("a job whose lease was reaped has a slot again")
	return located{place: running, job: q.jobs.put(j)}, nil
}

// awaitRetake gives the poll that is taking a slot anew a moment to succeed.
func (q *request) awaitRetake(key string, lost located) (located, error) {
	for deadline := time.Now().Add(storePatience); ; {
		at, err := q.find(key)
		if err != nil || at.place != gone || time.Now().After(deadline) {
			return at, err
		}
		select {
		case <-q.r.Context().Done():
			return lost, nil
		case <-time.After(storePause):
		}
	}
}

// poll asks the upstream for a running job. The end of the job gives the slot
// back before the client hears of it: its next submit finds a free one.
func (q *request) poll(j *job, body *upload) {
	now := time.Now()
	j.touchedBy(now)
	ctx := q.r.Context()
	if q.m.route.kind == kindCancel {
		ctx = context.WithoutCancel(ctx) // a wish to end is carried out
	}
	ctx, run := q.runs.begin(ctx, j.slot)
	defer run.end()
	resp, _, err := q.exchange(ctx, q.s, q.call(body, q.m.route.kind != kindResult))
	var a *answer
	if err == nil {
		if a, err = inspect(resp); err != nil {
			resp.Body.Close()
		}
	}
	var lost *lease.LostError
	if errors.As(context.Cause(ctx), &lost) {
		if a != nil {
			a.Body.Close()
		}
		q.jobs.drop(j)
		q.lost(q.w, q.s, j.id, lost.Reason)
		return
	}
	if err != nil {
		q.upstreamFailed(err)
		return
	}
	run.settle()
	_, over := a.ended(q.m.route.Terminal)
	if q.m.route.kind == kindCancel && a.StatusCode < 300 {
		over = true
	}
	if over || time.Since(j.since) > q.s.HoldMax {
		if !over {
			q.log().Warn("a job has held its slot for hold.max; the slot is given back")
			q.cancelUpstream(ctx, q.s, j.values, "")
		}
		q.end(ctx, j)
	}
	relay(q.w, q.r, q.s, a.Response, false, func(error) {})
}
