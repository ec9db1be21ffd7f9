package lease

import (
	"sync"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// otherLabel is what metrics call a resource whose name may not be a label.
const otherLabel = "other"

// labels remembers what metrics call a resource. Counters do not carry their
// definition's label, and a gauge that was set must be set back to zero.
type labels struct {
	mu    sync.Mutex
	names map[string]string
	gauge map[driftKey]bool
}

type driftKey struct {
	label string
	level definition.Level
}

// learn keeps a label. There are as many as names in system and bundled
// documents; the others are not kept.
func (l *labels) learn(resource, label string) {
	if label == "" || label == otherLabel || inlineResource(resource) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = map[string]string{}
	}
	l.names[resource] = label
}

func (l *labels) of(resource string) string {
	if inlineResource(resource) {
		return "mcp-inline"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if label, ok := l.names[resource]; ok {
		return label
	}
	return otherLabel
}

// drifted sets the gauges, and those that are no longer there to zero.
func (l *labels) drifted(now map[driftKey]int, obs Observer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gauge == nil {
		l.gauge = map[driftKey]bool{}
	}
	for k := range l.gauge {
		if _, ok := now[k]; !ok {
			obs.Drifted(k.label, k.level, 0)
		}
	}
	for k, d := range now {
		l.gauge[k] = true
		obs.Drifted(k.label, k.level, d)
	}
}
