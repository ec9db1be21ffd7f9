// Package viewtest is a lease engine in memory for tests of what is above the
// engine: the view, the admin API, the page and the commands. It keeps the
// promises of lease.Manager that those depend on (token order, filters, causes,
// marks) and nothing of its concurrency or storage protocol.
package viewtest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Engine is an engine and its history.
type Engine struct {
	mu       sync.Mutex
	holders  []lease.Holder
	drift    map[lease.CounterID]int
	counters map[lease.CounterID]lease.Occupancy
	pods     []lease.Pod
	events   []lease.Event
	err      error

	// Now is the engine's clock.
	Now func() time.Time
}

// New makes an empty engine.
func New(now func() time.Time) *Engine {
	return &Engine{Now: now, drift: map[lease.CounterID]int{}, counters: map[lease.CounterID]lease.Occupancy{}}
}

// Fail lets every call fail with err, or work again with nil.
func (e *Engine) Fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// Hold adds a holder with defaults for what is not set and returns its token.
// Its levels are booked with these caps.
func (e *Engine) Hold(h lease.Holder, caps map[definition.Level]definition.Cap) lease.Token {
	e.mu.Lock()
	defer e.mu.Unlock()
	h.Token = cmp.Or(h.Token, lease.Token(fmt.Sprintf("tok%05dAAAAAAAAAAAAAAAAAA", len(e.holders)+1)))
	h.State = cmp.Or(h.State, lease.Held)
	h.Type = cmp.Or(h.Type, "mcp")
	h.Resource = cmp.Or(h.Resource, "browser")
	h.Lease = cmp.Or(h.Lease, h.Resource)
	h.Pod = cmp.Or(h.Pod, "pod-a")
	h.TTL = cmp.Or(h.TTL, 2*time.Minute)
	if h.CreatedAt.IsZero() {
		h.CreatedAt = e.Now()
	}
	if h.LastSeenAt.IsZero() {
		h.LastSeenAt = e.Now()
	}
	for _, l := range definition.Levels {
		if caps[l] == 0 {
			continue
		}
		scope := map[definition.Level]string{definition.User: h.Tenant + "/" + h.User, definition.Project: h.Tenant + "/" + h.Project,
			definition.Tenant: h.Tenant, definition.Global: "*"}[l]
		id := lease.CounterID(h.Resource + "|" + string(l) + "|" + scope)
		h.Levels = append(h.Levels, lease.Booking{ID: id, Level: l})
		e.counters[id] = lease.Occupancy{Resource: h.Resource, Level: l, Scope: scope,
			Counter: lease.Counter{ID: id, Cap: caps[l], UpdatedAt: e.Now()}}
	}
	i, _ := slices.BinarySearchFunc(e.holders, h.Token, func(a lease.Holder, t lease.Token) int { return cmp.Compare(a.Token, t) })
	e.holders = slices.Insert(e.holders, i, h)
	return h.Token
}

// Drift lets a counter count by n more than what books it.
func (e *Engine) Drift(id lease.CounterID, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drift[id] = n
}

// AddPod registers a pod.
func (e *Engine) AddPod(p lease.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pods = append(e.pods, p)
}

// Happen adds an event.
func (e *Engine) Happen(ev lease.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev.At.IsZero() {
		ev.At = e.Now()
	}
	e.events = append([]lease.Event{ev}, e.events...)
}

// Release ends a holder as its client does.
func (e *Engine) Release(t lease.Token) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holders = slices.DeleteFunc(e.holders, func(h lease.Holder) bool { return h.Token == t })
}

// Find lists holders in token order.
func (e *Engine) Find(_ context.Context, f lease.Filter) ([]lease.Holder, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	states := f.States
	if len(states) == 0 {
		states = []lease.State{lease.Pending, lease.Held}
	}
	limit := cmp.Or(f.Limit, 1000)
	var out []lease.Holder
	for _, h := range e.holders {
		if len(out) == limit {
			break
		}
		if slices.Contains(states, h.State) && (f.Token == "" || h.Token == f.Token) && (f.Tenant == "" || h.Tenant == f.Tenant) &&
			(f.Project == "" || h.Project == f.Project) && (f.User == "" || h.User == f.User) &&
			(f.Resource == "" || h.Resource == f.Resource) && (f.Type == "" || h.Type == f.Type) &&
			(f.Pod == "" || h.Pod == f.Pod) && h.Token > f.After {
			out = append(out, h)
		}
	}
	return out, nil
}

