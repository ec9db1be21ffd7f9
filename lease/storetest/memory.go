package storetest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Memory is the reference Store: what each verb means, in the fewest words, in
// memory and with a clock that tests can move. It passes the contract suite,
// and the engine's proofs run on it. It is for tests: nothing survives it.
type Memory struct {
	// Slips make it a store that gets something wrong; set before its first use.
	Slips Slips

	now func() time.Time

	mu       sync.Mutex
	holders  map[lease.Token]lease.Holder
	counters map[lease.CounterID]CounterDoc
	pods     map[lease.PodID]lease.Pod
	events   []lease.Event
	records  map[[2]string]record
	single   bool
	closed   bool
}

// Slips are what a store can get wrong, and tests of the engine should notice,
// in the documents themselves: no Store around another one can show them.
type Slips struct {
	OpensBlindly        bool // an audit begins on any count and takes the one that was read for old
	EndKeepsPrev        bool // an audit's end leaves prev as it is
	CorrectionKeepsPrev bool // a correction leaves prev as it is
}

type record struct {
	lease.Record
	end time.Time
}

// CounterDoc is a counter as it is stored. Where an audit is open its Audit is
// not shared with anybody.
type CounterDoc struct {
	lease.Counter
	Prev     lease.Gen // what an audit's beginning or end has changed to Gen
	ClosedAt time.Time // when the last audit ended
}

func (d CounterDoc) view() lease.Counter {
	c := d.Counter
	if c.Audit != nil {
		a := *c.Audit
		c.Audit = &a
	}
	return c
}

var _ lease.Store = (*Memory)(nil)

// NewMemory makes an empty store whose server time is now's, in milliseconds.
// Nil is the time of day.
func NewMemory(now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	return &Memory{
		now:     func() time.Time { return now().Truncate(time.Millisecond) },
		holders: map[lease.Token]lease.Holder{}, counters: map[lease.CounterID]CounterDoc{},
		pods: map[lease.PodID]lease.Pod{}, records: map[[2]string]record{},
	}
}

// SetSinglePod makes the store claim what the embedded one's file lock proves.
func (s *Memory) SetSinglePod(single bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.single = single
}

// lock begins a verb: an ended context fails it before it did anything.
func (s *Memory) lock(ctx context.Context) (func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errors.New("the store in memory is closed")
	}
	return s.mu.Unlock, nil
}

func (s *Memory) living(t lease.Token) (lease.Holder, bool) {
	h, ok := s.holders[t]
	return h, ok && h.State != lease.Revoked
}

func cloned(h lease.Holder) lease.Holder {
	h.Levels = slices.Clone(h.Levels)
	h.Payload = maps.Clone(h.Payload)
	if h.Revocation != nil {
		r := *h.Revocation
		h.Revocation = &r
	}
	return h
}

// Ping implements lease.Store.
func (s *Memory) Ping(ctx context.Context) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	unlock()
	return nil
}

// SinglePod implements lease.Store.
func (s *Memory) SinglePod() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.single
}

// Close implements lease.Store.
func (s *Memory) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// CreateHolder implements lease.HolderStore.
func (s *Memory) CreateHolder(ctx context.Context, h lease.Holder) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := s.holders[h.Token]; ok {
		return nil // an upsert that only inserts
	}
	h = cloned(h)
	h.State, h.Levels, h.Revocation = lease.Pending, nil, nil
	h.CreatedAt = s.now()
	h.LastSeenAt = h.CreatedAt
	s.holders[h.Token] = h
	return nil
}

func (s *Memory) push(t lease.Token, b lease.Booking, maxAge time.Duration) (lease.Holder, bool) {
	h, ok := s.holders[t]
	if !ok || h.State != lease.Pending || s.now().Sub(h.CreatedAt) >= maxAge {
		return h, false
	}
	if slices.ContainsFunc(h.Levels, func(l lease.Booking) bool { return l.ID == b.ID }) {
		return h, false
	}
	h = cloned(h)
	h.Levels = append(h.Levels, b)
	return h, true
}

// PushLevel implements lease.HolderStore.
func (s *Memory) PushLevel(ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	h, ok := s.push(t, b, maxAge)
	if ok {
		s.holders[t] = h
	}
	return ok, nil
}

