package session

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// phase is where a session stands, as far as this pod knows.
type phase uint8

const (
	alive    phase = iota
	wasLost        // its lease or its upstream session is gone; kept for a while to say why
	hasEnded       // ended on purpose
)

// live is a session that this pod has opened or served: what is under way in it
// here, and the lease object with what it knows of its own time. Losing all of
// it costs nothing but a look into the store.
type live struct {
	number  Number
	owner   owner
	tenant  string
	project string
	server  string
	label   string
	opened  time.Time

	lastUse atomic.Int64 // Proxy.now() of the end of the last exchange
	calls   atomic.Int32 // tools/calls under way

	reopening sync.Mutex // one reopen at a time

	mu       sync.Mutex
	phase    phase
	reason   lease.Reason
	told     bool // onLost reopen: the client has had its LEASE_LOST
	slot     slot
	upstream upstream.SessionID
	version  string
	endpoint endpoint
	doc      *server.Document // the last one whose address was compared with endpoint
	init     []byte           // onLost reopen: the client's initialize
	forward  uint64           // fingerprint of the kept credential of auth forward
	first    *exchange        // those under way
	streams  int              // GET streams among them
	ending   chan struct{}    // closed when the upstream end of a lost session has been tried
	counted  *Proxy           // where the session counts, while it is alive
	child    *child           // stdio, where it runs here
}

// enter notes an exchange; false means that the session is not alive. What
// ends a session cancels every exchange that has entered, so none is missed.
func (s *live) enter(x *exchange) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != alive {
		return false
	}
	if x.next = s.first; x.next != nil {
		x.next.prev = x
	}
	s.first = x
	if x.uses {
		s.calls.Add(1)
	}
	return true
}

func (s *live) exit(x *exchange, now int64) {
	s.lastUse.Store(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.uses {
		s.calls.Add(-1)
	}
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		s.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	}
	x.next, x.prev = nil, nil
}

// maxStreams is how many GET streams a session may have here at once. A client
// needs one; the rest is for those whose connections broke unseen.
const maxStreams = 4

// listen counts a GET stream in where there may be one more.
func (s *live) listen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams >= maxStreams {
		return false
	}
	s.streams++
	return true
}

func (s *live) unlisten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
}

// idle reports whether nothing is under way.
func (s *live) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first == nil
}

// close moves an alive session to another phase and cancels what is under way;
// false means that somebody else has done so.
func (s *live) close(to phase, why lease.Reason, cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != alive {
		return false
	}
	s.move(to, why, cause)
	return true
}

// move is close under the lock.
func (s *live) move(to phase, why lease.Reason, cause error) {
	s.phase, s.reason = to, why
	s.count(nil)
	for x := s.first; x != nil; x = x.next {
		x.cancel(cause)
	}
}

// count counts the session in with p, in the metrics and for its owner, or out
// with nil. It is called under the lock, and takes the table's within it.
func (s *live) count(p *Proxy) {
	switch {
	case s.counted == nil && p != nil:
		p.opt.Observer.SessionOpened(s.label)
		p.table.book(s.owner, math.MaxInt) // the limit is for opening
	case s.counted != nil && p == nil:
		s.counted.opt.Observer.SessionEnded(s.label)
		s.counted.table.unbook(s.owner)
	}
	s.counted = p
}

// held returns what belongs to the current lease, which a reopen replaces.
func (s *live) held() (slot, upstream.SessionID, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slot, s.upstream, s.version
}

// table is the sessions of this pod.
type table struct {
	mu     sync.RWMutex
	all    map[Number]*live
	owners map[owner]int
	stdio  map[string]int // children per tenant

	// ended remembers sessions without a lease that have ended here: no store
	// knows of them, and some servers end none.
	ended     map[Number]struct{}
	endedRing [4096]Number
	endedNext int
}

func (t *table) init() {
	t.all = make(map[Number]*live)
	t.owners = make(map[owner]int)
	t.stdio = make(map[string]int)
	t.ended = make(map[Number]struct{})
}

func (t *table) get(n Number) *live {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all[n]
}

// book counts a session in for its owner, under max.
func (t *table) book(o owner, max int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owners[o] >= max {
		return false
	}
	t.owners[o]++
	return true
}

func (t *table) unbook(o owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owners[o]--; t.owners[o] <= 0 {
		delete(t.owners, o)
	}
}

// put adds a session and returns the one that stands: its own, or the
// one that a request beside it has put there first.
func (t *table) put(s *live) (standing *live, added bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if there := t.all[s.number]; there != nil {
		return there, false
	}
	t.all[s.number] = s
	return s, true
}

// remove takes a session out.
func (t *table) remove(s *live) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[s.number] != s {
		return false
	}
	delete(t.all, s.number)
	return true
}

// bury remembers an ended session without a lease.
func (t *table) bury(n Number) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ended, t.endedRing[t.endedNext])
	t.endedRing[t.endedNext] = n
	t.endedNext = (t.endedNext + 1) % len(t.endedRing)
	t.ended[n] = struct{}{}
}

func (t *table) buried(n Number) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.ended[n]
	return ok
}

func (t *table) list() []*live {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]*live, 0, len(t.all))
	for _, s := range t.all {
		out = append(out, s)
	}
	return out
}

// addChild books a child process of a tenant under max.
func (t *table) addChild(tenant string, max int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stdio[tenant] >= max {
		return false
	}
	t.stdio[tenant]++
	return true
}

func (t *table) dropChild(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stdio[tenant]--; t.stdio[tenant] <= 0 {
		delete(t.stdio, tenant)
	}
}
