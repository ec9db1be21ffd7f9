package texproxy

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// place is where a job stands as the store tells it.
type place int

const (
	unknown place = iota // nobody's, or somebody else's: 404 either way
	running              // it has a living lease
	ended                // it has none and needs none: its results can be had
	lost                 // its lease was taken away
)

// located is what was found of a job.
type located struct {
	place place
	job   *job // running, and lost
}

// ofJob serves the requests about a job: polls, results, logs, cancels.
func (q *request) ofJob() (*answer, error) {
	if err := q.mayUseName(); err != nil {
		return nil, err
	}
	body, err := q.upload()
	if err != nil {
		return nil, err
	}
	defer body.drop()
	at, err := q.locate()
	switch {
	case err != nil:
		return nil, err
	case at.place == unknown:
		return nil, errNotFound
	case at.place == ended || !q.tellsState():
		return q.pass(body)
	}
	return q.poll(at.job, body)
}

// needsLease reports whether the request is one that a running job's lease is
// touched for: a poll, or another route that can tell that the job has ended. A
// download neither needs a lease nor is refused for want of one.
func (q *request) needsLease() bool {
	return q.kind() == kindPoll || (q.kind() == kindOther && len(q.m.route.Terminal) > 0)
}

// tellsState reports whether the answer can end the job.
func (q *request) tellsState() bool {
	return q.needsLease() || q.kind() == kindCancel || len(q.m.route.Terminal) > 0
}

// locate finds the job in this pod's memory, then in the store. A download
// needs to know only whose the job is.
func (q *request) locate() (located, error) {
	key := q.s.jobKey(q.m.job())
	if j := q.p.jobs.get(key); j != nil {
		if !j.owner.is(q.owner) {
			return located{}, nil
		}
		return located{place: running, job: j}, nil
	}
	if k, ok := q.p.owners.get(recordJob, key); ok {
		switch {
		case !k.owner.is(q.owner):
			return located{}, nil
		case k.free || q.kind() == kindResult:
			return located{place: ended}, nil
		}
	}
	return q.find(key)
}

// find asks the store. A job of which it knows nothing is nobody's.
func (q *request) find(key string) (located, error) {
	var holders []lease.Holder
	err := patiently(q.r.Context(), func(ctx context.Context) (err error) {
		holders, err = q.p.leases.Find(ctx, lease.Filter{
			Type: HandlerType, Key: key, States: []lease.State{lease.Held, lease.Revoked},
		})
		return err
	})
	if err != nil {
		return located{}, err
	}
	var mark *lease.Holder
	for i, h := range holders {
		if !ownerOfHolder(h).is(q.owner) {
			return located{}, nil
		}
		if h.State == lease.Held {
			if j := q.p.jobFrom(h, time.Now()); j != nil {
				return located{place: running, job: q.p.jobs.put(j)}, nil
			}
		}
		if h.State == lease.Revoked && h.Revocation != nil && (mark == nil || h.Revocation.At.After(mark.Revocation.At)) {
			mark = &holders[i]
		}
	}
	if mark != nil {
		if j := q.p.jobFrom(*mark, time.Now()); j != nil {
			return located{place: lost, job: j}, nil
		}
	}
	who, ok, err := q.p.lookup(q.r.Context(), recordJob, key)
	if err != nil || !ok || !who.is(q.owner) {
		return located{}, err
	}
	return located{place: ended}, nil
}