// PushLast implements lease.HolderStore.
func (s *Memory) PushLast(ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	listed := make(map[lease.CounterID]bool)
	for _, l := range s.holders[t].Levels {
		listed[l.ID] = true
	}
	if len(listed) != len(others) {
		return false, nil
	}
	for _, id := range others {
		if !listed[id] {
			return false, nil
		}
	}
	h, ok := s.push(t, b, maxAge)
	if ok {
		h.State, h.TTL, h.LastSeenAt = lease.Held, ttl, s.now()
		s.holders[t] = h
	}
	return ok, nil
}

// DeleteHolder implements lease.HolderStore.
func (s *Memory) DeleteHolder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return lease.Holder{}, false, err
	}
	defer unlock()
	h, ok := s.living(t)
	if !ok {
		return lease.Holder{}, false, nil
	}
	delete(s.holders, t)
	return h, true, nil
}

// Touch implements lease.HolderStore.
func (s *Memory) Touch(ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	h, ok := s.holders[t]
	if !ok || h.State != lease.Held {
		return false, nil
	}
	h.LastSeenAt = s.now()
	if !h.PodBound {
		h.Pod = pod
	}
	s.holders[t] = h
	return true, nil
}

// SetPayload implements lease.HolderStore.
func (s *Memory) SetPayload(ctx context.Context, t lease.Token, p lease.Payload) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	h, ok := s.holders[t]
	if !ok || h.State != lease.Held {
		return false, nil
	}
	h.Payload = maps.Clone(p)
	s.holders[t] = h
	return true, nil
}

// MarkHolder implements lease.HolderStore.
func (s *Memory) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return lease.Holder{}, false, err
	}
	defer unlock()
	h, ok := s.living(t)
	if !ok || m.Tenant != "" && m.Tenant != h.Tenant || m.Pod != "" && m.Pod != h.Pod ||
		m.Expired && !h.LastSeenAt.Add(h.TTL+m.Grace).Before(s.now()) {
		return lease.Holder{}, false, nil
	}
	before := cloned(h)
	h = cloned(h)
	r := &lease.Revocation{Reason: m.Reason, By: m.By, Forced: m.Forced, At: s.now()}
	if h.State == lease.Pending {
		r.HandledAt = r.At
	}
	h.State, h.Revocation = lease.Revoked, r
	s.holders[t] = h
	return before, true, nil
}

// AdoptHolder implements lease.HolderStore.
func (s *Memory) AdoptHolder(ctx context.Context, t lease.Token, from, to lease.PodID) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	h, ok := s.holders[t]
	if !ok || h.State != lease.Held || h.PodBound || h.Pod != from {
		return false, nil
	}
	h.Pod, h.LastSeenAt = to, s.now()
	s.holders[t] = h
	return true, nil
}

// MarkHandled implements lease.HolderStore.
func (s *Memory) MarkHandled(ctx context.Context, t lease.Token) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	h, ok := s.holders[t]
	if !ok || h.State != lease.Revoked || !h.Revocation.HandledAt.IsZero() {
		return false, nil
	}
	h = cloned(h)
	h.Revocation.HandledAt = s.now()
	s.holders[t] = h
	return true, nil
}

// PurgeHandled implements lease.HolderStore.
func (s *Memory) PurgeHandled(ctx context.Context, age time.Duration) (int, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	n, now := 0, s.now()
	for t, h := range s.holders {
		if h.State == lease.Revoked && !h.Revocation.HandledAt.IsZero() && now.Sub(h.Revocation.HandledAt) > age {
			delete(s.holders, t)
			n++
		}
	}
	return n, nil
}

// Holder implements lease.HolderStore.
func (s *Memory) Holder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return lease.Holder{}, false, err
	}
	defer unlock()
	h, ok := s.holders[t]
	return cloned(h), ok, nil
}

// listed returns copies of the holders that keep, by less, at most limit.
func (s *Memory) listed(limit int, keep func(lease.Holder) bool, less func(a, b lease.Holder) int) []lease.Holder {
	if limit <= 0 {
		limit = 1000
	}
	var hs []lease.Holder
	for _, h := range s.holders {
		if keep(h) {
			hs = append(hs, h)
		}
	}
	slices.SortFunc(hs, less)
	hs = hs[:min(limit, len(hs))]
	for i := range hs {
		hs[i] = cloned(hs[i])
	}
	return hs
}

func byToken(a, b lease.Holder) int { return cmp.Compare(a.Token, b.Token) }

