package lease

import (
	"sync"

	"golang.org/x/time/rate"
)

// Bounds of the events that wait to be stored. What does not fit reaches the
// observer (audit, metrics) all the same, and is counted.
const (
	maxQueued = 1024
	// maxTenantQueued is one tenant's share of them, of which refusals, which a
	// client makes as fast as it can ask, have a half.
	maxTenantQueued  = 128
	maxTenantRefused = maxTenantQueued / 2
	// refusalsPerSecond and refusalBurst bound how many refusals of one tenant are
	// stored: a store keeps a bounded number of events for all.
	refusalsPerSecond = 2
	refusalBurst      = 60
	// maxLimiters bounds the tenants whose refusals are counted.
	maxLimiters = 4096
)

// eventQueue holds events by tenant and gives them out in turn, so that a flood of
// one tenant's delays and displaces nobody else's. It is safe for concurrent use.
type eventQueue struct {
	ready chan struct{} // has an element where there may be events

	mu       sync.Mutex
	queues   map[string]*tenantQueue
	order    []string // tenants that have events, the next first
	size     int
	limiters map[string]*rate.Limiter
}

type tenantQueue struct {
	events  []Event
	refused int // how many of them are refusals
}

func newEventQueue() *eventQueue {
	return &eventQueue{ready: make(chan struct{}, 1), queues: map[string]*tenantQueue{}, limiters: map[string]*rate.Limiter{}}
}

// add takes an event in and reports how many events, this one or another, it has
// displaced.
func (q *eventQueue) add(e Event) (lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.Kind == EventRefused && !q.limiter(e.Tenant).Allow() {
		return 1
	}
	t := q.queues[e.Tenant]
	if t != nil && (len(t.events) >= maxTenantQueued || e.Kind == EventRefused && t.refused >= maxTenantRefused) {
		return 1
	}
	if q.size >= maxQueued {
		longest := q.longest()
		if longest == e.Tenant {
			return 1
		}
		q.drop(longest)
		lost = 1
	}
	if t == nil {
		t = &tenantQueue{}
		q.queues[e.Tenant] = t
		q.order = append(q.order, e.Tenant)
	}
	t.events = append(t.events, e)
	if e.Kind == EventRefused {
		t.refused++
	}
	q.size++
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return lost
}

// next gives out an event, of another tenant than the last one where there is one.
func (q *eventQueue) next() (Event, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return Event{}, false
	}
	tenant := q.order[0]
	t := q.queues[tenant]
	e := t.events[0]
	t.events = t.events[1:]
	if e.Kind == EventRefused {
		t.refused--
	}
	q.size--
	q.order = q.order[1:]
	if len(t.events) > 0 {
		q.order = append(q.order, tenant)
	} else {
		delete(q.queues, tenant)
	}
	return e, true
}

// longest is the tenant with most events. The caller holds the lock, and there
// are events.
func (q *eventQueue) longest() (tenant string) {
	most := 0
	for name, t := range q.queues {
		if len(t.events) > most {
			tenant, most = name, len(t.events)
		}
	}
	return tenant
}

// drop takes a tenant's newest refusal out, or its newest event where it has none.
func (q *eventQueue) drop(tenant string) {
	t := q.queues[tenant]
	at := len(t.events) - 1
	for i := at; i >= 0; i-- {
		if t.events[i].Kind == EventRefused {
			at = i
			t.refused--
			break
		}
	}
	t.events = append(t.events[:at], t.events[at+1:]...)
	q.size--
	if len(t.events) > 0 {
		return
	}
	delete(q.queues, tenant)
	for i, name := range q.order {
		if name == tenant {
			q.order = append(q.order[:i], q.order[i+1:]...)
			return
		}
	}
}

// limiter is the one of a tenant's refusals. The caller holds the lock.
func (q *eventQueue) limiter(tenant string) *rate.Limiter {
	l := q.limiters[tenant]
	if l == nil {
		if len(q.limiters) >= maxLimiters {
			clear(q.limiters) // each may begin anew, which costs a burst
		}
		l = rate.NewLimiter(refusalsPerSecond, refusalBurst)
		q.limiters[tenant] = l
	}
	return l
}
