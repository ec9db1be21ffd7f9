package boltstore

import (
	"context"
	"fmt"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Events are kept for an hour, and never more than maxEvents of them: a storm
// of refusals must not fill the disk.
const (
	eventAge  = time.Hour
	maxEvents = 50_000
)

// AddEvent implements lease.EventStore. At is set to store time.
func (s *Store) AddEvent(ctx context.Context, e lease.Event) error {
	_, err := update(ctx, s, func(x *txn) (struct{}, error) {
		e := e
		e.At = at(x.now)
		seq, err := x.Bucket(bucketEvents).NextSequence()
		if err != nil {
			return struct{}{}, err
		}
		key := be(int64(seq))
		if err := x.put(bucketEvents, key, encode(e)); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, x.put(indexEvents, []byte(part(e.Tenant)+string(key)), nil)
	})
	return err
}

// Events implements lease.EventStore.
func (s *Store) Events(ctx context.Context, tenant string, limit int) ([]lease.Event, error) {
	limit = limitOf(limit)
	return read(ctx, s, func(x *txn) ([]lease.Event, error) {
		events := x.Bucket(bucketEvents)
		var out []lease.Event
		add := func(v []byte) (more bool, err error) {
			e, err := decode[lease.Event](v)
			if err != nil {
				return false, fmt.Errorf("event: %w", err)
			}
			if x.now-e.At.UnixNano() > int64(eventAge) {
				return false, nil
			}
			out = append(out, *e)
			return len(out) < limit, nil
		}
		if tenant == "" {
			c := events.Cursor()
			for k, v := c.Last(); k != nil; k, v = c.Prev() {
				if more, err := add(v); err != nil || !more {
					return out, err
				}
			}
			return out, nil
		}
		prefix := part(tenant)
		c := x.Bucket(indexEvents).Cursor()
		c.Seek([]byte(prefix + "\xff")) // behind the tenant's last; a sequence never begins so
		for k, _ := c.Prev(); k != nil && len(k) > len(prefix) && string(k[:len(prefix)]) == prefix; k, _ = c.Prev() {
			if more, err := add(events.Get(k[len(prefix):])); err != nil || !more {
				return out, err
			}
		}
		return out, nil
	})
}

// dropEvents deletes events that are too old or too many, a bounded number at a
// time.
func (x *txn) dropEvents() error {
	b := x.Bucket(bucketEvents)
	last, _ := b.Cursor().Last()
	newest := fromBE(last)
	type old struct{ key, tenant string }
	var drop []old
	if err := eachPrefix(b, nil, nil, func(k, v []byte) (bool, error) {
		e, err := decode[lease.Event](v)
		if err != nil {
			return false, fmt.Errorf("event: %w", err)
		}
		if x.now-e.At.UnixNano() <= int64(eventAge) && newest-fromBE(k) < maxEvents {
			return false, nil
		}
		drop = append(drop, old{string(k), e.Tenant})
		return len(drop) < flushChunk, nil
	}); err != nil {
		return err
	}
	for _, o := range drop {
		if err := x.del(bucketEvents, []byte(o.key)); err != nil {
			return err
		}
		if err := x.del(indexEvents, []byte(part(o.tenant)+o.key)); err != nil {
			return err
		}
	}
	return nil
}
