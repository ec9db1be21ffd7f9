package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// flushChunk bounds the touches of one transaction, so that an acquire never
// waits behind ten thousand of them.
const flushChunk = 2000

// tidy runs each second between the verbs: it writes touches, moves entries of
// the expiry index that touches have made too early, and drops old events.
func (s *Store) tidy() {
	for {
		left, err := s.flush(flushChunk)
		if err != nil || !left {
			// A touch that cannot be written stays in memory for the next second;
			// verbs report the same failure to their callers.
			break
		}
		select {
		case o := <-s.ops:
			s.serve(o)
		default:
		}
	}
	_, _ = s.transact([]*op{{ctx: context.Background(), run: func(x *txn) error {
		if err := x.moveDue(); err != nil {
			return err
		}
		return x.dropEvents()
	}}})
}

// flush writes up to limit touches (0: all) and reports whether more may be left.
func (s *Store) flush(limit int) (left bool, err error) {
	touches := s.seats.unflushed(limit)
	if len(touches) == 0 {
		return false, nil
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSeen)
		for t, seen := range touches {
			if err := b.Put([]byte(t), be(seen)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("lease store %s: touches cannot be written: %w", s.path, err)
	}
	s.seats.flushed(touches)
	return limit > 0 && len(touches) == limit, nil
}

// moveDue puts entries of the expiry index that lie in the past, but whose
// holder has been touched since, where they belong. An entry is a lower bound:
// touches leave it alone, so each holder is moved once per TTL.
func (x *txn) moveDue() error {
	var late []lease.Token
	if err := x.eachDue("", x.now, func(t lease.Token, h *holderDoc) (bool, error) {
		if x.expiry(t, h) > x.now {
			late = append(late, t)
		}
		return len(late) < flushChunk, nil
	}); err != nil {
		return err
	}
	for _, t := range late {
		h, err := x.holder(t)
		if err != nil || h == nil {
			return err
		}
		next := *h
		next.Due = x.expiry(t, h)
		if err := x.putHolder(t, h, &next); err != nil {
			return err
		}
	}
	return nil
}

// resync makes the seats agree with the file after a commit whose outcome is
// not known.
func (s *Store) resync() error {
	return s.db.View(func(tx *bolt.Tx) error {
		x := s.txn(tx)
		held := map[lease.Token]seat{}
		if err := x.eachHolder(func(t lease.Token, h *holderDoc) error {
			if h.State == lease.Held {
				held[t] = seat{seen: x.storedSeen(t, h), pod: h.Pod, podBound: h.PodBound}
			}
			return nil
		}); err != nil {
			return err
		}
		s.seats.agree(held)
		return nil
	})
}

// clampCounters takes times that lie in the future back to now: the machine's
// clock was set back while the store was closed, and a counter that seems to
// have changed tomorrow would never be old enough to be reconciled, nor would its
// audit be.
func (x *txn) clampCounters() error {
	b := x.Bucket(bucketCounters)
	fix := map[string]counterDoc{}
	c := b.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		d, err := decode[counterDoc](v)
		if err != nil {
			return fmt.Errorf("counter %q: %w", k, err)
		}
		if max(d.UpdatedAt, d.AuditAt, d.ClosedAt) > x.now {
			d.UpdatedAt, d.AuditAt, d.ClosedAt = min(d.UpdatedAt, x.now), min(d.AuditAt, x.now), min(d.ClosedAt, x.now)
			fix[string(k)] = *d
		}
	}
	for k, d := range fix {
		if err := x.put(bucketCounters, []byte(k), encode(d)); err != nil {
			return err
		}
	}
	return nil
}

// be is a number whose bytes sort like it.
func be(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func fromBE(b []byte) int64 {
	if len(b) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

// eachPrefix calls f for the keys that begin with prefix, from from on, until f
// says stop.
func eachPrefix(b *bolt.Bucket, prefix, from []byte, f func(k, v []byte) (more bool, err error)) error {
	c := b.Cursor()
	if bytes.Compare(from, prefix) < 0 {
		from = prefix
	}
	for k, v := c.Seek(from); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if more, err := f(k, v); err != nil || !more {
			return err
		}
	}
	return nil
}
