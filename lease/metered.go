package lease

import (
	"context"
	"time"
)

// metered is the Store as the engine and everybody above it call it: each verb
// has the deadline of one operation, is timed for the observer, and tells the
// contact record whether the store was there.
type metered struct {
	*Around
	quick   toucher // nil where the store has no such short way
	timeout time.Duration
	obs     Observer
	contact *contact
}

func newMetered(s Store, timeout time.Duration, obs Observer, c *contact) *metered {
	m := &metered{timeout: timeout, obs: obs, contact: c}
	m.quick, _ = s.(toucher)
	m.Around = NewAround(s, m.call)
	return m
}

func (s *metered) call(ctx context.Context, verb string, call func(context.Context) error) error {
	opCtx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	begun := time.Now()
	err := call(opCtx)
	s.obs.StoreCalled(verb, time.Since(begun), err)
	switch {
	case err == nil:
		s.contact.succeeded(time.Now())
	case ctx.Err() == nil: // a caller that went away says nothing of the store
		s.contact.failed()
	}
	return err
}

// toucher is a Store that can often touch without waiting for anything; see
// boltstore. False says nothing but that Touch has to be asked.
type toucher interface {
	TouchNow(t Token, pod PodID) bool
}

// Touch is what every use of a lease costs: where nothing is waited for it needs
// no deadline.
func (s *metered) Touch(ctx context.Context, t Token, pod PodID) (ok bool, err error) {
	if s.quick != nil && ctx.Err() == nil {
		begun := time.Now()
		if s.quick.TouchNow(t, pod) {
			now := time.Now()
			s.obs.StoreCalled("touch", now.Sub(begun), nil)
			s.contact.succeeded(now)
			return true, nil
		}
	}
	return s.Around.Touch(ctx, t, pod)
}
