package boltstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// defaultLimit is what a limit of zero means.
const defaultLimit = 1000

// found is a holder that a verb has matched.
type found struct {
	holder lease.Holder
	ok     bool
}

// CreateHolder implements lease.HolderStore.
func (s *Store) CreateHolder(ctx context.Context, h lease.Holder) error {
	_, err := update(ctx, s, func(x *txn) (struct{}, error) {
		if was, err := x.holder(h.Token); err != nil || was != nil {
			if err == nil {
				err = fmt.Errorf("a holder with this token exists already")
			}
			return struct{}{}, err
		}
		doc := &holderDoc{
			State: lease.Pending, Type: h.Type, Resource: h.Resource, Lease: h.Lease, Label: h.Label,
			Tenant: h.Tenant, Project: h.Project, User: h.User, HolderRef: h.HolderRef, Pod: h.Pod, PodBound: h.PodBound,
			Key: h.Payload[lease.PayloadKey], TTL: int64(h.TTL),
			CreatedAt: x.now, SeenAt: x.now, Due: x.now + int64(h.TTL),
		}
		if err := x.putPayload(h.Token, h.Payload); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, x.putHolder(h.Token, nil, doc)
	})
	return err
}

func (x *txn) putPayload(t lease.Token, p lease.Payload) error {
	if len(p) == 0 {
		return x.del(bucketPayloads, []byte(t))
	}
	return x.put(bucketPayloads, []byte(t), encode(p))
}

// change applies f to a copy of the holder and writes it where f says so.
func (x *txn) change(t lease.Token, f func(next *holderDoc) bool) (bool, error) {
	h, err := x.holder(t)
	if err != nil || h == nil {
		return false, err
	}
	next := *h
	next.Levels = slices.Clone(h.Levels)
	if h.Revoked != nil {
		r := *h.Revoked
		next.Revoked = &r
	}
	if !f(&next) {
		return false, nil
	}
	return true, x.putHolder(t, h, &next)
}

// pushable reports whether b may be pushed: the holder is PENDING, does not
// list the counter yet and is young enough.
func pushable(h *holderDoc, b lease.Booking, now int64, maxAge time.Duration) bool {
	return h.State == lease.Pending && !lists(h, b.ID) && now-h.CreatedAt < int64(maxAge)
}

func lists(h *holderDoc, id lease.CounterID) bool {
	return slices.ContainsFunc(h.Levels, func(b bookingDoc) bool { return b.ID == id })
}

// PushLevel implements lease.HolderStore.
func (s *Store) PushLevel(ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		return x.change(t, func(h *holderDoc) bool {
			if !pushable(h, b, x.now, maxAge) {
				return false
			}
			h.Levels = append(h.Levels, bookingDoc(b))
			return true
		})
	})
}

// PushLast implements lease.HolderStore.
func (s *Store) PushLast(ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		return x.change(t, func(h *holderDoc) bool {
			if !pushable(h, b, x.now, maxAge) || len(h.Levels) != len(others) {
				return false
			}
			for _, id := range others {
				if !lists(h, id) {
					return false
				}
			}
			h.Levels = append(h.Levels, bookingDoc(b))
			h.State, h.TTL, h.SeenAt, h.Due = lease.Held, int64(ttl), x.now, x.now+int64(ttl)
			x.sit(t, h, x.now)
			return true
		})
	})
}

// DeleteHolder implements lease.HolderStore.
func (s *Store) DeleteHolder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	f, err := update(ctx, s, func(x *txn) (found, error) {
		h, err := x.holder(t)
		if err != nil || h == nil || !h.living() {
			return found{}, err
		}
		v, err := x.view(t, h, x.take(t, h.SeenAt))
		if err != nil {
			return found{}, err
		}
		x.leave(t)
		return found{v, true}, x.putHolder(t, h, nil)
	})
	return f.holder, f.ok, err
}

// Touch implements lease.HolderStore. Where the pod stays the same it is a
// matter of memory (see seats); it goes to disk within a second.
func (s *Store) Touch(ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	select {
	case <-s.stop:
		return false, ErrClosed
	default:
	}
	if s.TouchNow(t, pod) {
		return true, nil
	}
	return update(ctx, s, func(x *txn) (bool, error) {
		return x.change(t, func(h *holderDoc) bool {
			if h.State != lease.Held {
				return false
			}
			if !h.PodBound {
				h.Pod = pod
			}
			x.touched(t, h)
			return true
		})
	})
}

// TouchNow touches where that is a matter of memory, and reports whether it did.
func (s *Store) TouchNow(t lease.Token, pod lease.PodID) bool {
	select {
	case <-s.stop:
		return false
	default:
	}
	return s.seats.touch(t, pod, s.now())
}