// poll asks the service first, and decides about the lease by its answer: an end
// passes whatever has become of the lease, and only a job that still runs needs
// one. The end of the job gives the slot back before the client hears of it: its
// next submit finds a free one.
func (q *request) poll(j *job, body *upload) (*answer, error) {
	j.polledAt(time.Now())
	ctx := q.r.Context()
	if q.kind() == kindCancel {
		ctx = context.WithoutCancel(ctx) // a wish to end is carried out
	}
	ctx, use := q.p.uses.beginPoll(ctx, j.lease.Lease)
	a, _, err := q.p.ask(ctx, q.s, q.call(body))
	use.settle()
	if _, isLost := lease.Lost(err); isLost {
		return nil, err // by an operator, while the service was asked
	}
	if err != nil || a.StatusCode >= http.StatusInternalServerError {
		// Nobody knows whether the job runs, so its TTL begins anew.
		_ = patiently(q.r.Context(), j.check)
		return a, err
	}
	outcome, over := a.ended(q.m.route.Terminal)
	switch {
	case over:
		q.p.end(ctx, j, outcome)
	case q.kind() == kindCancel && a.StatusCode < 300:
		q.p.end(ctx, j, outcomeCancelled)
	case time.Since(j.since) > q.s.HoldMax:
		q.p.overdue(ctx, j)
	case q.needsLease():
		if err := q.keepLease(j); err != nil {
			a.Body.Close()
			return nil, err
		}
	}
	return a, nil
}

// keepLease touches the lease of a job that runs (spec §3). One that is lost is
// taken anew where there is a slot at once.
func (q *request) keepLease(j *job) error {
	err := patiently(q.r.Context(), j.check)
	reason, isLost := lease.Lost(err)
	if !isLost {
		return err
	}
	q.p.jobs.drop(j)
	// What an operator took away stays away, and so does a job that its handler
	// has cancelled.
	if (reason != lease.ReasonIdle && reason != lease.ReasonPod) || q.s.cancel != nil {
		return err
	}
	_, again, _ := q.p.retakes.Do(j.key(), func() (any, error) { return nil, q.retake(j) })
	if _, busy := errors.AsType[*lease.BusyError](again); busy {
		return err
	}
	return again
}

// retake takes a slot anew for a job that still runs, without waiting. Polls of
// one job that come at once do so once in this pod; of two pods one gives its
// slot back.
func (q *request) retake(j *job) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.r.Context()), 2*storePatience)
	defer cancel()
	living, err := q.p.livingLeases(ctx, j.key())
	if err != nil {
		return err
	}
	if len(living) > 0 {
		q.p.jobs.put(q.p.jobFrom(living[0], time.Now()))
		return nil
	}
	l, err := q.acquire(ctx, lease.Request{Payload: j.payload(), MaxWait: lease.NoWait, Retried: true})
	if err != nil || l.Noop() { // without an error its scope has no lease any more
		return err
	}
	mine := newJob(q.s, j.id, q.owner, j.values, l, j.since)
	if first := q.p.rival(ctx, mine); first != nil {
		q.p.giveBack(l.Lease)
		mine = first
	}
	q.log().Info("a job whose lease was reaped has a slot again")
	q.p.jobs.put(mine)
	return nil
}

// rival returns the job by another living lease of it that stays, where this one
// has to be given back: an older one. Two that were made in one millisecond go by
// their tokens, unless the other pod has looked before this one's was there.
func (p *Proxy) rival(ctx context.Context, mine *job) *job {
	for again := false; ; again = true {
		living, err := p.livingLeases(ctx, mine.key())
		i := slices.IndexFunc(living, func(h lease.Holder) bool { return h.Token == mine.token() })
		if err != nil || i < 0 {
			return nil // both count: too many rather than too few
		}
		tie := slices.ContainsFunc(living[i+1:], func(h lease.Holder) bool { return h.CreatedAt.Equal(living[i].CreatedAt) })
		switch {
		case i > 0:
			return p.jobFrom(living[0], time.Now())
		case !tie:
			return nil
		case again:
			return p.jobFrom(living[1], time.Now())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(storePause): // the other pod gives its own back, if it has seen this one
		}
	}
}

// livingLeases are the holders of a job's leases, the oldest first.
func (p *Proxy) livingLeases(ctx context.Context, key string) ([]lease.Holder, error) {
	holders, err := p.leases.Find(ctx, lease.Filter{Type: HandlerType, Key: key, States: []lease.State{lease.Held}})
	slices.SortFunc(holders, func(a, b lease.Holder) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Token, b.Token))
	})
	return holders, err
}
