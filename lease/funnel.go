package lease

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// step is one level of a funnel: the counter to take a slot of.
type step struct {
	id    CounterID
	level definition.Level
	cap   definition.Cap
}

// funnel is the way of one acquire: its levels from narrow to wide.
type funnel struct {
	req   Request
	def   *definition.Definition
	steps []step
}

// full says which level had no room, and what was seen of it.
type full struct {
	step
	count int // zero where it was not read
}

// Acquire takes a slot at every level or none (spec §3). Errors are *BusyError
// and *UnavailableError; it answers within the wait plus one store operation.
func (m *Manager) Acquire(ctx context.Context, r Request) (*Lease, error) {
	if r.Definition.Noop() {
		label := otherLabel
		if r.Definition != nil && r.Definition.Label != "" {
			label = r.Definition.Label
		}
		m.obs.Acquired(label, AcquireNoop, 0)
		return &Lease{}, nil
	}
	begun := time.Now()
	l, err := m.acquire(ctx, r, begun)
	label := r.Definition.Label
	var busy *BusyError
	switch {
	case err == nil:
		m.obs.Acquired(label, AcquireSuccess, time.Since(begun))
		return l, nil
	case errors.As(err, &busy):
		if r.Retried {
			break
		}
		m.obs.Acquired(label, AcquireBusy, time.Since(begun))
		m.refused(r, CodeBusy, busy.Level)
	default:
		m.obs.Acquired(label, AcquireUnavailable, time.Since(begun))
		var u *UnavailableError
		if errors.As(err, &u) {
			m.refused(r, CodeUnavailable, u.Level)
		}
	}
	return nil, err
}

// unresolvedRefused counts and records an acquire that came to nothing before it
// could be asked for: the definition of its lease could not be had, or is not
// valid. Of the definition only the name is known.
func (m *Manager) unresolvedRefused(r Request, took time.Duration) {
	m.obs.Acquired(otherLabel, AcquireUnavailable, took)
	m.refused(r, CodeUnavailable, "")
}

func (m *Manager) refused(r Request, code string, level definition.Level) {
	m.happened(Event{
		Kind: EventRefused, Reason: code, Type: r.Type, Resource: r.Definition.Resource, Lease: r.Definition.Name,
		Level: level, Tenant: r.Tenant, Project: r.Project, User: r.User, Pod: m.opt.Pod.ID,
	})
}

func (m *Manager) acquire(ctx context.Context, r Request, begun time.Time) (*Lease, error) {
	f, err := m.plan(r)
	if err != nil {
		return nil, err
	}
	m.labels.learn(f.def.Resource, f.def.Label)
	wait := f.def.Wait
	switch {
	case r.MaxWait < 0:
		wait = 0
	case r.MaxWait > 0:
		wait = min(wait, r.MaxWait)
	}
	deadline := begun.Add(wait)
	// One deadline over all operations: whatever the store does, the answer is
	// there one operation after the wait. A caller that goes ends the wait but no
	// operation under way: an increment that is cancelled on its way may be
	// applied without its entry, and only reconcile would take it back, so that
	// clients that hang up would eat slots.
	opCtx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(m.opt.OpTimeout))
	defer cancel()
	if ctx.Err() != nil {
		return nil, callerGone(ctx)
	}
	if err := m.freshOwnPod(opCtx); err != nil {
		return nil, storeGone(err)
	}
	var l *Lease
	if wait <= 0 {
		l, err = m.acquireNow(opCtx, f, begun)
	} else {
		l, err = m.acquireWaiting(opCtx, ctx.Done(), f, begun, deadline)
	}
	if l != nil && ctx.Err() != nil {
		if err := l.Release(opCtx); err != nil {
			m.log.Warn("the lease of a caller that has gone could not be given back whole; what is left of it, the idle reap or the reconciler will take", "token", l.Ref().Token.Short(), "error", err)
		}
		return nil, callerGone(ctx)
	}
	return l, err
}

func callerGone(ctx context.Context) *UnavailableError {
	return unavailable("the request ended while it waited for a slot", ctx.Err())
}

