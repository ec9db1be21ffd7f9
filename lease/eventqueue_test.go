package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func drainAll(q *eventQueue) (out []Event) {
	for e, ok := q.next(); ok; e, ok = q.next() {
		out = append(out, e)
	}
	return out
}

func TestOneTenantsEventsDisplaceNobodyElses(t *testing.T) {
	revoked := func(tenant string) Event { return Event{Kind: EventRevoked, Tenant: tenant, Token: "t" + tenant} }
	for name, flood := range map[string]func(q *eventQueue) (lost int){
		"refusals of one tenant": func(q *eventQueue) (lost int) {
			for range 10_000 {
				lost += q.add(Event{Kind: EventRefused, Tenant: "mallory"})
			}
			return lost
		},
		"revocations of one tenant": func(q *eventQueue) (lost int) {
			for range 10_000 {
				lost += q.add(revoked("mallory"))
			}
			return lost
		},
		"all that twenty tenants may have": func(q *eventQueue) (lost int) {
			for i := range 20 {
				for range 1000 {
					lost += q.add(revoked(fmt.Sprint("mallory", i)))
				}
			}
			return lost
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := newEventQueue()
			lost := flood(q)
			if lost < 9_000 || q.size > maxQueued {
				t.Errorf("%d lost, %d kept", lost, q.size)
			}
			q.add(revoked("acme")) // may displace one of the flood
			before := q.size
			// A tenant's flood of refusals does not displace its own revocation.
			if name == "refusals of one tenant" && q.add(revoked("mallory")) != 0 {
				t.Error("the tenant's own revocation was lost")
			}
			events := drainAll(q)
			at := -1
			for i, e := range events {
				if e.Tenant == "acme" {
					at = i
				}
			}
			if at < 0 || at > 20 || len(events) < before {
				t.Errorf("the other tenant's revocation is event %d of %d", at, len(events))
			}
			if len(q.queues) != 0 || len(q.order) != 0 || q.size != 0 {
				t.Errorf("left: %d queues, %d in turn, %d events", len(q.queues), len(q.order), q.size)
			}
		})
	}
}

func TestEventsOfATenantKeepTheirOrder(t *testing.T) {
	q := newEventQueue()
	for i := range 100 {
		q.add(Event{Kind: EventRevoked, Tenant: fmt.Sprint(i % 3), Token: fmt.Sprint(i)})
	}
	last := map[string]int{}
	for _, e := range drainAll(q) {
		var n int
		if _, err := fmt.Sscan(e.Token, &n); err != nil || n < last[e.Tenant] {
			t.Fatalf("%s after %d of tenant %s", e.Token, last[e.Tenant], e.Tenant)
		}
		last[e.Tenant] = n
	}
}

func TestRefusalsOfATenantAreStoredAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newEventQueue()
		kept := 0
		for range 600 { // ten a second, for a minute
			kept += 1 - q.add(Event{Kind: EventRefused, Tenant: "mallory"})
			drainAll(q)
			time.Sleep(100 * time.Millisecond)
		}
		if most := refusalBurst + 60*refusalsPerSecond; kept < most-2 || kept > most+2 {
			t.Errorf("%d stored", kept)
		}
		for i := range 3 * maxLimiters {
			q.add(Event{Kind: EventRefused, Tenant: fmt.Sprint(i)})
			drainAll(q)
		}
		if len(q.limiters) > maxLimiters {
			t.Errorf("%d limiters", len(q.limiters))
		}
	})
}
