package lease

import (
	"context"
	"time"
)

// eventQueue bounds the events that wait to be stored. What does not fit is
// told to the observer (log, audit) all the same.
const eventQueue = 256

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
	select {
	case m.events <- e:
	default:
	}
}

// storeEvents writes queued events until ctx ends, and then what is left.
func (m *Manager) storeEvents(ctx context.Context) {
	for {
		select {
		case e := <-m.events:
			m.storeEvent(e)
		case <-ctx.Done():
			for {
				select {
				case e := <-m.events:
					m.storeEvent(e)
				default:
					return
				}
			}
		}
	}
}

func (m *Manager) storeEvent(e Event) {
	if err := m.store.AddEvent(m.base, e); err != nil {
		m.log.Debug("an event could not be stored", "kind", e.Kind, "error", err)
	}
}
