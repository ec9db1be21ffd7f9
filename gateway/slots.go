package gateway

import "sync/atomic"

// slots counts the client requests under way that belong to no caller (yet): they
// are being authenticated, or are an operator's. Each kind of caller's request is
// counted for who has it instead.
type slots struct{ used atomic.Int64 }

// take counts a request in where there is room; the caller gives it back.
func (s *slots) take(limit int) bool {
	if s.used.Add(1) > int64(limit) {
		s.used.Add(-1)
		return false
	}
	return true
}

func (s *slots) give() { s.used.Add(-1) }
