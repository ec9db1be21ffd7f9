package boltstore

import (
	"context"
	"fmt"
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
	return lease.Counter{ID: id, Count: c.Count, Cap: c.Cap, UpdatedAt: at(c.UpdatedAt), Gen: c.Gen}
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
func (s *Store) Decrement(ctx context.Context, id lease.CounterID, gen lease.Gen) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		c, err := x.counter(id)
		if err != nil || c == nil || c.Gen != gen || c.Count <= 0 {
			return false, err
		}
		c.Count--
		c.UpdatedAt = x.now
		return true, x.putCounter(id, c)
	})
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
			out = append(out, lease.CounterAge{Counter: c.view(lease.CounterID(k)), Age: max(time.Duration(x.now-c.UpdatedAt), 0)})
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
		c.Count, c.Gen, c.UpdatedAt = count, gen, x.now
		return true, x.putCounter(was.ID, c)
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
