package session

import (
	"sync"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
)

// table is the sessions of this pod, and what is counted per owner and tenant.
type table struct {
	mu     sync.RWMutex
	all    map[sessionid.Number]*session
	owners map[sessionid.Owner]int
	stdio  map[string]int // children per tenant

	// tombs are sessions without a lease that have ended here: no store knows of
	// them, and some servers end none.
	tombs    map[sessionid.Number]struct{}
	tombRing [4096]sessionid.Number
	tombNext int
}

func (t *table) init() {
	t.all = make(map[sessionid.Number]*session)
	t.owners = make(map[sessionid.Owner]int)
	t.stdio = make(map[string]int)
	t.tombs = make(map[sessionid.Number]struct{})
}

func (t *table) get(n sessionid.Number) *session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all[n]
}

// of is the session of a holder, where this pod knows it.
func (t *table) of(h *lease.Holder) *session {
	n, ok := sessionid.ParseNumber(h.Payload[payKey])
	if !ok {
		return nil
	}
	return t.get(n)
}

// underWay is how many requests of a session are under way here.
func (t *table) underWay(h *lease.Holder) (n int) {
	s := t.of(h)
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := s.first; x != nil; x = x.next {
		n++
	}
	return n
}

// put adds a session and returns the one that stands: its own, or the
// one that a request beside it has put there first.
func (t *table) put(s *session) (standing *session, added bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if there := t.all[s.number]; there != nil {
		return there, false
	}
	t.all[s.number] = s
	return s, true
}

// remove takes a session out.
func (t *table) remove(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[s.number] != s {
		return false
	}
	delete(t.all, s.number)
	return true
}

func (t *table) list() []*session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]*session, 0, len(t.all))
	for _, s := range t.all {
		out = append(out, s)
	}
	return out
}

// entomb remembers an ended session without a lease.
func (t *table) entomb(n sessionid.Number) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.tombs, t.tombRing[t.tombNext])
	t.tombRing[t.tombNext] = n
	t.tombNext = (t.tombNext + 1) % len(t.tombRing)
	t.tombs[n] = struct{}{}
}

func (t *table) entombed(n sessionid.Number) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.tombs[n]
	return ok
}

// book counts a session in for its owner, under max.
func (t *table) book(o sessionid.Owner, max int) bool { return countIn(t, t.owners, o, max) }

func (t *table) unbook(o sessionid.Owner) { countOut(t, t.owners, o) }

// addChild counts a child process of a tenant in, under max.
func (t *table) addChild(tenant string, max int) bool { return countIn(t, t.stdio, tenant, max) }

func (t *table) dropChild(tenant string) { countOut(t, t.stdio, tenant) }

func countIn[K comparable](t *table, counts map[K]int, k K, max int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if counts[k] >= max {
		return false
	}
	counts[k]++
	return true
}

func countOut[K comparable](t *table, counts map[K]int, k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if counts[k]--; counts[k] <= 0 {
		delete(counts, k)
	}
}

// enlist puts a session into the table.
func (p *Proxy) enlist(s *session) *session {
	standing, added := p.table.put(s)
	if added {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.phase == alive { // it can be revoked already
			s.count(p)
		}
	}
	return standing
}

// delist takes it out.
func (p *Proxy) delist(s *session) {
	if p.table.remove(s) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.count(nil)
	}
}