// Revoke marks a holder.
func (e *Engine) Revoke(_ context.Context, t lease.Token, c lease.Cause) (lease.Holder, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return lease.Holder{}, e.err
	}
	for i := range e.holders {
		h := &e.holders[i]
		if h.Token == t && h.State != lease.Revoked && (c.Tenant == "" || h.Tenant == c.Tenant) && (c.Pod == "" || h.Pod == c.Pod) {
			before := *h
			e.mark(h, c.By)
			return before, nil
		}
	}
	return lease.Holder{}, lease.ErrNotFound
}

func (e *Engine) mark(h *lease.Holder, by string) {
	h.State = lease.Revoked
	h.Revocation = &lease.Revocation{Reason: lease.ReasonRevoke, By: by, At: e.Now(), HandledAt: e.Now()}
	e.events = append([]lease.Event{{At: e.Now(), Kind: "revoked", Reason: "revoke", By: by, Type: h.Type, Resource: h.Resource,
		Tenant: h.Tenant, Project: h.Project, User: h.User, Pod: h.Pod, Token: string(h.Token[:8])}}, e.events...)
}

// RevokePod marks every holder of a pod.
func (e *Engine) RevokePod(_ context.Context, pod lease.PodID, by string) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return 0, e.err
	}
	n := 0
	for i := range e.holders {
		if h := &e.holders[i]; h.Pod == pod && h.State != lease.Revoked {
			e.mark(h, by)
			n++
		}
	}
	return n, nil
}

// Sweep takes what is past its TTL.
func (e *Engine) Sweep(context.Context) (lease.Swept, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var s lease.Swept
	for i := range e.holders {
		if h := &e.holders[i]; h.State != lease.Revoked && e.Now().Sub(h.LastSeenAt) > h.TTL {
			e.mark(h, "")
			h.Revocation.Reason = lease.ReasonIdle
			s.Idle++
		}
	}
	return s, e.err
}

// Reconcile puts all drift right.
func (e *Engine) Reconcile(context.Context) (lease.Reconciled, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := lease.Reconciled{Corrected: len(e.drift)}
	clear(e.drift)
	return r, e.err
}

// Occupancies lists counters with what books them.
func (e *Engine) Occupancies(_ context.Context, f lease.OccupancyFilter) ([]lease.Occupancy, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	booked := map[lease.CounterID]int{}
	for _, h := range e.holders {
		if h.State != lease.Revoked {
			for _, b := range h.Levels {
				booked[b.ID]++
			}
		}
	}
	var out []lease.Occupancy
	for _, id := range slices.Sorted(maps.Keys(e.counters)) {
		c := e.counters[id]
		tenant, _, _ := strings.Cut(c.Scope, "/")
		if id <= f.After || f.Resource != "" && c.Resource != f.Resource || f.Tenant != "" && tenant != f.Tenant ||
			f.Limit > 0 && len(out) == f.Limit {
			continue
		}
		c.Booked = booked[id]
		c.Count = c.Booked + e.drift[id]
		c.Age = e.Now().Sub(c.UpdatedAt)
		out = append(out, c)
	}
	return out, nil
}

// Events lists newest first.
func (e *Engine) Events(_ context.Context, tenant string, limit int) ([]lease.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []lease.Event
	for _, ev := range e.events {
		if (tenant == "" || ev.Tenant == tenant) && len(out) < limit {
			out = append(out, ev)
		}
	}
	return out, e.err
}

// Pods lists the registered pods.
func (e *Engine) Pods(context.Context) ([]lease.Pod, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.pods), e.err
}
