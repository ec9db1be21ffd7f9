package lease

import (
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// otherLabel is what metrics call a resource whose name may not be a label.
const otherLabel = "other"

// labels remembers what metrics call a resource. Counters do not carry their
// definition's label, and a gauge that was set must be set back to zero.
type labels struct {
	mu    sync.Mutex
	names map[string]string
	gauge map[driftKey]time.Time // since when there has been drift; zero where there is none
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

// drifted sets the gauges to what a pass has seen at a time, and those that it
// has not seen to zero.
func (l *labels) drifted(seen map[driftKey]int, at time.Time, obs Observer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gauge == nil {
		l.gauge = map[driftKey]time.Time{}
	}
	for k := range seen {
		if _, ok := l.gauge[k]; !ok {
			l.gauge[k] = time.Time{}
		}
	}
	for k, since := range l.gauge {
		var age time.Duration
		switch drift := seen[k]; {
		case drift == 0:
			since = time.Time{}
		case since.IsZero():
			since = at
		default:
			age = at.Sub(since)
		}
		l.gauge[k] = since
		obs.Drifted(k.label, k.level, seen[k], age)
	}
}
