package lease

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// ErrPayloadTooLarge says that a payload is larger than MaxPayload.
var ErrPayloadTooLarge = fmt.Errorf("lease: the payload is larger than %d bytes", MaxPayload)

// Lease is a held slot on every level of its funnel, or a NOOP lease. It is
// safe for concurrent use.
type Lease struct {
	m   *Manager // nil for a NOOP lease
	ref Ref

	mu       sync.Mutex
	begun    time.Time   // local time before the holder was created; zero where another pod acquired
	ids      []CounterID // what it booked; nil where another pod acquired
	seen     time.Time   // local time of the last proof that it lived; zero where there was none
	lost     *LostError
	released bool
	// unconfirmed says that ReleaseUnconfirmed was called: whatever came of it,
	// a delete would lose the resource that is still to be ended.
	unconfirmed bool
}

// held makes the lease of a holder that this pod has just acquired. last is the
// local time before the write that set its TTL going.
func (m *Manager) held(h Holder, begun, last time.Time) *Lease {
	ids := make([]CounterID, len(h.Levels))
	for i, b := range h.Levels {
		ids[i] = b.ID
	}
	l := &Lease{
		m: m, begun: begun, ids: ids,
		ref:  Ref{Token: h.Token, Type: h.Type, Label: h.Label, TTL: h.TTL, PodBound: h.PodBound},
		seen: last,
	}
	m.known.put(l)
	return l
}

// Attach gives the lease that r names without a store call; the first Check
// tells whether it still lives. A lease that this pod acquired or has checked
// before is the same one. A Ref without a token is a NOOP lease.
func (m *Manager) Attach(r Ref) *Lease {
	if r.Token == "" {
		return &Lease{}
	}
	return m.known.get(r.Token, func() *Lease { return &Lease{m: m, ref: r} })
}

// Noop reports whether there is nothing to hold.
func (l *Lease) Noop() bool { return l == nil || l.m == nil }

// Ref names the lease for any pod. A NOOP lease's is empty.
func (l *Lease) Ref() Ref {
	if l.Noop() {
		return Ref{}
	}
	return l.ref
}

// Check tells whether the lease still lives and touches it: its TTL counts from
// now (spec §3). Errors are *LostError and *UnavailableError, which are never
// confused: an unreachable store does not lose a lease.
func (l *Lease) Check(ctx context.Context) error {
	if l.Noop() {
		return nil
	}
	if lost := l.alreadyLost(); lost != nil {
		return lost
	}
	begun := time.Now()
	// One conditional update that counts the match and not the change: two
	// touches in one millisecond both hold. Never an upsert: a reaped lease
	// stays gone.
	ok, err := l.m.store.Touch(ctx, l.ref.Token, l.m.opt.Pod.ID)
	return l.checked(ctx, ok, err, begun)
}

// Peek is Check without the touch, for a stream that only listens. Only a loss is
// counted.
func (l *Lease) Peek(ctx context.Context) error {
	if l.Noop() {
		return nil
	}
	if lost := l.alreadyLost(); lost != nil {
		return lost
	}
	h, ok, err := l.m.store.Holder(ctx, l.ref.Token)
	if err != nil {
		return storeGone(err)
	}
	if !ok || h.State != Held {
		return l.lose(h)
	}
	return nil
}

// Loss is for a consumer that tells its client of a loss which it knows of
// without a Check, such as from the Handler: it is counted like a Check that has
// found it, and the reason is looked up where it is not known yet.
func (l *Lease) Loss(ctx context.Context) *LostError {
	if l.Noop() {
		return &LostError{}
	}
	l.m.obs.Checked(l.ref.Label, CheckLost)
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	if lost != nil && lost.Reason != "" {
		return lost
	}
	return &LostError{Reason: l.m.LostReason(ctx, l.ref.Token)}
}

// UpdatePayload replaces the payload (spec §6). Errors are ErrPayloadTooLarge
// and those of Check.
func (l *Lease) UpdatePayload(ctx context.Context, p Payload) error {
	if l.Noop() {
		return nil
	}
	if p.size() > MaxPayload {
		return ErrPayloadTooLarge
	}
	if lost := l.alreadyLost(); lost != nil {
		return lost
	}
	ok, err := l.m.store.SetPayload(ctx, l.ref.Token, p)
	switch {
	case err != nil:
		return storeGone(err)
	case !ok:
		return l.lookUpLoss(ctx)
	}
	return nil
}

func (l *Lease) checked(ctx context.Context, ok bool, err error, begun time.Time) error {
	switch {
	case err != nil:
		l.m.obs.Checked(l.ref.Label, CheckUnavailable)
		return storeGone(err)
	case !ok:
		return l.lookUpLoss(ctx)
	}
	l.m.obs.Checked(l.ref.Label, CheckOK)
	l.mu.Lock()
	if begun.After(l.seen) {
		l.seen = begun
	}
	l.mu.Unlock()
	l.m.known.put(l)
	return nil
}

// alreadyLost is the loss that is known, or nil. Like every loss that somebody is
// told of it is counted.
func (l *Lease) alreadyLost() error {
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	if lost == nil {
		return nil
	}
	l.m.obs.Checked(l.ref.Label, CheckLost)
	return lost
}

// lookUpLoss reads why the lease is gone. That it is gone is known; where the
// reason cannot be read it stays unknown.
func (l *Lease) lookUpLoss(ctx context.Context) error {
	h, ok, err := l.m.store.Holder(ctx, l.ref.Token)
	if err != nil || !ok {
		h = Holder{}
	}
	return l.lose(h)
}