// plan checks what can be refused without the store and names the counters.
func (m *Manager) plan(r Request) (*funnel, error) {
	permanent := func(why string, level definition.Level) error {
		return &UnavailableError{Why: why, Level: level, Permanent: true}
	}
	switch m.phase.Load() {
	case phaseRunning:
	case phaseNew:
		return nil, unavailable("this gateway has not reached its lease store yet; try again", nil)
	default:
		return nil, unavailable("this gateway is shutting down; try again", nil)
	}
	d := r.Definition
	if _, ok := m.handlers[r.Type]; !ok {
		// The reaper must be able to clean up after it (spec §3).
		return nil, permanent("nothing here can clean up after a lease of type "+strconv.Quote(r.Type), "")
	}
	if d.Inline != inlineResource(d.Resource) || d.Inline != strings.HasPrefix(d.Resource, definition.InlinePrefix) {
		return nil, permanent("the lease "+d.Name+" names a resource that belongs to inline definitions", "")
	}
	if d.TTL <= 0 {
		return nil, permanent("the lease "+d.Name+" has no TTL", "")
	}
	if size := r.Payload.size(); size > MaxPayload {
		return nil, permanent("the lease's payload is too large", "")
	}
	f := &funnel{req: r, def: d, steps: make([]step, 0, len(d.Caps))}
	scope := Scope{Tenant: r.Tenant, Project: r.Project, User: r.User}
	for _, level := range definition.Levels {
		limit, ok := d.Caps[level]
		if !ok {
			continue
		}
		if limit < 1 {
			return nil, permanent("the lease "+d.Name+" has a cap below 1 on the level "+string(level), level)
		}
		id, err := NewCounterID(d.Resource, level, scope)
		if err != nil {
			// Never skipped: a cap that does not apply to whom is not known
			// would be no cap.
			return nil, permanent("the lease "+d.Name+" is limited per "+string(level)+", and this request does not say which "+string(level)+" it is for", level)
		}
		f.steps = append(f.steps, step{id: id, level: level, cap: limit})
	}
	if len(f.steps) != len(d.Caps) {
		return nil, permanent("the lease "+d.Name+" has a cap on a level that does not exist", "")
	}
	return f, nil
}

// acquireNow tries once, and once more where a lazy sweep freed something.
func (m *Manager) acquireNow(ctx context.Context, f *funnel, begun time.Time) (*Lease, error) {
	l, no, err := m.try(ctx, f)
	if err != nil || l != nil {
		return l, err
	}
	if m.lazySweep(ctx, f.def.Resource) {
		if l, no, err = m.try(ctx, f); err != nil || l != nil {
			return l, err
		}
	}
	return nil, m.busy(ctx, f, no, begun)
}

