package lease

import (
	"context"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// metered is the Store as the engine calls it: each verb has the deadline of
// one operation, is timed for the observer, and tells the contact record
// whether the store was there.
type metered struct {
	Store
	timeout time.Duration
	obs     Observer
	contact *contact
}

func (s *metered) call(ctx context.Context, op string, f func(context.Context) error) {
	opCtx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	begun := time.Now()
	err := f(opCtx)
	s.obs.StoreCalled(op, time.Since(begun), err)
	switch {
	case err == nil:
		s.contact.succeeded(time.Now())
	case ctx.Err() == nil: // a caller that went away says nothing of the store
		s.contact.failed()
	}
}

func (s *metered) Ping(ctx context.Context) (err error) {
	s.call(ctx, "ping", func(ctx context.Context) error { err = s.Store.Ping(ctx); return err })
	return
}

func (s *metered) CreateHolder(ctx context.Context, h Holder) (err error) {
	s.call(ctx, "createHolder", func(ctx context.Context) error { err = s.Store.CreateHolder(ctx, h); return err })
	return
}

func (s *metered) PushLevel(ctx context.Context, t Token, b Booking, maxAge time.Duration) (ok bool, err error) {
	s.call(ctx, "pushLevel", func(ctx context.Context) error { ok, err = s.Store.PushLevel(ctx, t, b, maxAge); return err })
	return
}

func (s *metered) PushLast(ctx context.Context, t Token, b Booking, others []CounterID, ttl, maxAge time.Duration) (ok bool, err error) {
	s.call(ctx, "pushLast", func(ctx context.Context) error {
		ok, err = s.Store.PushLast(ctx, t, b, others, ttl, maxAge)
		return err
	})
	return
}

func (s *metered) DeleteHolder(ctx context.Context, t Token) (h Holder, ok bool, err error) {
	s.call(ctx, "deleteHolder", func(ctx context.Context) error { h, ok, err = s.Store.DeleteHolder(ctx, t); return err })
	return
}

// toucher is a Store that can often touch without waiting for anything; see
// boltstore. False says nothing but that Touch has to be asked.
type toucher interface {
	TouchNow(t Token, pod PodID) bool
}

// Touch is what every use of a lease costs: where nothing is waited for it needs
// no deadline.
func (s *metered) Touch(ctx context.Context, t Token, pod PodID) (ok bool, err error) {
	if q, quick := s.Store.(toucher); quick && ctx.Err() == nil {
		begun := time.Now()
		if q.TouchNow(t, pod) {
			now := time.Now()
			s.obs.StoreCalled("touch", now.Sub(begun), nil)
			s.contact.succeeded(now)
			return true, nil
		}
	}
	s.call(ctx, "touch", func(ctx context.Context) error { ok, err = s.Store.Touch(ctx, t, pod); return err })
	return
}

func (s *metered) SetPayload(ctx context.Context, t Token, p Payload) (ok bool, err error) {
	s.call(ctx, "setPayload", func(ctx context.Context) error { ok, err = s.Store.SetPayload(ctx, t, p); return err })
	return
}

func (s *metered) MarkHolder(ctx context.Context, t Token, m Mark) (h Holder, ok bool, err error) {
	s.call(ctx, "markHolder", func(ctx context.Context) error { h, ok, err = s.Store.MarkHolder(ctx, t, m); return err })
	return
}

func (s *metered) AdoptHolder(ctx context.Context, t Token, from, to PodID) (ok bool, err error) {
	s.call(ctx, "adoptHolder", func(ctx context.Context) error { ok, err = s.Store.AdoptHolder(ctx, t, from, to); return err })
	return
}

func (s *metered) MarkHandled(ctx context.Context, t Token) (ok bool, err error) {
	s.call(ctx, "markHandled", func(ctx context.Context) error { ok, err = s.Store.MarkHandled(ctx, t); return err })
	return
}

func (s *metered) PurgeHandled(ctx context.Context, age time.Duration) (n int, err error) {
	s.call(ctx, "purgeHandled", func(ctx context.Context) error { n, err = s.Store.PurgeHandled(ctx, age); return err })
	return
}

func (s *metered) Holder(ctx context.Context, t Token) (h Holder, ok bool, err error) {
	s.call(ctx, "holder", func(ctx context.Context) error { h, ok, err = s.Store.Holder(ctx, t); return err })
	return
}

func (s *metered) Holders(ctx context.Context, f Filter) (hs []Holder, err error) {
	s.call(ctx, "holders", func(ctx context.Context) error { hs, err = s.Store.Holders(ctx, f); return err })
	return
}

func (s *metered) HolderPods(ctx context.Context) (ids []PodID, err error) {
	s.call(ctx, "holderPods", func(ctx context.Context) error { ids, err = s.Store.HolderPods(ctx); return err })
	return
}

func (s *metered) Expired(ctx context.Context, resource string, grace time.Duration, limit int) (hs []Holder, err error) {
	s.call(ctx, "expired", func(ctx context.Context) error {
		hs, err = s.Store.Expired(ctx, resource, grace, limit)
		return err
	})
	return
}

func (s *metered) Unhandled(ctx context.Context, limit int) (hs []Holder, err error) {
	s.call(ctx, "unhandled", func(ctx context.Context) error { hs, err = s.Store.Unhandled(ctx, limit); return err })
	return
}

func (s *metered) OldestBooking(ctx context.Context, id CounterID) (age time.Duration, err error) {
	s.call(ctx, "oldestBooking", func(ctx context.Context) error { age, err = s.Store.OldestBooking(ctx, id); return err })
	return
}

func (s *metered) Increment(ctx context.Context, id CounterID, limit definition.Cap) (gen Gen, count int, ok bool, err error) {
	s.call(ctx, "increment", func(ctx context.Context) error {
		gen, count, ok, err = s.Store.Increment(ctx, id, limit)
		return err
	})
	return
}

func (s *metered) EnsureCounter(ctx context.Context, id CounterID, gen Gen) (err error) {
	s.call(ctx, "ensureCounter", func(ctx context.Context) error { err = s.Store.EnsureCounter(ctx, id, gen); return err })
	return
}

func (s *metered) Decrement(ctx context.Context, id CounterID, gen, listed Gen) (ok bool, err error) {
	s.call(ctx, "decrement", func(ctx context.Context) error { ok, err = s.Store.Decrement(ctx, id, gen, listed); return err })
	return
}

func (s *metered) DecrementPrev(ctx context.Context, id CounterID, listed Gen) (ok bool, err error) {
	s.call(ctx, "decrementPrev", func(ctx context.Context) error { ok, err = s.Store.DecrementPrev(ctx, id, listed); return err })
	return
}

func (s *metered) Counters(ctx context.Context, ids []CounterID) (cs []Counter, err error) {
	s.call(ctx, "counters", func(ctx context.Context) error { cs, err = s.Store.Counters(ctx, ids); return err })
	return
}

func (s *metered) Booked(ctx context.Context, ids []CounterID) (n map[CounterID]int, err error) {
	s.call(ctx, "booked", func(ctx context.Context) error { n, err = s.Store.Booked(ctx, ids); return err })
	return
}

func (s *metered) ListCounters(ctx context.Context, resource string, after CounterID, limit int) (cs []CounterAge, err error) {
	s.call(ctx, "listCounters", func(ctx context.Context) error {
		cs, err = s.Store.ListCounters(ctx, resource, after, limit)
		return err
	})
	return
}

func (s *metered) CorrectCounter(ctx context.Context, was Counter, count int, gen Gen, margin time.Duration) (ok bool, err error) {
	s.call(ctx, "correctCounter", func(ctx context.Context) error {
		ok, err = s.Store.CorrectCounter(ctx, was, count, gen, margin)
		return err
	})
	return
}

func (s *metered) RemoveCounter(ctx context.Context, was Counter, margin time.Duration) (ok bool, err error) {
	s.call(ctx, "removeCounter", func(ctx context.Context) error {
		ok, err = s.Store.RemoveCounter(ctx, was, margin)
		return err
	})
	return
}

func (s *metered) OpenAudit(ctx context.Context, was Counter, gen Gen, margin time.Duration) (ok bool, err error) {
	s.call(ctx, "openAudit", func(ctx context.Context) error { ok, err = s.Store.OpenAudit(ctx, was, gen, margin); return err })
	return
}

func (s *metered) BookedBefore(ctx context.Context, id CounterID, gen Gen) (n int, err error) {
	s.call(ctx, "bookedBefore", func(ctx context.Context) error { n, err = s.Store.BookedBefore(ctx, id, gen); return err })
	return
}

func (s *metered) CloseAudit(ctx context.Context, was Counter, booked int, gen Gen, margin time.Duration) (ok bool, err error) {
	s.call(ctx, "closeAudit", func(ctx context.Context) error {
		ok, err = s.Store.CloseAudit(ctx, was, booked, gen, margin)
		return err
	})
	return
}

func (s *metered) PutPod(ctx context.Context, p Pod) (err error) {
	s.call(ctx, "putPod", func(ctx context.Context) error { err = s.Store.PutPod(ctx, p); return err })
	return
}

func (s *metered) BeatPod(ctx context.Context, id PodID) (ok bool, err error) {
	s.call(ctx, "beatPod", func(ctx context.Context) error { ok, err = s.Store.BeatPod(ctx, id); return err })
	return
}

func (s *metered) Pods(ctx context.Context) (ps []Pod, err error) {
	s.call(ctx, "pods", func(ctx context.Context) error { ps, err = s.Store.Pods(ctx); return err })
	return
}

func (s *metered) RemovePod(ctx context.Context, id PodID) (err error) {
	s.call(ctx, "removePod", func(ctx context.Context) error { err = s.Store.RemovePod(ctx, id); return err })
	return
}

func (s *metered) AddEvent(ctx context.Context, e Event) (err error) {
	s.call(ctx, "addEvent", func(ctx context.Context) error { err = s.Store.AddEvent(ctx, e); return err })
	return
}

func (s *metered) Events(ctx context.Context, tenant string, limit int) (es []Event, err error) {
	s.call(ctx, "events", func(ctx context.Context) error { es, err = s.Store.Events(ctx, tenant, limit); return err })
	return
}

func (s *metered) PurgeRecords(ctx context.Context) (n int, err error) {
	s.call(ctx, "purgeRecords", func(ctx context.Context) error { n, err = s.Store.PurgeRecords(ctx); return err })
	return
}