// lose notes and counts a loss that was found.
func (l *Lease) lose(h Holder) error {
	l.m.obs.Checked(l.ref.Label, CheckLost)
	lost := &LostError{}
	if h.Revocation != nil {
		lost.Reason = h.Revocation.Reason
	}
	l.mu.Lock()
	if l.lost == nil {
		l.lost = lost
	}
	lost = l.lost
	l.mu.Unlock()
	// Not under l.mu: forget takes the two locks in the other order.
	l.m.known.drop(l.ref.Token)
	return lost
}

// Release gives the slots back. It is idempotent and runs under a deadline of
// its own; the handler does not run.
func (l *Lease) Release(ctx context.Context) error { return l.end(ctx, "", false) }

// ReleaseUnconfirmed gives the slots back and leaves a mark with ReasonClose,
// so that sweeps go on ending the resource (an upstream session whose DELETE
// was not confirmed). From then on the holder is never deleted by a Release.
func (l *Lease) ReleaseUnconfirmed(ctx context.Context) error { return l.end(ctx, ReasonClose, true) }

// ReleaseAs gives the slots back and leaves a mark that says why, for whoever
// comes with this lease later. Where the resource is not known to be gone, sweeps
// go on ending it, as with ReleaseUnconfirmed.
func (l *Lease) ReleaseAs(ctx context.Context, why Reason, confirmed bool) error {
	return l.end(ctx, why, !confirmed)
}

func (l *Lease) end(ctx context.Context, why Reason, unconfirmed bool) error {
	if l.Noop() {
		return nil
	}
	l.mu.Lock()
	if l.released {
		l.mu.Unlock()
		l.m.obs.Released(l.ref.Label, ReleaseAlready)
		return nil
	}
	if unconfirmed {
		l.unconfirmed = true
	}
	if why == "" && l.unconfirmed {
		why = ReasonClose
	}
	mark := Mark{Cause: Cause{Reason: why}}
	unconfirmed = l.unconfirmed
	ids, begun := l.ids, l.begun
	l.mu.Unlock()

	ctx, cancel := l.m.own(ctx)
	defer cancel()
	won, err := l.m.giveUp(ctx, l.ref.Token, ids, begun, mark)
	if err == nil && won && why != "" && !unconfirmed {
		// Nothing is left for a handler. A mark without this word has it run all the
		// same, and it finds the resource gone.
		_, err = l.m.store.MarkHandled(ctx, l.ref.Token)
	}
	if err != nil {
		l.m.obs.Released(l.ref.Label, ReleaseError)
		return storeGone(err)
	}
	l.mu.Lock()
	l.released = true
	if l.lost == nil {
		l.lost = &LostError{Reason: why}
	}
	l.mu.Unlock()
	l.m.known.drop(l.ref.Token)
	if won {
		l.m.obs.Released(l.ref.Label, ReleaseOK)
	} else {
		l.m.obs.Released(l.ref.Label, ReleaseAlready)
	}
	return nil
}

// giveUp deletes (or, with a reason, marks) a holder and decrements
// what it listed. Only the one whose delete or mark matches decrements, so a
// release and a reap never both do.
//
// A lease younger than the reconcile margin has the gens in its list: no
// counter that it incremented can have been corrected since, and an audit of it
// can have begun or ended, not both (see takeOff). For an older one they are
// read first; the list may be out of date, and a decrement with an old gen would
// be left to a reconcile pass.
func (m *Manager) giveUp(ctx context.Context, t Token, ids []CounterID, begun time.Time, mark Mark) (bool, error) {
	if ids == nil {
		h, ok, err := m.store.Holder(ctx, t)
		if err != nil {
			return false, err
		}
		if !ok || h.State == Revoked {
			return false, nil
		}
		begun = h.CreatedAt // another clock's; it decides on a read, not on safety
		for _, b := range h.Levels {
			ids = append(ids, b.ID)
		}
	}
	var gens map[CounterID]Gen
	if time.Since(begun) >= m.opt.ReconcileSafety {
		cs, err := m.store.Counters(ctx, ids)
		if err != nil {
			return false, err
		}
		gens = make(map[CounterID]Gen, len(cs))
		for _, c := range cs {
			gens[c.ID] = c.Gen
		}
	}
	if mark.Reason != "" {
		_, ok, err := m.mark(ctx, t, mark, gens)
		return ok, err
	}
	h, ok, err := m.store.DeleteHolder(ctx, t)
	if err != nil || !ok {
		return false, err
	}
	m.giveBack(ctx, h.Levels, gens)
	return true, nil
}

// knownLeases are the leases that this pod acquired or was asked about, so that
// what it knows of one (its counters, its age) serves
// every request of its session.
type knownLeases struct {
	mu     sync.Mutex
	leases map[Token]*Lease
}

func (k *knownLeases) put(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leases == nil {
		k.leases = map[Token]*Lease{}
	}
	k.leases[l.ref.Token] = l
}

func (k *knownLeases) get(t Token, make func() *Lease) *Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l, ok := k.leases[t]; ok {
		return l
	}
	return make()
}

func (k *knownLeases) drop(t Token) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.leases, t)
}

// lose is drop for a lease that this pod has marked: whoever holds it learns of the
// loss at its next use, without asking the store.
func (k *knownLeases) lose(t Token, lost *LostError) {
	k.mu.Lock()
	l := k.leases[t]
	delete(k.leases, t)
	k.mu.Unlock()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = lost
	}
}

// forget drops leases that nobody here has checked for so long that they have
// ended elsewhere or live on there.
func (k *knownLeases) forget(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for t, l := range k.leases {
		l.mu.Lock()
		old := now.Sub(l.seen) > 2*l.ref.TTL
		l.mu.Unlock()
		if old {
			delete(k.leases, t)
		}
	}
}
