package session

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
)

// phase is where a session stands, as far as this pod knows.
type phase uint8

const (
	alive phase = iota
	lost        // its lease or its upstream session is gone; remembered for a while to say why
	ended       // on purpose
)

// scope is where a session belongs.
type scope struct {
	tenant, project, server string
	label                   string // of the server, for metrics
}

// session is a client session that this pod has opened or served: what is under
// way in it here, and what it holds. Losing all of it costs nothing but a look
// into the store.
type session struct {
	number sessionid.Number
	owner  sessionid.Owner
	scope  scope
	opened time.Time

	lastUse atomic.Int64                    // Proxy.now() of the end of the last exchange
	calls   atomic.Int32                    // exchanges that use the lease at this moment
	owes    atomic.Int32                    // requests of the server that the client has not answered
	hold    atomic.Pointer[hold]            // never nil; changed under mu
	doc     atomic.Pointer[server.Document] // the last one that was found to lead to the hold's endpoint

	listened  atomic.Bool // the client has had a GET stream, or may have had one at another process
	reopening sync.Mutex  // one reopen at a time

	mu      sync.Mutex
	phase   phase
	loss    *loss  // set where phase is not alive
	untold  *loss  // the client does not know of it, also after a reopen
	init    []byte // the client's initialize, to open the session again
	forward uint64 // fingerprint of the kept credential of auth forward
	first   *exchange
	asked   map[string]*exchange // by MatchKey: the server's requests and where they went out
	counted *Proxy               // where the session counts, while it is alive
}

// enter notes an exchange and returns what the session holds; nil means that it
// is not alive. What ends a session cancels every exchange that has entered, so
// none is missed.
func (s *session) enter(x *exchange) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != alive {
		return nil
	}
	if x.next = s.first; x.next != nil {
		x.next.prev = x
	}
	s.first = x
	if x.uses {
		x.inUse.Store(true)
		s.calls.Add(1)
	}
	return s.hold.Load()
}

func (s *session) exit(x *exchange, now int64) {
	s.lastUse.Store(now)
	x.Settled()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.asked {
		if at == x {
			s.forget(id)
		}
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

// takeOver ends the GET streams in whose place x comes: the newest takes what
// belongs to no call, and what resumes some stream has a place beside it. The
// oldest goes where there are too many. It reports whether one has ended.
func (s *session) takeOver(x *exchange) (ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	streams := 0
	for y := s.first; y != nil; y = y.next { // newest first
		if !y.Listens() {
			continue
		}
		if streams++; y != x && (!x.resumes && !y.resumes || streams > maxStreams) {
			y.Cancel(errTakenOver)
			ended = true
		}
	}
	return ended
}

// maxAsked bounds the server's requests that are waited for.
const maxAsked = 256

// asks notes requests of the server that have gone out to the client.
func (s *session) asks(x *exchange, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if len(s.asked) >= maxAsked {
			return
		}
		if s.asked == nil {
			s.asked = make(map[string]*exchange)
		}
		s.asked[id] = x
	}
	s.owes.Store(int32(len(s.asked)))
}

// answered notes that the client has answered a request of the server.
func (s *session) answered(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.asked[id]; ok {
		s.forget(id)
	}
}

// forget is answered under the lock. With the last answer it is the upstream's
// time again.
func (s *session) forget(id string) {
	delete(s.asked, id)
	s.owes.Store(int32(len(s.asked)))
	if len(s.asked) > 0 {
		return
	}
	for x := s.first; x != nil; x = x.next {
		x.Restart()
	}
}

// cancelled notes that the client has given up a request.
func (s *session) cancelled(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := s.first; x != nil; x = x.next {
		x.CancelRequest(id)
	}
}

// idle reports whether nothing is under way.
func (s *session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first == nil
}

func (s *session) isAlive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == alive
}

// leave moves an alive session that holds h to another phase and cancels what is
// under way; see Proxy.end.
func (s *session) leave(h *hold, to phase, why *loss) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != alive || s.hold.Load() != h {
		return false
	}
	s.phase, s.loss = to, why
	if to == lost {
		s.untold = why
	}
	s.count(nil)
	for x := s.first; x != nil; x = x.next {
		x.Cancel(why)
	}
	return true
}

// revive puts another hold into the place of the lost one.
func (s *session) revive(h *hold, forward uint64, p *Proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.loss = alive, nil
	s.hold.Store(h)
	s.doc.Store(nil)
	s.forward = forward
	s.lastUse.Store(p.now())
	s.count(p)
}

// take puts the hold of a session that another pod has opened again into the
// place of was.
func (s *session) take(was, h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold.Load() == was {
		s.hold.Store(h)
		s.doc.Store(nil)
	}
}

// endLost is the end of a lost session by its client: nothing is left to end.
func (s *session) endLost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == lost {
		s.phase, s.loss, s.untold = ended, &loss{cause: byClient, tried: s.loss.tried}, nil
	}
}

func (s *session) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == lost
}

// cancelAll ends the streams that only listen, and the calls as well where they
// have outlasted a drain.
func (s *session) cancelAll(calls bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := s.first; x != nil; x = x.next {
		if calls || !x.working.Load() {
			x.Cancel(errStopped)
		}
	}
}

// count counts the session in with p, in the metrics and for its owner, or out
// with nil. It is called under the lock, and takes the table's within it.
func (s *session) count(p *Proxy) {
	switch {
	case s.counted == nil && p != nil:
		p.opt.Observer.SessionOpened(s.scope.label)
		p.table.book(s.owner, math.MaxInt) // the limit is for opening
	case s.counted != nil && p == nil:
		s.counted.opt.Observer.SessionEnded(s.scope.label)
		s.counted.table.unbook(s.owner)
	}
	s.counted = p
}

// leadsTo reports whether the document still leads where the session was opened.
func (s *session) leadsTo(doc *server.Document) bool {
	if s.doc.Load() == doc {
		return true
	}
	if s.hold.Load().endpoint != sessionid.EndpointOf(doc.URL) {
		return false
	}
	s.doc.Store(doc)
	return true
}

// lossSeen is the session's loss once its upstream end has been tried; nil where
// the session is alive.
func (s *session) lossSeen(ctx context.Context) *loss {
	s.mu.Lock()
	l := s.loss
	s.mu.Unlock()
	if l != nil {
		select {
		case <-l.tried: // bounded by upstream.EndTimeout, childTimeout and releaseTimeout
		case <-ctx.Done():
		}
	}
	return l
}

// seal makes the id of a session.
func (s *session) seal(p *Proxy) sessionid.ID {
	h := s.hold.Load()
	st := sessionid.Sealed{Number: s.number, Owner: s.owner, Endpoint: h.endpoint, Opened: s.opened, Lease: h.lease.Ref(), Upstream: h.upstream, Version: h.version}
	if h.child != nil {
		st.Pod = p.opt.Pod
	}
	if len(h.upstream) > sessionid.MaxUpstream && !h.lease.Noop() {
		st.Upstream, st.InPayload = "", true
	}
	return st.Seal(p.ids, sessionid.Route(s.scope.tenant, s.scope.project, s.scope.server))
}
