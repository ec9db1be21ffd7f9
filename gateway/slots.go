package gateway

import "sync/atomic"

// slots counts the client requests that the pod serves at once, streams
// included (limits.perPod).
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
