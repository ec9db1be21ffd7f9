package boltstore

import (
	"sync"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// seat is what memory knows of a HELD holder so that a touch needs no disk.
type seat struct {
	seen     int64 // last touch
	pod      lease.PodID
	podBound bool
	dirty    bool // seen is newer than on disk
	busy     int  // a transaction under way has looked at it
}

// seats has a seat for each holder that is HELD on disk.
//
// The race closed here: a touch must not answer ok after a mark or delete has
// decided on the old time. A transaction therefore takes the seat in the same
// moment in which it reads the time, and until it has ended touches of that
// holder queue behind it at the writer.
type seats struct {
	mu  sync.Mutex
	all map[lease.Token]*seat
}

// reset replaces all seats.
func (s *seats) reset(held map[lease.Token]seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = make(map[lease.Token]*seat, len(held))
	for t, v := range held {
		s.all[t] = &v
	}
}

// touch sets the time where that needs no transaction, and reports whether it did.
func (s *seats) touch(t lease.Token, pod lease.PodID, now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.all[t]
	if v == nil || v.busy > 0 || (!v.podBound && v.pod != pod) {
		return false
	}
	v.seen, v.dirty = max(v.seen, now), true
	return true
}

// seen returns the last touch, or other where there is no seat.
func (s *seats) seen(t lease.Token, other int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.all[t]; v != nil {
		return v.seen
	}
	return other
}

// take is seen, and makes touches queue until the transaction has ended.
func (x *txn) take(t lease.Token, other int64) int64 {
	s := &x.store.seats
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.all[t]
	if v == nil {
		return other
	}
	v.busy++
	x.taken = append(x.taken, t)
	return v.seen
}

// sit gives the holder a seat, or a newer one, once the transaction is committed.
func (x *txn) sit(t lease.Token, h *holderDoc, seen int64) {
	pod, bound := h.Pod, h.PodBound
	x.after = append(x.after, func() {
		v := x.store.seats.all[t]
		if v == nil {
			v = &seat{}
			x.store.seats.all[t] = v
		}
		v.seen, v.pod, v.podBound = max(v.seen, seen), pod, bound
	})
}

// leave takes the seat away once the transaction is committed.
func (x *txn) leave(t lease.Token) {
	x.after = append(x.after, func() { delete(x.store.seats.all, t) })
}

// finish ends a transaction's hold on its seats.
func (s *seats) finish(x *txn, committed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range x.taken {
		if v := s.all[t]; v != nil && v.busy > 0 {
			v.busy--
		}
	}
	if committed {
		for _, f := range x.after {
			f()
		}
	}
}

// unflushed returns up to limit touches that are not on disk (0: all of them).
func (s *seats) unflushed(limit int) map[lease.Token]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[lease.Token]int64{}
	for t, v := range s.all {
		if v.dirty {
			out[t] = v.seen
			if len(out) == limit {
				break
			}
		}
	}
	return out
}

// flushed says that these touches are on disk.
func (s *seats) flushed(touches map[lease.Token]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, seen := range touches {
		if v := s.all[t]; v != nil && v.seen == seen {
			v.dirty = false
		}
	}
}

// agree keeps the seats of held and no others; a seat that stays keeps its time.
func (s *seats) agree(held map[lease.Token]seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.all {
		if _, ok := held[t]; !ok {
			delete(s.all, t)
		}
	}
	for t, h := range held {
		v := s.all[t]
		if v == nil {
			v = &seat{}
			s.all[t] = v
		}
		v.seen, v.pod, v.podBound = max(v.seen, h.seen), h.pod, h.podBound
	}
}