// Holders implements lease.HolderStore.
func (s *Memory) Holders(ctx context.Context, f lease.Filter) ([]lease.Holder, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	states := f.States
	if len(states) == 0 {
		states = []lease.State{lease.Pending, lease.Held}
	}
	same := func(want, is string) bool { return want == "" || want == is }
	return s.listed(f.Limit, func(h lease.Holder) bool {
		return slices.Contains(states, h.State) && h.Token > f.After &&
			same(string(f.Token), string(h.Token)) && same(f.Tenant, h.Tenant) && same(f.Project, h.Project) &&
			same(f.User, h.User) && same(f.Resource, h.Resource) && same(f.Type, h.Type) &&
			same(string(f.Pod), string(h.Pod)) && same(f.Key, h.Payload[lease.PayloadKey])
	}, byToken), nil
}

// HolderPods implements lease.HolderStore.
func (s *Memory) HolderPods(ctx context.Context) ([]lease.PodID, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	named := map[lease.PodID]bool{}
	for t := range s.holders {
		if h, ok := s.living(t); ok {
			named[h.Pod] = true
		}
	}
	return slices.Sorted(maps.Keys(named)), nil
}

// Expired implements lease.HolderStore.
func (s *Memory) Expired(ctx context.Context, resource string, grace time.Duration, limit int) ([]lease.Holder, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	now := s.now()
	return s.listed(limit, func(h lease.Holder) bool {
		return h.State != lease.Revoked && (resource == "" || h.Resource == resource) &&
			h.LastSeenAt.Add(h.TTL+grace).Before(now)
	}, byToken), nil
}

// Unhandled implements lease.HolderStore.
func (s *Memory) Unhandled(ctx context.Context, limit int) ([]lease.Holder, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.listed(limit, func(h lease.Holder) bool {
		return h.State == lease.Revoked && h.Revocation.HandledAt.IsZero()
	}, func(a, b lease.Holder) int {
		return cmp.Or(a.Revocation.At.Compare(b.Revocation.At), byToken(a, b))
	}), nil
}

// OldestBooking implements lease.HolderStore.
func (s *Memory) OldestBooking(ctx context.Context, id lease.CounterID) (time.Duration, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	var oldest time.Duration
	for t := range s.holders {
		if h, ok := s.living(t); ok && books(h, id) {
			oldest = max(oldest, s.now().Sub(h.CreatedAt))
		}
	}
	return oldest, nil
}

func books(h lease.Holder, id lease.CounterID) bool {
	return slices.ContainsFunc(h.Levels, func(b lease.Booking) bool { return b.ID == id })
}

// Increment implements lease.CounterStore.
func (s *Memory) Increment(ctx context.Context, id lease.CounterID, limit definition.Cap) (lease.Gen, int, bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return "", 0, false, err
	}
	defer unlock()
	c, ok := s.counters[id]
	if !ok || c.Count >= int(limit) {
		return "", 0, false, nil
	}
	c.Count++
	c.Cap, c.UpdatedAt = limit, s.now()
	s.counters[id] = c
	return c.Gen, c.Count, true, nil
}

// EnsureCounter implements lease.CounterStore.
func (s *Memory) EnsureCounter(ctx context.Context, id lease.CounterID, gen lease.Gen) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := s.counters[id]; !ok {
		s.counters[id] = CounterDoc{Counter: lease.Counter{ID: id, Gen: gen, UpdatedAt: s.now()}}
	}
	return nil
}

// Decrement implements lease.CounterStore.
func (s *Memory) Decrement(ctx context.Context, id lease.CounterID, gen, listed lease.Gen) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if c, ok := s.counters[id]; !ok || c.Gen != gen {
		return false, nil
	}
	return s.takeOff(id, listed != gen), nil
}

// DecrementPrev implements lease.CounterStore.
func (s *Memory) DecrementPrev(ctx context.Context, id lease.CounterID, listed lease.Gen) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if c, ok := s.counters[id]; !ok || listed == "" || c.Prev != listed {
		return false, nil
	}
	return s.takeOff(id, true), nil
}

func (s *Memory) takeOff(id lease.CounterID, old bool) bool {
	c := s.counters[id]
	if c.Count <= 0 {
		return false
	}
	c.Count--
	c.UpdatedAt = s.now()
	if old && c.Audit != nil {
		c.Audit = &lease.Audit{Old: c.Audit.Old - 1, OpenedAt: c.Audit.OpenedAt}
	}
	s.counters[id] = c
	return true
}

// Counters implements lease.CounterStore.
func (s *Memory) Counters(ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var cs []lease.Counter
	for _, id := range ids {
		if c, ok := s.counters[id]; ok {
			cs = append(cs, c.view())
		}
	}
	return cs, nil
}

