package boltstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// counter reads a document; nil where there is none.
func (x *txn) counter(id lease.CounterID) (*counterDoc, error) {
	v := x.Bucket(bucketCounters).Get([]byte(id))
	if v == nil {
		return nil, nil
	}
	return decodeCounter(v)
}

func decodeCounter(v []byte) (*counterDoc, error) {
	c, err := decode[counterDoc](v)
	if err != nil {
		return nil, fmt.Errorf("counter: %w", err)
	}
	return c, nil
}

func (x *txn) putCounter(id lease.CounterID, c *counterDoc) error {
	return x.put(bucketCounters, []byte(id), encode(c))
}

func (c *counterDoc) view(id lease.CounterID) lease.Counter {
	v := lease.Counter{ID: id, Count: c.Count, Cap: c.Cap, UpdatedAt: at(c.UpdatedAt), Gen: c.Gen}
	if c.AuditAt != 0 {
		v.Audit = &lease.Audit{Old: c.Old, OpenedAt: at(c.AuditAt)}
	}
	return v
}

// Increment implements lease.CounterStore.
func (s *Store) Increment(ctx context.Context, id lease.CounterID, limit definition.Cap) (lease.Gen, int, bool, error) {
	type result struct {
		counterDoc
		ok bool
	}
	r, err := update(ctx, s, func(x *txn) (result, error) {
		c, err := x.counter(id)
		if err != nil || c == nil || c.Count >= int(limit) {
			return result{}, err
		}
		c.Count++
		c.Cap, c.UpdatedAt = limit, x.now
		return result{*c, true}, x.putCounter(id, c)
	})
	return r.Gen, r.Count, r.ok, err
}

// EnsureCounter implements lease.CounterStore.
func (s *Store) EnsureCounter(ctx context.Context, id lease.CounterID, gen lease.Gen) error {
	_, err := update(ctx, s, func(x *txn) (struct{}, error) {
		c, err := x.counter(id)
		if err != nil || c != nil {
			return struct{}{}, err
		}
		return struct{}{}, x.putCounter(id, &counterDoc{UpdatedAt: x.now, Gen: gen})
	})
	return err
}

// Decrement implements lease.CounterStore.
func (s *Store) Decrement(ctx context.Context, id lease.CounterID, gen, listed lease.Gen) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		c, err := x.counter(id)
		if err != nil || c == nil || c.Gen != gen {
			return false, err
		}
		return x.takeOff(id, c, listed != gen)
	})
}

// DecrementPrev implements lease.CounterStore.
func (s *Store) DecrementPrev(ctx context.Context, id lease.CounterID, listed lease.Gen) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		c, err := x.counter(id)
		if err != nil || c == nil || c.Prev == "" || c.Prev != listed {
			return false, err
		}
		return x.takeOff(id, c, true)
	})
}

// takeOff decrements a counter, and the old ones of its open audit where the
// booking is one of them.
func (x *txn) takeOff(id lease.CounterID, c *counterDoc, old bool) (bool, error) {
	if c.Count <= 0 {
		return false, nil
	}
	c.Count--
	if old && c.AuditAt != 0 {
		c.Old--
	}
	c.UpdatedAt = x.now
	return true, x.putCounter(id, c)
}

// Counters implements lease.CounterStore.
func (s *Store) Counters(ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error) {
	return read(ctx, s, func(x *txn) ([]lease.Counter, error) {
		var out []lease.Counter
		for _, id := range ids {
			c, err := x.counter(id)
			if err != nil {
				return nil, err
			}
			if c != nil {
				out = append(out, c.view(id))
			}
		}
		return out, nil
	})
}

// Booked implements lease.CounterStore.
func (s *Store) Booked(ctx context.Context, ids []lease.CounterID) (map[lease.CounterID]int, error) {
	return read(ctx, s, func(x *txn) (map[lease.CounterID]int, error) {
		out := map[lease.CounterID]int{}
		for _, id := range ids {
			n := 0
			if err := eachPrefix(x.Bucket(indexBooking), []byte(part(string(id))), nil, func(_, _ []byte) (bool, error) {
				n++
				return true, nil
			}); err != nil {
				return nil, err
			}
			if n > 0 {
				out[id] = n
			}
		}
		return out, nil
	})
}