// try goes through the funnel once: holder first, then level by level an
// increment and the entry in the holder's list, so that an incremented counter
// never exists for long without a holder that knows of it, and never without a
// holder at all. It returns a lease, or the level that was full, or an error.
//
// The entry of level i is written beside the increment of level i+1: both are
// needed before the next step, neither needs the other.
func (m *Manager) try(ctx context.Context, f *funnel) (*Lease, *full, error) {
	h := Holder{
		Token: m.ids.token(), State: Pending, Type: f.req.Type, Resource: f.def.Resource, Lease: f.def.Name,
		Label: f.def.Label, Tenant: f.req.Tenant, Project: f.req.Project, User: f.req.User,
		HolderRef: f.req.HolderRef, Pod: m.opt.Pod.ID, PodBound: f.req.PodBound, Payload: f.req.Payload,
		// Not the lease's own TTL: an acquirer that dies here must not keep a
		// cap-1 level full for all of it.
		TTL: m.opt.PendingTTL,
	}
	begun := time.Now()
	if err := m.store.CreateHolder(ctx, h); err != nil {
		m.abandon(ctx, h.Token)
		return nil, nil, storeGone(err)
	}
	var booked []Booking
	listed := closedChannel // the push of the level before, under way
	var pushErr error
	for i, s := range f.steps {
		gen, ok, err := m.increment(ctx, s)
		<-listed
		switch {
		case pushErr != nil:
			m.abandon(ctx, h.Token)
			return nil, nil, pushErr
		case err != nil:
			m.abandon(ctx, h.Token)
			return nil, nil, storeGone(err)
		case !ok:
			m.rollback(ctx, h.Token)
			return nil, &full{step: s}, nil
		}
		b := Booking{ID: s.id, Level: s.level, Gen: gen}
		others := booked
		booked = append(booked, b)
		if i < len(f.steps)-1 {
			done := make(chan struct{})
			listed = done
			go func() {
				defer close(done)
				pushErr = pushed(m.store.PushLevel(ctx, h.Token, b, m.opt.ReconcileSafety/2))
			}()
			continue
		}
		ids := make([]CounterID, len(others))
		for j, o := range others {
			ids[j] = o.ID
		}
		last := time.Now()
		if err := pushed(m.store.PushLast(ctx, h.Token, b, ids, f.def.TTL, m.opt.ReconcileSafety/2)); err != nil {
			m.abandon(ctx, h.Token)
			return nil, nil, err
		}
		h.State, h.TTL, h.Levels = Held, f.def.TTL, booked
		return m.held(h, begun, last), nil, nil
	}
	panic("lease: a funnel without levels") // plan never makes one
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// pushed turns a push's outcome into an error. No match means that the holder
// was reaped, or is older than half the margin: a counter that was incremented
// so long ago may have been corrected without it, so the entry would claim a
// slot that somebody else has.
func pushed(ok bool, err error) error {
	switch {
	case err != nil:
		return storeGone(err)
	case !ok:
		return unavailable("taking the lease took too long; try again", errors.New("the holder is gone or too old"))
	}
	return nil
}

// increment takes a slot of one level. No match means full, unless the counter
// does not exist: then it is made, on insert only, and asked once more. An
// upsert in the conditional update would make the loser of a simultaneous first
// use report busy (spec §4).
func (m *Manager) increment(ctx context.Context, s step) (Gen, bool, error) {
	gen, _, ok, err := m.store.Increment(ctx, s.id, s.cap)
	if err != nil || ok {
		return gen, ok, err
	}
	if err := m.store.EnsureCounter(ctx, s.id, m.ids.gen()); err != nil {
		return "", false, err
	}
	gen, _, ok, err = m.store.Increment(ctx, s.id, s.cap)
	return gen, ok, err
}

// rollback gives back what a try has taken. What the deleted document lists is
// decremented and nothing else: an increment whose entry is not there is left
// to reconcile, and where a reaper won, it has decremented. A holder that
// became HELD by a last push whose reply was lost goes too.
func (m *Manager) rollback(ctx context.Context, t Token) {
	ctx, cancel := m.own(ctx)
	defer cancel()
	h, ok, err := m.store.DeleteHolder(ctx, t)
	switch {
	case err != nil:
		m.log.Warn("a failed acquire could not be rolled back; its holder expires by itself", "token", t.Short(), "error", err)
	case ok:
		m.giveBack(ctx, h.Levels, nil)
	}
}

// abandon is rollback where the store has just failed or the time is up: the
// caller is answered now and does not wait for it.
func (m *Manager) abandon(ctx context.Context, t Token) {
	m.undoing.run(func() { m.rollback(ctx, t) })
}

// busy describes the level that was full. The global level's figures belong to
// no tenant and are not told.
func (m *Manager) busy(ctx context.Context, f *funnel, no *full, begun time.Time) *BusyError {
	e := &BusyError{Resource: f.def.Resource, Level: no.level, Waited: time.Since(begun), RetryAfter: retryAfter(f.def)}
	if no.level == definition.Global {
		return e
	}
	e.Cap, e.Count = no.cap, max(no.count, int(no.cap))
	if age, err := m.store.OldestBooking(ctx, no.id); err == nil {
		e.Oldest = age
	}
	return e
}

// retryAfter is a guess between one and thirty seconds: as long as the
// definition thinks that waiting is worth while.
func retryAfter(d *definition.Definition) time.Duration {
	return min(max(d.Wait, time.Second), 30*time.Second)
}

func (p Payload) size() int {
	n := 0
	for k, v := range p {
		n += len(k) + len(v)
	}
	return n
}
