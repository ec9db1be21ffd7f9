package boltstore

import (
	"context"
	"fmt"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

func recordKey(kind, key string) []byte { return []byte(part(kind) + part(key)) }

// record reads a record that has not ended; nil where there is none.
func (x *txn) record(key []byte) (*recordDoc, error) {
	v := x.Bucket(bucketRecords).Get(key)
	if v == nil {
		return nil, nil
	}
	r, err := decode[recordDoc](v)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// putRecord writes next in was's place.
func (x *txn) putRecord(key []byte, was, next *recordDoc) error {
	if was != nil {
		if err := x.del(indexRecords, append(be(was.End), key...)); err != nil {
			return err
		}
	}
	if next == nil {
		return x.del(bucketRecords, key)
	}
	if err := x.put(indexRecords, append(be(next.End), key...), nil); err != nil {
		return err
	}
	return x.put(bucketRecords, key, encode(next))
}

// ClaimRecord implements lease.Records.
func (s *Store) ClaimRecord(ctx context.Context, r lease.Record) (lease.Record, error) {
	return update(ctx, s, func(x *txn) (lease.Record, error) {
		key := recordKey(r.Kind, r.Key)
		was, err := x.record(key)
		if err != nil {
			return lease.Record{}, err
		}
		next := &recordDoc{Value: r.Value, TTL: int64(r.TTL)}
		if was != nil && was.End > x.now {
			next.Value, next.TTL = was.Value, was.TTL
		}
		next.End = x.now + next.TTL
		return next.view(r.Kind, r.Key), x.putRecord(key, was, next)
	})
}

func (r *recordDoc) view(kind, key string) lease.Record {
	return lease.Record{Kind: kind, Key: key, Value: r.Value, TTL: time.Duration(r.TTL)}
}

// LookupRecord implements lease.Records.
func (s *Store) LookupRecord(ctx context.Context, kind, key string) (lease.Record, bool, error) {
	type result struct {
		lease.Record
		ok bool
	}
	r, err := read(ctx, s, func(x *txn) (result, error) {
		d, err := x.record(recordKey(kind, key))
		if err != nil || d == nil || d.End <= x.now {
			return result{}, err
		}
		return result{d.view(kind, key), true}, nil
	})
	return r.Record, r.ok, err
}

// PurgeRecords implements lease.Records.
func (s *Store) PurgeRecords(ctx context.Context) (int, error) {
	total := 0
	for {
		n, err := update(ctx, s, func(x *txn) (int, error) { return x.purgeRecords(flushChunk) })
		total += n
		if err != nil || n < flushChunk {
			return total, err
		}
	}
}

func (x *txn) purgeRecords(limit int) (int, error) {
	var keys [][]byte
	if err := eachPrefix(x.Bucket(indexRecords), nil, nil, func(k, _ []byte) (bool, error) {
		if fromBE(k) > x.now {
			return false, nil
		}
		keys = append(keys, append([]byte(nil), k[8:]...))
		return len(keys) < limit, nil
	}); err != nil {
		return 0, err
	}
	for _, key := range keys {
		was, err := x.record(key)
		if err != nil {
			return 0, err
		}
		if err := x.putRecord(key, was, nil); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}