// touched sets lastSeenAt = now on a HELD holder that the caller is changing.
func (x *txn) touched(t lease.Token, h *holderDoc) {
	x.take(t, 0)
	h.SeenAt = x.now
	x.sit(t, h, x.now)
}

// SetPayload implements lease.HolderStore.
func (s *Store) SetPayload(ctx context.Context, t lease.Token, p lease.Payload) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		ok, err := x.change(t, func(h *holderDoc) bool {
			h.Key = p[lease.PayloadKey]
			return h.State == lease.Held
		})
		if err != nil || !ok {
			return false, err
		}
		return true, x.putPayload(t, p)
	})
}

// MarkHolder implements lease.HolderStore.
func (s *Store) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
	f, err := update(ctx, s, func(x *txn) (found, error) {
		h, err := x.holder(t)
		if err != nil || h == nil || !h.living() ||
			(m.Tenant != "" && h.Tenant != m.Tenant) || (m.Pod != "" && h.Pod != m.Pod) {
			return found{}, err
		}
		// The seat is taken where its time is read: a touch that comes now waits
		// for the mark and then finds nothing, one that came before is seen here.
		seen := x.take(t, h.SeenAt)
		if m.Expired && seen+h.TTL+int64(m.Grace) >= x.now {
			return found{}, nil
		}
		v, err := x.view(t, h, seen)
		if err != nil {
			return found{}, err
		}
		next := *h
		next.State, next.SeenAt = lease.Revoked, seen
		next.Revoked = &revokedDoc{Reason: m.Reason, By: m.By, Forced: m.Forced, At: x.now}
		if h.State == lease.Pending {
			next.Revoked.HandledAt = x.now // nothing was held
		}
		x.leave(t)
		if err := x.del(bucketSeen, []byte(t)); err != nil {
			return found{}, err
		}
		return found{v, true}, x.putHolder(t, h, &next)
	})
	return f.holder, f.ok, err
}

// AdoptHolder implements lease.HolderStore.
func (s *Store) AdoptHolder(ctx context.Context, t lease.Token, from, to lease.PodID) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		return x.change(t, func(h *holderDoc) bool {
			if h.State != lease.Held || h.PodBound || h.Pod != from {
				return false
			}
			h.Pod = to
			x.touched(t, h)
			return true
		})
	})
}

// MarkHandled implements lease.HolderStore.
func (s *Store) MarkHandled(ctx context.Context, t lease.Token) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		return x.change(t, func(h *holderDoc) bool {
			if h.State != lease.Revoked || h.Revoked.HandledAt != 0 {
				return false
			}
			h.Revoked.HandledAt = x.now
			return true
		})
	})
}

// PurgeHandled implements lease.HolderStore. One call deletes at most a few
// thousand, in as many transactions as it takes, so that nobody waits for it.
func (s *Store) PurgeHandled(ctx context.Context, age time.Duration) (int, error) {
	total := 0
	for {
		n, err := update(ctx, s, func(x *txn) (int, error) { return x.purgeHandled(age, flushChunk) })
		total += n
		if err != nil || n < flushChunk {
			return total, err
		}
	}
}

func (x *txn) purgeHandled(age time.Duration, limit int) (int, error) {
	old, err := x.oldest(indexHandled, limit, func(handledAt int64) bool { return x.now-handledAt > int64(age) })
	if err != nil {
		return 0, err
	}
	for _, t := range old {
		h, err := x.holder(t)
		if err != nil || h == nil {
			return 0, err
		}
		if err := x.putHolder(t, h, nil); err != nil {
			return 0, err
		}
	}
	return len(old), nil
}

// oldest lists the tokens of an index by time while want says so.
func (x *txn) oldest(index []byte, limit int, want func(at int64) bool) ([]lease.Token, error) {
	var out []lease.Token
	err := eachPrefix(x.Bucket(index), nil, nil, func(k, _ []byte) (bool, error) {
		if len(k) < 8 {
			return false, fmt.Errorf("%s: key %q is too short", index, k)
		}
		if !want(fromBE(k)) {
			return false, nil
		}
		out = append(out, lease.Token(k[8:]))
		return len(out) < limit, nil
	})
	return out, err
}

// Holder implements lease.HolderStore.
func (s *Store) Holder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	f, err := read(ctx, s, func(x *txn) (found, error) {
		h, err := x.holder(t)
		if err != nil || h == nil {
			return found{}, err
		}
		v, err := x.view(t, h, x.lastSeen(t, h))
		return found{v, err == nil}, err
	})
	return f.holder, f.ok, err
}

// Holders implements lease.HolderStore.
func (s *Store) Holders(ctx context.Context, f lease.Filter) ([]lease.Holder, error) {
	limit := limitOf(f.Limit)
	return read(ctx, s, func(x *txn) ([]lease.Holder, error) {
		var out []lease.Holder
		err := x.candidates(f, func(t lease.Token, h *holderDoc) (bool, error) {
			if err := ctx.Err(); err != nil { // a long list ends at the deadline too
				return false, err
			}
			if t <= f.After || !matches(f, h) {
				return true, nil
			}
			v, err := x.view(t, h, x.lastSeen(t, h))
			if err != nil {
				return false, err
			}
			out = append(out, v)
			return len(out) < limit, nil
		})
		return out, err
	})
}

