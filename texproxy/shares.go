package texproxy

import "sync"

// shares bounds what all callers together have of something, and what one has of
// it: a unit counts in all, for its tenant and for its user, and the three
// together stay within the limit. So one user alone gets a third and one tenant
// less than a half, and whoever comes next finds room.
type shares struct {
	limit func() int64

	mu   sync.Mutex
	used int64
	by   map[string]int64 // tenants and users that have any
}

// sharers is in how many sums a unit counts.
const sharers = 3

func newShares(limit func() int64) *shares {
	return &shares{limit: limit, by: map[string]int64{}}
}

// fits reports whether there is room for n more.
func (s *shares) fits(o owner, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room(o, n)
}

func (s *shares) room(o owner, n int64) bool {
	return s.used+s.by[o.tenant]+s.by[sharerOf(o)]+sharers*n <= s.limit()
}

// reserve takes n where there is room for them.
func (s *shares) reserve(o owner, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.room(o, n) {
		return false
	}
	s.add(o, n)
	return true
}

func (s *shares) release(o owner, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(o, -n)
}

func (s *shares) add(o owner, n int64) {
	s.used += n
	for _, who := range []string{o.tenant, sharerOf(o)} {
		if s.by[who] += n; s.by[who] == 0 {
			delete(s.by, who)
		}
	}
}

func (s *shares) taken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// sharerOf names a tenant's user, or its project where no user is known. No
// tenant has a slash in its name.
func sharerOf(o owner) string {
	if o.user == "" {
		return o.tenant + "/project/" + o.project
	}
	return o.tenant + "/user/" + o.user
}