// Booked implements lease.CounterStore.
func (s *Memory) Booked(ctx context.Context, ids []lease.CounterID) (map[lease.CounterID]int, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	wanted := make(map[lease.CounterID]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	n := map[lease.CounterID]int{}
	for t := range s.holders {
		if h, ok := s.living(t); ok {
			for _, b := range h.Levels { // each counter once: a holder lists none twice
				if wanted[b.ID] {
					n[b.ID]++
				}
			}
		}
	}
	return n, nil
}

// ListCounters implements lease.CounterStore.
func (s *Memory) ListCounters(ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if limit <= 0 {
		limit = 1000
	}
	now := s.now()
	var cs []lease.CounterAge
	for _, id := range slices.Sorted(maps.Keys(s.counters)) {
		if id > after && (resource == "" || strings.HasPrefix(string(id), resource+"|")) && len(cs) < limit {
			c := lease.CounterAge{Counter: s.counters[id].view()}
			c.Age = now.Sub(c.UpdatedAt)
			if c.Audit != nil {
				c.AuditAge = now.Sub(c.Audit.OpenedAt)
			}
			cs = append(cs, c)
		}
	}
	return cs, nil
}

// quiet reports whether a counter is what it was and old enough to correct.
func (s *Memory) quiet(was lease.Counter, margin time.Duration) bool {
	c, ok := s.counters[was.ID]
	return ok && c.Count == was.Count && c.Gen == was.Gen && c.UpdatedAt.Equal(was.UpdatedAt) &&
		s.now().Sub(c.UpdatedAt) > margin
}

// CorrectCounter implements lease.CounterStore.
func (s *Memory) CorrectCounter(ctx context.Context, was lease.Counter, count int, gen lease.Gen, margin time.Duration) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if !s.quiet(was, margin) {
		return false, nil
	}
	c := s.counters[was.ID].Counter
	c.Count, c.Gen, c.UpdatedAt, c.Audit = count, gen, s.now(), nil
	next := CounterDoc{Counter: c}
	if s.Slips.CorrectionKeepsPrev {
		next.Prev = s.counters[was.ID].Prev
	}
	s.counters[was.ID] = next
	return true, nil
}

// RemoveCounter implements lease.CounterStore.
func (s *Memory) RemoveCounter(ctx context.Context, was lease.Counter, margin time.Duration) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if !s.quiet(was, margin) {
		return false, nil
	}
	delete(s.counters, was.ID)
	return true, nil
}

// OpenAudit implements lease.CounterStore.
func (s *Memory) OpenAudit(ctx context.Context, was lease.Counter, gen lease.Gen, margin time.Duration) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	c, ok := s.counters[was.ID]
	if !ok || c.Count != was.Count && !s.Slips.OpensBlindly || c.Gen != was.Gen || c.Audit != nil ||
		!c.ClosedAt.IsZero() && s.now().Sub(c.ClosedAt) <= margin {
		return false, nil
	}
	c.Gen, c.Prev, c.Audit = gen, c.Gen, &lease.Audit{Old: was.Count, OpenedAt: s.now()}
	s.counters[was.ID] = c
	return true, nil
}

// BookedBefore implements lease.CounterStore.
func (s *Memory) BookedBefore(ctx context.Context, id lease.CounterID, gen lease.Gen) (int, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	n := 0
	for t := range s.holders {
		if h, ok := s.living(t); ok && slices.ContainsFunc(h.Levels, func(b lease.Booking) bool { return b.ID == id && b.Gen != gen }) {
			n++
		}
	}
	return n, nil
}

// CloseAudit implements lease.CounterStore.
func (s *Memory) CloseAudit(ctx context.Context, was lease.Counter, booked int, gen lease.Gen, margin time.Duration) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	c, ok := s.counters[was.ID]
	if !ok || c.Gen != was.Gen || c.Audit == nil || was.Audit == nil || c.Audit.Old != was.Audit.Old ||
		s.now().Sub(c.Audit.OpenedAt) <= margin || c.Count < c.Audit.Old-booked {
		return false, nil
	}
	c.Count -= c.Audit.Old - booked
	if !s.Slips.EndKeepsPrev {
		c.Prev = c.Gen
	}
	c.Gen, c.Audit = gen, nil
	c.UpdatedAt, c.ClosedAt = s.now(), s.now()
	s.counters[was.ID] = c
	return true, nil
}

