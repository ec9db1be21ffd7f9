package lease

import (
	"context"
	"time"
)

// eventOf fills in what a holder knows.
func eventOf(kind EventKind, h Holder) Event {
	return Event{
		Kind: kind, Type: h.Type, Resource: h.Resource, Lease: h.Lease,
		Tenant: h.Tenant, Project: h.Project, User: h.User, Pod: h.Pod, Token: h.Token.Short(),
	}
}

// happened tells the observer at once and the store when it can: nobody waits
// for the record of a refusal.
func (m *Manager) happened(e Event) {
	e.At = time.Now()
	m.obs.Happened(e)
	if m.events == nil {
		return // not started: nobody would store them
	}
	for range m.events.add(e) {
		m.obs.EventLost()
	}
}

// storeEvents writes queued events until ctx ends, and then what is left.
func (m *Manager) storeEvents(ctx context.Context) {
	for {
		if e, ok := m.events.next(); ok {
			m.storeEvent(e)
			continue
		}
		select {
		case <-m.events.ready:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) storeEvent(e Event) {
	if err := m.store.AddEvent(m.base, e); err != nil {
		m.log.Debug("an event could not be stored", "kind", e.Kind, "error", err)
	}
}
