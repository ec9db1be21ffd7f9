package boltstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// maxBatch bounds how many verbs share one transaction, and the queue.
const maxBatch = 256

// op is a verb that waits for the writer. run may be called more than once: a
// transaction that one of its verbs breaks is run again without it.
type op struct {
	ctx  context.Context
	run  func(*txn) error
	done chan error
}

// txn is a transaction, store time at its start, and what has to happen in
// memory when it is committed.
type txn struct {
	*bolt.Tx
	store *Store
	now   int64
	wrote bool
	taken []lease.Token // seats that are busy until the transaction ends
	after []func()      // run with the seats locked, after the commit only
}

func (s *Store) txn(tx *bolt.Tx) *txn { return &txn{Tx: tx, store: s, now: s.now()} }

// update runs f in a write transaction together with whatever else is queued,
// and answers when it is on disk. Where f changes nothing nothing is flushed.
func update[T any](ctx context.Context, s *Store, f func(*txn) (T, error)) (T, error) {
	var zero, v T
	o := &op{ctx: ctx, done: make(chan error, 1)}
	o.run = func(x *txn) (err error) {
		v, err = f(x)
		return err
	}
	select {
	case <-s.stop: // looked at first: select picks at random
		return zero, ErrClosed
	default:
	}
	select {
	case s.ops <- o:
	case <-s.stop:
		return zero, ErrClosed
	case <-ctx.Done():
		return zero, ctx.Err()
	}
	select {
	case err := <-o.done:
		if err != nil {
			return zero, err
		}
		return v, nil
	case <-s.done:
		select { // answered on its way out, or never taken from the queue
		case err := <-o.done:
			if err == nil {
				return v, nil
			}
			return zero, err
		default:
			return zero, ErrClosed
		}
	case <-ctx.Done(): // it may still be applied; v belongs to the writer now
		return zero, ctx.Err()
	}
}

// read runs f on a snapshot of what is on disk.
func read[T any](ctx context.Context, s *Store, f func(*txn) (T, error)) (T, error) {
	var zero, v T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	err := s.db.View(func(tx *bolt.Tx) (err error) {
		v, err = f(s.txn(tx))
		return err
	})
	switch {
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		return zero, ErrClosed
	case err != nil:
		return zero, fmt.Errorf("lease store %s: %w", s.path, err)
	}
	return v, nil
}

// write is the one goroutine that changes the file.
func (s *Store) write() {
	defer close(s.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case o := <-s.ops:
			s.serve(o)
		case <-tick.C:
			s.tidy()
		case <-s.stop:
			s.finish()
			return
		}
	}
}

// serve takes what is queued behind o, without waiting for more, and runs it as
// one transaction: while a flush is under way the next group gathers.
func (s *Store) serve(o *op) {
	group := []*op{o}
	for len(group) < maxBatch {
		select {
		case o := <-s.ops:
			group = append(group, o)
			continue
		default:
		}
		break
	}
	s.run(group)
}

// run applies a group. A verb that fails takes itself out, not the others.
func (s *Store) run(group []*op) {
	for len(group) > 0 {
		failed, err := s.transact(group)
		if failed < 0 {
			for _, o := range group {
				o.done <- err
			}
			return
		}
		group[failed].done <- err
		group = append(group[:failed], group[failed+1:]...)
	}
}

// transact applies the group in one transaction. failed is the index of the
// verb that broke it, or -1; err is then the commit's.
func (s *Store) transact(group []*op) (failed int, err error) {
	tx, err := s.db.Begin(true)
	if err != nil {
		return -1, fmt.Errorf("lease store %s: %w", s.path, err)
	}
	x := s.txn(tx)
	committed := false
	defer func() {
		if !committed {
			_ = tx.Rollback() // of no consequence: what was not committed is gone
		}
		s.seats.finish(x, committed)
	}()
	for i, o := range group {
		if o.ctx.Err() != nil {
			return i, o.ctx.Err() // nobody waits for it any more
		}
		x.now = s.now()
		if err := o.run(x); err != nil {
			return i, fmt.Errorf("lease store %s: %w", s.path, err)
		}
	}
	if !x.wrote {
		return -1, nil
	}
	if err := tx.Commit(); err != nil {
		// A commit that fails at its last flush may be in the file all the same,
		// so memory is made to agree with the file, whatever is in it.
		committed = true
		x.after = nil
		if again := s.resync(); again != nil {
			err = errors.Join(err, again)
		}
		return -1, fmt.Errorf("lease store %s: it cannot be written: %w", s.path, err)
	}
	committed = true
	return -1, nil
}

// finish serves what is still queued, writes the touches and closes the file.
func (s *Store) finish() {
	for {
		select {
		case o := <-s.ops:
			s.serve(o)
			continue
		default:
		}
		break
	}
	_, err := s.flush(0)
	s.end = errors.Join(err, s.db.Close())
}
