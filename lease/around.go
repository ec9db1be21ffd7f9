package lease

import (
	"context"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Around is a Store that sends every verb of another one through one function.
// It names each verb, so that a verb that is added to Store does not compile
// until it goes through the function, too.
type Around struct {
	store Store
	do    func(ctx context.Context, verb string, call func(context.Context) error) error
}

var _ Store = (*Around)(nil)

// NewAround makes a Store that calls do for each verb of s. The error of do is
// the verb's; call makes the call and returns its error. Verbs are spelled as
// Store's methods are, with a small first letter.
func NewAround(s Store, do func(ctx context.Context, verb string, call func(context.Context) error) error) *Around {
	return &Around{store: s, do: do}
}

// SinglePod implements Store. It reaches nothing, so it is no verb.
func (s *Around) SinglePod() bool { return s.store.SinglePod() }

// Close implements Store. It ends the store, so it is no verb.
func (s *Around) Close(ctx context.Context) error { return s.store.Close(ctx) }

// Ping implements Store.
func (s *Around) Ping(ctx context.Context) (err error) {
	err = s.do(ctx, "ping", func(ctx context.Context) error { err = s.store.Ping(ctx); return err })
	return
}

// CreateHolder implements Store.
func (s *Around) CreateHolder(ctx context.Context, h Holder) (err error) {
	err = s.do(ctx, "createHolder", func(ctx context.Context) error { err = s.store.CreateHolder(ctx, h); return err })
	return
}

// PushLevel implements Store.
func (s *Around) PushLevel(ctx context.Context, t Token, b Booking, maxAge time.Duration) (ok bool, err error) {
	err = s.do(ctx, "pushLevel", func(ctx context.Context) error { ok, err = s.store.PushLevel(ctx, t, b, maxAge); return err })
	return
}

// PushLast implements Store.
func (s *Around) PushLast(ctx context.Context, t Token, b Booking, others []CounterID, ttl, maxAge time.Duration) (ok bool, err error) {
	err = s.do(ctx, "pushLast", func(ctx context.Context) error {
		ok, err = s.store.PushLast(ctx, t, b, others, ttl, maxAge)
		return err
	})
	return
}

// DeleteHolder implements Store.
func (s *Around) DeleteHolder(ctx context.Context, t Token) (h Holder, ok bool, err error) {
	err = s.do(ctx, "deleteHolder", func(ctx context.Context) error { h, ok, err = s.store.DeleteHolder(ctx, t); return err })
	return
}

// Touch implements Store.
func (s *Around) Touch(ctx context.Context, t Token, pod PodID) (ok bool, err error) {
	err = s.do(ctx, "touch", func(ctx context.Context) error { ok, err = s.store.Touch(ctx, t, pod); return err })
	return
}

// SetPayload implements Store.
func (s *Around) SetPayload(ctx context.Context, t Token, p Payload) (ok bool, err error) {
	err = s.do(ctx, "setPayload", func(ctx context.Context) error { ok, err = s.store.SetPayload(ctx, t, p); return err })
	return
}

// MarkHolder implements Store.
func (s *Around) MarkHolder(ctx context.Context, t Token, m Mark) (h Holder, ok bool, err error) {
	err = s.do(ctx, "markHolder", func(ctx context.Context) error { h, ok, err = s.store.MarkHolder(ctx, t, m); return err })
	return
}

// AdoptHolder implements Store.
func (s *Around) AdoptHolder(ctx context.Context, t Token, from, to PodID) (ok bool, err error) {
	err = s.do(ctx, "adoptHolder", func(ctx context.Context) error { ok, err = s.store.AdoptHolder(ctx, t, from, to); return err })
	return
}

// MarkHandled implements Store.
func (s *Around) MarkHandled(ctx context.Context, t Token) (ok bool, err error) {
	err = s.do(ctx, "markHandled", func(ctx context.Context) error { ok, err = s.store.MarkHandled(ctx, t); return err })
	return
}

// PurgeHandled implements Store.
func (s *Around) PurgeHandled(ctx context.Context, age time.Duration) (n int, err error) {
	err = s.do(ctx, "purgeHandled", func(ctx context.Context) error { n, err = s.store.PurgeHandled(ctx, age); return err })
	return
}

// Holder implements Store.
func (s *Around) Holder(ctx context.Context, t Token) (h Holder, ok bool, err error) {
	err = s.do(ctx, "holder", func(ctx context.Context) error { h, ok, err = s.store.Holder(ctx, t); return err })
	return
}

// Holders implements Store.
func (s *Around) Holders(ctx context.Context, f Filter) (hs []Holder, err error) {
	err = s.do(ctx, "holders", func(ctx context.Context) error { hs, err = s.store.Holders(ctx, f); return err })
	return
}

// HolderPods implements Store.
func (s *Around) HolderPods(ctx context.Context) (ids []PodID, err error) {
	err = s.do(ctx, "holderPods", func(ctx context.Context) error { ids, err = s.store.HolderPods(ctx); return err })
	return
}

// Expired implements Store.
func (s *Around) Expired(ctx context.Context, resource string, grace time.Duration, limit int) (hs []Holder, err error) {
	err = s.do(ctx, "expired", func(ctx context.Context) error {
		hs, err = s.store.Expired(ctx, resource, grace, limit)
		return err
	})
	return
}

// Unhandled implements Store.
func (s *Around) Unhandled(ctx context.Context, limit int) (hs []Holder, err error) {
	err = s.do(ctx, "unhandled", func(ctx context.Context) error { hs, err = s.store.Unhandled(ctx, limit); return err })
	return
}

// OldestBooking implements Store.
func (s *Around) OldestBooking(ctx context.Context, id CounterID) (age time.Duration, err error) {
	err = s.do(ctx, "oldestBooking", func(ctx context.Context) error { age, err = s.store.OldestBooking(ctx, id); return err })
	return
}

// Increment implements Store.
func (s *Around) Increment(ctx context.Context, id CounterID, limit definition.Cap) (gen Gen, count int, ok bool, err error) {
	err = s.do(ctx, "increment", func(ctx context.Context) error {
		gen, count, ok, err = s.store.Increment(ctx, id, limit)
		return err
	})
	return
}

// EnsureCounter implements Store.
func (s *Around) EnsureCounter(ctx context.Context, id CounterID, gen Gen) (err error) {
	err = s.do(ctx, "ensureCounter", func(ctx context.Context) error { err = s.store.EnsureCounter(ctx, id, gen); return err })
	return
}

// Decrement implements Store.
func (s *Around) Decrement(ctx context.Context, id CounterID, gen, listed Gen) (ok bool, err error) {
	err = s.do(ctx, "decrement", func(ctx context.Context) error { ok, err = s.store.Decrement(ctx, id, gen, listed); return err })
	return
}

// DecrementPrev implements Store.
func (s *Around) DecrementPrev(ctx context.Context, id CounterID, listed Gen) (ok bool, err error) {
	err = s.do(ctx, "decrementPrev", func(ctx context.Context) error { ok, err = s.store.DecrementPrev(ctx, id, listed); return err })
	return
}

// Counters implements Store.
func (s *Around) Counters(ctx context.Context, ids []CounterID) (cs []Counter, err error) {
	err = s.do(ctx, "counters", func(ctx context.Context) error { cs, err = s.store.Counters(ctx, ids); return err })
	return
}

// Booked implements Store.
func (s *Around) Booked(ctx context.Context, ids []CounterID) (n map[CounterID]int, err error) {
	err = s.do(ctx, "booked", func(ctx context.Context) error { n, err = s.store.Booked(ctx, ids); return err })
	return
}

// ListCounters implements Store.
func (s *Around) ListCounters(ctx context.Context, resource string, after CounterID, limit int) (cs []CounterAge, err error) {
	err = s.do(ctx, "listCounters", func(ctx context.Context) error {
		cs, err = s.store.ListCounters(ctx, resource, after, limit)
		return err
	})
	return
}

// CorrectCounter implements Store.
func (s *Around) CorrectCounter(ctx context.Context, was Counter, count int, gen Gen, margin time.Duration) (ok bool, err error) {
	err = s.do(ctx, "correctCounter", func(ctx context.Context) error {
		ok, err = s.store.CorrectCounter(ctx, was, count, gen, margin)
		return err
	})
	return
}

// RemoveCounter implements Store.
func (s *Around) RemoveCounter(ctx context.Context, was Counter, margin time.Duration) (ok bool, err error) {
	err = s.do(ctx, "removeCounter", func(ctx context.Context) error {
		ok, err = s.store.RemoveCounter(ctx, was, margin)
		return err
	})
	return
}

// OpenAudit implements Store.
func (s *Around) OpenAudit(ctx context.Context, was Counter, gen Gen, margin time.Duration) (ok bool, err error) {
	err = s.do(ctx, "openAudit", func(ctx context.Context) error { ok, err = s.store.OpenAudit(ctx, was, gen, margin); return err })
	return
}

// BookedBefore implements Store.
func (s *Around) BookedBefore(ctx context.Context, id CounterID, gen Gen) (n int, err error) {
	err = s.do(ctx, "bookedBefore", func(ctx context.Context) error { n, err = s.store.BookedBefore(ctx, id, gen); return err })
	return
}

// CloseAudit implements Store.
func (s *Around) CloseAudit(ctx context.Context, was Counter, booked int, gen Gen, margin time.Duration) (ok bool, err error) {
	err = s.do(ctx, "closeAudit", func(ctx context.Context) error {
		ok, err = s.store.CloseAudit(ctx, was, booked, gen, margin)
		return err
	})
	return
}

// PutPod implements Store.
func (s *Around) PutPod(ctx context.Context, p Pod) (err error) {
	err = s.do(ctx, "putPod", func(ctx context.Context) error { err = s.store.PutPod(ctx, p); return err })
	return
}

// BeatPod implements Store.
func (s *Around) BeatPod(ctx context.Context, id PodID) (ok bool, err error) {
	err = s.do(ctx, "beatPod", func(ctx context.Context) error { ok, err = s.store.BeatPod(ctx, id); return err })
	return
}

// Pods implements Store.
func (s *Around) Pods(ctx context.Context) (ps []Pod, err error) {
	err = s.do(ctx, "pods", func(ctx context.Context) error { ps, err = s.store.Pods(ctx); return err })
	return
}

// RemovePod implements Store.
func (s *Around) RemovePod(ctx context.Context, id PodID) (err error) {
	err = s.do(ctx, "removePod", func(ctx context.Context) error { err = s.store.RemovePod(ctx, id); return err })
	return
}

// AddEvent implements Store.
func (s *Around) AddEvent(ctx context.Context, e Event) (err error) {
	err = s.do(ctx, "addEvent", func(ctx context.Context) error { err = s.store.AddEvent(ctx, e); return err })
	return
}

// Events implements Store.
func (s *Around) Events(ctx context.Context, tenant string, limit int) (es []Event, err error) {
	err = s.do(ctx, "events", func(ctx context.Context) error { es, err = s.store.Events(ctx, tenant, limit); return err })
	return
}

// ClaimRecord implements Store.
func (s *Around) ClaimRecord(ctx context.Context, r Record) (stands Record, err error) {
	err = s.do(ctx, "claimRecord", func(ctx context.Context) error { stands, err = s.store.ClaimRecord(ctx, r); return err })
	return
}

// LookupRecord implements Store.
func (s *Around) LookupRecord(ctx context.Context, kind, key string) (r Record, ok bool, err error) {
	err = s.do(ctx, "lookupRecord", func(ctx context.Context) error { r, ok, err = s.store.LookupRecord(ctx, kind, key); return err })
	return
}

// PurgeRecords implements Store.
func (s *Around) PurgeRecords(ctx context.Context) (n int, err error) {
	err = s.do(ctx, "purgeRecords", func(ctx context.Context) error { n, err = s.store.PurgeRecords(ctx); return err })
	return
}