// PutPod implements lease.PodStore.
func (s *Memory) PutPod(ctx context.Context, p lease.Pod) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	p.BeatAt, p.BeatAge = s.now(), 0
	s.pods[p.ID] = p
	return nil
}

// BeatPod implements lease.PodStore.
func (s *Memory) BeatPod(ctx context.Context, id lease.PodID) (bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	p, ok := s.pods[id]
	if !ok || p.State == lease.PodStopped {
		return false, nil
	}
	p.BeatAt = s.now()
	s.pods[id] = p
	return true, nil
}

// Pods implements lease.PodStore.
func (s *Memory) Pods(ctx context.Context) ([]lease.Pod, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var ps []lease.Pod
	for _, id := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[id]
		p.BeatAge = s.now().Sub(p.BeatAt)
		ps = append(ps, p)
	}
	return ps, nil
}

// RemovePod implements lease.PodStore.
func (s *Memory) RemovePod(ctx context.Context, id lease.PodID) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	delete(s.pods, id)
	return nil
}

// eventLife is how long events are kept.
const eventLife = time.Hour

// AddEvent implements lease.EventStore.
func (s *Memory) AddEvent(ctx context.Context, e lease.Event) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	e.At = s.now()
	s.events = append(s.events, e)
	return nil
}

// Events implements lease.EventStore.
func (s *Memory) Events(ctx context.Context, tenant string, limit int) ([]lease.Event, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if limit <= 0 {
		limit = 1000
	}
	var es []lease.Event
	for _, e := range slices.Backward(s.events) {
		if len(es) < limit && (tenant == "" || e.Tenant == tenant) && s.now().Sub(e.At) <= eventLife {
			es = append(es, e)
		}
	}
	return es, nil
}

// ClaimRecord implements lease.Records.
func (s *Memory) ClaimRecord(ctx context.Context, r lease.Record) (lease.Record, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return lease.Record{}, err
	}
	defer unlock()
	key := [2]string{r.Kind, r.Key}
	stands, ok := s.records[key]
	if !ok || !s.now().Before(stands.end) {
		r.Value = maps.Clone(r.Value)
		stands = record{Record: r}
	}
	stands.end = s.now().Add(stands.TTL)
	s.records[key] = stands
	out := stands.Record
	out.Value = maps.Clone(out.Value)
	return out, nil
}

// LookupRecord implements lease.Records.
func (s *Memory) LookupRecord(ctx context.Context, kind, key string) (lease.Record, bool, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return lease.Record{}, false, err
	}
	defer unlock()
	r, ok := s.records[[2]string{kind, key}]
	if !ok || !s.now().Before(r.end) {
		return lease.Record{}, false, nil
	}
	out := r.Record
	out.Value = maps.Clone(out.Value)
	return out, true, nil
}

// PurgeRecords implements lease.Records.
func (s *Memory) PurgeRecords(ctx context.Context) (int, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	n := 0
	for k, r := range s.records {
		if !s.now().Before(r.end) {
			delete(s.records, k)
			n++
		}
	}
	return n, nil
}

// AllHolders returns every holder in token order, marks included.
func (s *Memory) AllHolders() []lease.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	hs := make([]lease.Holder, 0, len(s.holders))
	for _, t := range slices.Sorted(maps.Keys(s.holders)) {
		hs = append(hs, cloned(s.holders[t]))
	}
	return hs
}

// AllCounters returns every counter in id order.
func (s *Memory) AllCounters() []lease.Counter {
	docs := s.CounterDocs()
	cs := make([]lease.Counter, len(docs))
	for i, d := range docs {
		cs[i] = d.Counter
	}
	return cs
}

// CounterDocs returns every counter in id order, as it is stored.
func (s *Memory) CounterDocs() []CounterDoc {
	s.mu.Lock()
	defer s.mu.Unlock()
	docs := make([]CounterDoc, 0, len(s.counters))
	for _, id := range slices.Sorted(maps.Keys(s.counters)) {
		d := s.counters[id]
		d.Counter = d.view()
		docs = append(docs, d)
	}
	return docs
}

// Put writes holders and counters as they are, to begin a test in the middle.
func (s *Memory) Put(hs []lease.Holder, cs []CounterDoc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hs {
		s.holders[h.Token] = cloned(h)
	}
	for _, c := range cs {
		c.Counter = c.view()
		s.counters[c.ID] = c
	}
}