// candidates calls found for the holders that the narrowest index of f names, in
// token order from f.After on.
func (x *txn) candidates(f lease.Filter, found func(lease.Token, *holderDoc) (more bool, err error)) error {
	byIndex := func(index []byte, prefix string) error {
		return eachPrefix(x.Bucket(index), []byte(prefix), []byte(prefix+string(f.After)), func(k, _ []byte) (bool, error) {
			t := lease.Token(k[len(prefix):])
			h, err := x.holder(t)
			if err != nil || h == nil {
				return true, err
			}
			return found(t, h)
		})
	}
	switch {
	case f.Token != "":
		h, err := x.holder(f.Token)
		if err != nil || h == nil {
			return err
		}
		_, err = found(f.Token, h)
		return err
	case f.Key != "":
		return byIndex(indexKey, part(f.Key))
	case f.Pod != "":
		return byIndex(indexPod, part(string(f.Pod)))
	}
	return eachPrefix(x.Bucket(bucketHolders), nil, []byte(f.After), func(k, v []byte) (bool, error) {
		h, err := decodeHolder(v)
		if err != nil {
			return false, err
		}
		return found(lease.Token(k), h)
	})
}

func matches(f lease.Filter, h *holderDoc) bool {
	states := f.States
	if len(states) == 0 {
		states = []lease.State{lease.Pending, lease.Held}
	}
	same := func(want, is string) bool { return want == "" || want == is }
	return slices.Contains(states, h.State) &&
		same(f.Tenant, h.Tenant) && same(f.Project, h.Project) && same(f.User, h.User) &&
		same(f.Resource, h.Resource) && same(f.Type, h.Type) &&
		same(string(f.Pod), string(h.Pod)) && same(f.Key, h.Key)
}

func limitOf(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return limit
}

// HolderPods implements lease.HolderStore. It looks at each pod's holders in the
// index only until it meets a living one.
func (s *Store) HolderPods(ctx context.Context) ([]lease.PodID, error) {
	return read(ctx, s, func(x *txn) ([]lease.PodID, error) {
		var out []lease.PodID
		c := x.Bucket(indexPod).Cursor()
		for k, _ := c.First(); k != nil; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			pod, token := unpart(string(k))
			h, err := x.holder(lease.Token(token))
			if err != nil {
				return nil, err
			}
			if h == nil || !h.living() {
				k, _ = c.Next()
				continue
			}
			out = append(out, lease.PodID(pod))
			k, _ = c.Seek([]byte(behind(pod)))
		}
		return out, nil
	})
}

// Expired implements lease.HolderStore.
func (s *Store) Expired(ctx context.Context, resource string, grace time.Duration, limit int) ([]lease.Holder, error) {
	limit = limitOf(limit)
	return read(ctx, s, func(x *txn) ([]lease.Holder, error) {
		var out []lease.Holder
		latest := x.now - int64(grace)
		err := x.eachDue(resource, latest, func(t lease.Token, h *holderDoc) (bool, error) {
			seen := x.lastSeen(t, h)
			if seen+h.TTL >= latest { // touched since its entry was made
				return true, nil
			}
			v, err := x.view(t, h, seen)
			if err != nil {
				return false, err
			}
			out = append(out, v)
			return len(out) < limit, nil
		})
		return out, err
	})
}

// Unhandled implements lease.HolderStore.
func (s *Store) Unhandled(ctx context.Context, limit int) ([]lease.Holder, error) {
	return read(ctx, s, func(x *txn) ([]lease.Holder, error) {
		tokens, err := x.oldest(indexUnhandled, limitOf(limit), func(int64) bool { return true })
		if err != nil {
			return nil, err
		}
		var out []lease.Holder
		for _, t := range tokens {
			h, err := x.holder(t)
			if err != nil {
				return nil, err
			}
			if h == nil {
				continue
			}
			v, err := x.view(t, h, h.SeenAt)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	})
}

// OldestBooking implements lease.HolderStore.
func (s *Store) OldestBooking(ctx context.Context, id lease.CounterID) (time.Duration, error) {
	return read(ctx, s, func(x *txn) (time.Duration, error) {
		var age time.Duration
		prefix := part(string(id))
		err := eachPrefix(x.Bucket(indexBooking), []byte(prefix), nil, func(k, _ []byte) (bool, error) {
			age = max(time.Duration(x.now-fromBE(k[len(prefix):])), 0)
			return false, nil // the first is the oldest
		})
		return age, err
	})
}
