package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Observed is a lease.Observer that remembers what it is told.
type Observed struct {
	mu     sync.Mutex
	n      map[string]int
	events []lease.Event
}

var _ lease.Observer = (*Observed)(nil)

func (o *Observed) count(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == nil {
		o.n = map[string]int{}
	}
	o.n[what]++
}

// Count is how often something was counted, whatever its label: "acquire busy",
// "check lost", "release ok", "reap idle".
func (o *Observed) Count(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n[what]
}

// Events are those that were told, in their order.
func (o *Observed) Events() []lease.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

// Acquired implements lease.Observer.
func (o *Observed) Acquired(_ string, outcome lease.Outcome, _ time.Duration) {
	o.count("acquire " + string(outcome))
}

// Checked implements lease.Observer.
func (o *Observed) Checked(_ string, outcome lease.Outcome) { o.count("check " + string(outcome)) }

// Released implements lease.Observer.
func (o *Observed) Released(_ string, outcome lease.Outcome) { o.count("release " + string(outcome)) }

// Reaped implements lease.Observer.
func (o *Observed) Reaped(r lease.Reason) { o.count("reap " + string(r)) }

// EventLost implements lease.Observer.
func (o *Observed) EventLost() { o.count("event lost") }

// Reconciled implements lease.Observer.
func (o *Observed) Reconciled(outcome lease.Outcome) { o.count("reconcile " + string(outcome)) }

// StoreCalled implements lease.Observer.
func (o *Observed) StoreCalled(string, time.Duration, error) {}

// Drifted implements lease.Observer.
func (o *Observed) Drifted(string, definition.Level, int, time.Duration) {}

// Happened implements lease.Observer.
func (o *Observed) Happened(e lease.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}