// ListCounters implements lease.CounterStore.
func (s *Store) ListCounters(ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
	limit = limitOf(limit)
	return read(ctx, s, func(x *txn) ([]lease.CounterAge, error) {
		var prefix string
		if resource != "" {
			prefix = resource + "|"
		}
		var out []lease.CounterAge
		err := eachPrefix(x.Bucket(bucketCounters), []byte(prefix), []byte(after), func(k, v []byte) (bool, error) {
			if lease.CounterID(k) <= after {
				return true, nil
			}
			c, err := decodeCounter(v)
			if err != nil {
				return false, err
			}
			a := lease.CounterAge{Counter: c.view(lease.CounterID(k)), Age: max(time.Duration(x.now-c.UpdatedAt), 0)}
			if c.AuditAt != 0 {
				a.AuditAge = max(time.Duration(x.now-c.AuditAt), 0)
			}
			out = append(out, a)
			return len(out) < limit, nil
		})
		return out, err
	})
}

// unchanged reads the counter where it still is what was says, and has been for
// longer than margin.
func (x *txn) unchanged(was lease.Counter, margin time.Duration) (*counterDoc, error) {
	c, err := x.counter(was.ID)
	if err != nil || c == nil ||
		c.Count != was.Count || c.Gen != was.Gen || !at(c.UpdatedAt).Equal(was.UpdatedAt) ||
		x.now-c.UpdatedAt <= int64(margin) {
		return nil, err
	}
	return c, nil
}

// CorrectCounter implements lease.CounterStore.
func (s *Store) CorrectCounter(ctx context.Context, was lease.Counter, count int, gen lease.Gen, margin time.Duration) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		c, err := x.unchanged(was, margin)
		if err != nil || c == nil {
			return false, err
		}
		return true, x.putCounter(was.ID, &counterDoc{Count: count, Cap: c.Cap, Gen: gen, UpdatedAt: x.now})
	})
}

// RemoveCounter implements lease.CounterStore.
func (s *Store) RemoveCounter(ctx context.Context, was lease.Counter, margin time.Duration) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		c, err := x.unchanged(was, margin)
		if err != nil || c == nil {
			return false, err
		}
		return true, x.del(bucketCounters, []byte(was.ID))
	})
}

// OpenAudit implements lease.CounterStore.
func (s *Store) OpenAudit(ctx context.Context, was lease.Counter, gen lease.Gen, margin time.Duration) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		c, err := x.counter(was.ID)
		if err != nil || c == nil || c.Count != was.Count || c.Gen != was.Gen || c.AuditAt != 0 ||
			c.ClosedAt != 0 && x.now-c.ClosedAt <= int64(margin) {
			return false, err
		}
		c.Gen, c.Prev = gen, c.Gen
		c.Old, c.AuditAt = c.Count, x.now
		return true, x.putCounter(was.ID, c)
	})
}

// BookedBefore implements lease.CounterStore.
func (s *Store) BookedBefore(ctx context.Context, id lease.CounterID, gen lease.Gen) (int, error) {
	return read(ctx, s, func(x *txn) (int, error) {
		n := 0
		prefix := part(string(id))
		err := eachPrefix(x.Bucket(indexBooking), []byte(prefix), nil, func(k, _ []byte) (bool, error) {
			if err := ctx.Err(); err != nil { // many holders end at the deadline too
				return false, err
			}
			h, err := x.holder(lease.Token(k[len(prefix)+8:]))
			if err != nil || h == nil {
				return true, err
			}
			if slices.ContainsFunc(h.Levels, func(b bookingDoc) bool { return b.ID == id && b.Gen != gen }) {
				n++
			}
			return true, nil
		})
		return n, err
	})
}

// CloseAudit implements lease.CounterStore.
func (s *Store) CloseAudit(ctx context.Context, was lease.Counter, booked int, gen lease.Gen, margin time.Duration) (bool, error) {
	if was.Audit == nil {
		return false, nil
	}
	return update(ctx, s, func(x *txn) (bool, error) {
		c, err := x.counter(was.ID)
		if err != nil || c == nil || c.Gen != was.Gen || c.AuditAt == 0 || c.Old != was.Audit.Old ||
			x.now-c.AuditAt <= int64(margin) || c.Count < c.Old-booked {
			return false, err
		}
		c.Count -= c.Old - booked
		c.Gen, c.Prev = gen, c.Gen
		c.Old, c.AuditAt = 0, 0
		c.UpdatedAt, c.ClosedAt = x.now, x.now
		return true, x.putCounter(was.ID, c)
	})
}
