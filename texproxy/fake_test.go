package texproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// fakeStore is a lease store in memory that several pods can share, can be put
// out of reach, and counts the calls that it gets.
type fakeStore struct {
	mu      sync.Mutex
	down    bool
	calls   int
	ops     []string
	next    int
	holders map[lease.Token]*lease.Holder
	records map[string]lease.Record
	changed chan struct{} // closed and made anew at each change
}

func newFakeStore() *fakeStore {
	return &fakeStore{holders: map[lease.Token]*lease.Holder{}, records: map[string]lease.Record{}, changed: make(chan struct{})}
}

var errDown = errors.New("connection refused")

// do runs f as one store call.
func (s *fakeStore) do(op string, f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.ops = append(s.ops, op)
	if s.down {
		return &lease.UnavailableError{Why: "the lease store cannot be reached", Err: errDown}
	}
	f()
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

func (s *fakeStore) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeStore) callCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// count is how often an operation was called.
func (s *fakeStore) count(op string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.ops {
		if o == op {
			n++
		}
	}
	return n
}

// held lists the living holders.
func (s *fakeStore) held() []lease.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []lease.Holder
	for _, h := range s.holders {
		if h.State == lease.Held {
			out = append(out, *h)
		}
	}
	return out
}

// revoke marks every living holder and returns them as their handlers get them.
func (s *fakeStore) revoke(reason lease.Reason) []lease.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []lease.Holder
	for _, h := range s.holders {
		if h.State == lease.Held {
			h.State = lease.Revoked
			h.Revocation = &lease.Revocation{Reason: reason, At: time.Now()}
			out = append(out, *h)
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return out
}

// ClaimRecord implements lease.Records.
func (s *fakeStore) ClaimRecord(_ context.Context, r lease.Record) (got lease.Record, err error) {
	err = s.do("claim "+r.Kind, func() {
		key := r.Kind + " " + r.Key
		if was, ok := s.records[key]; ok {
			got = was
			return
		}
		s.records[key], got = r, r
	})
	return got, err
}

// LookupRecord implements lease.Records.
func (s *fakeStore) LookupRecord(_ context.Context, kind, key string) (r lease.Record, ok bool, err error) {
	err = s.do("lookup "+kind, func() { r, ok = s.records[kind+" "+key] })
	return r, ok, err
}

// PurgeRecords implements lease.Records.
func (s *fakeStore) PurgeRecords(context.Context) (int, error) { return 0, nil }

// fakeEngine is one pod's engine over a fakeStore.
type fakeEngine struct {
	*fakeStore
	pod lease.PodID
}

func (e *fakeEngine) acquire(ctx context.Context, r lease.Request) (slot, error) {
	deadline := time.Now().Add(r.Definition.Wait)
	op := "acquire"
	if r.Trial {
		op = "trial"
	}
	if r.MaxWait == lease.NoWait || r.Trial {
		deadline = time.Now()
	}
	for {
		var got *fakeSlot
		var busy error
		var changed chan struct{}
		err := e.do(op, func() { got, busy = e.book(r) })
		if err != nil || got != nil {
			if got == nil {
				return nil, err
			}
			return got, nil
		}
		e.mu.Lock()
		changed = e.changed
		e.mu.Unlock()
		wait := time.Until(deadline)
		if wait <= 0 {
			return nil, busy
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		case <-time.After(wait):
		}
	}
}

func (e *fakeEngine) book(r lease.Request) (*fakeSlot, error) {
	scopes := map[definition.Level]string{definition.User: r.Tenant + "/" + r.User, definition.Project: r.Tenant + "/" + r.Project, definition.Tenant: r.Tenant, definition.Global: "*"}
	var levels []lease.Booking
	for _, level := range definition.Levels {
		most, ok := r.Definition.Caps[level]
		if !ok {
			continue
		}
		id := lease.CounterID(fmt.Sprintf("%s|%s|%s", r.Definition.Resource, level, scopes[level]))
		n := 0
		for _, h := range e.holders {
			if h.State == lease.Held && slices.ContainsFunc(h.Levels, func(b lease.Booking) bool { return b.ID == id }) {
				n++
			}
		}
		if n >= int(most) {
			return nil, &lease.BusyError{Resource: r.Definition.Resource, Level: level, Cap: most, Count: n, Oldest: 42 * time.Second, RetryAfter: 3 * time.Second, Waited: r.Definition.Wait}
		}
		levels = append(levels, lease.Booking{ID: id, Level: level})
	}
	e.next++
	h := &lease.Holder{
		Token: lease.Token(fmt.Sprintf("t%d", e.next)), State: lease.Held, Type: r.Type, Resource: r.Definition.Resource,
		Tenant: r.Tenant, Project: r.Project, User: r.User, Pod: e.pod, PodBound: r.PodBound, Payload: r.Payload, Levels: levels,
		TTL: r.Definition.TTL, CreatedAt: time.Now(), LastSeenAt: time.Now(),
	}
	e.holders[h.Token] = h
	return &fakeSlot{e, lease.Ref{Token: h.Token, Type: h.Type, TTL: h.TTL, PodBound: h.PodBound}}, nil
}

func (e *fakeEngine) attach(r lease.Ref) slot { return &fakeSlot{e, r} }

func (e *fakeEngine) find(_ context.Context, f lease.Filter) (out []lease.Holder, err error) {
	states := f.States
	if len(states) == 0 {
		states = []lease.State{lease.Held}
	}
	err = e.do("find", func() {
		for _, h := range e.holders {
			if (f.Token == "" || h.Token == f.Token) && (f.Key == "" || h.Payload[lease.PayloadKey] == f.Key) &&
				(f.Type == "" || h.Type == f.Type) && slices.Contains(states, h.State) {
				out = append(out, *h)
			}
		}
	})
	slices.SortFunc(out, func(a, b lease.Holder) int { return cmp.Compare(a.Token, b.Token) })
	return out, err
}

func (e *fakeEngine) lostReason(_ context.Context, t lease.Token) (r lease.Reason) {
	_ = e.do("reason", func() {
		if h := e.holders[t]; h != nil && h.Revocation != nil {
			r = h.Revocation.Reason
		}
	})
	return r
}

type fakeSlot struct {
	e   *fakeEngine
	ref lease.Ref
}

func (s *fakeSlot) Noop() bool     { return false }
func (s *fakeSlot) Ref() lease.Ref { return s.ref }

func (s *fakeSlot) use(op string, f func(h *lease.Holder)) error {
	var lost error
	err := s.e.do(op, func() {
		h := s.e.holders[s.ref.Token]
		switch {
		case h == nil:
			lost = &lease.LostError{}
		case h.State != lease.Held:
			lost = &lease.LostError{Reason: h.Revocation.Reason}
		default:
			f(h)
		}
	})
	if err != nil {
		return err
	}
	return lost
}

func (s *fakeSlot) Check(context.Context) error {
	return s.use("check", func(h *lease.Holder) {
		h.LastSeenAt = time.Now()
		if !h.PodBound {
			h.Pod = s.e.pod
		}
	})
}

func (s *fakeSlot) UpdatePayload(_ context.Context, p lease.Payload) error {
	return s.use("payload", func(h *lease.Holder) { h.Payload = p })
}

func (s *fakeSlot) Release(context.Context) error {
	return s.e.do("release", func() {
		if h := s.e.holders[s.ref.Token]; h != nil && h.State == lease.Held {
			delete(s.e.holders, s.ref.Token)
		}
	})
}
