package document

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

// Events is the body in which other programs and pods tell of changed documents:
// the one form of it, for whoever sends and whoever takes it.
type Events struct {
	Events []Event `json:"events"`
}

// MaxEvents is how many events one body has at most. Whoever has more sends
// several.
const MaxEvents = 10_000

// MaxEventsBody is the longest body in bytes.
const MaxEventsBody = 2 << 20

// maxEventPath is the longest path in bytes. It may be one that no document here
// has: other programs keep theirs in the same collection.
const maxEventPath = 1 << 10

// Op is what has become of a document.
type Op string

// What can become of a document. Either way its old text counts no more.
const (
	Upsert Op = "UPSERT"
	Delete Op = "DELETE"
)

// Event is one changed document.
type Event struct {
	Op        Op     `json:"op"`
	TenantID  string `json:"tenantId"`
	ProjectID string `json:"projectId"`
	Path      string `json:"path"`
}

// EncodeEvents makes the bodies for changes of documents that are named: one,
// where the bounds leave it at that.
func EncodeEvents(changes []Change) ([][]byte, error) {
	const open, end = `{"events":[`, `]}`
	var bodies [][]byte
	body, n := []byte(open), 0
	for _, c := range changes {
		event, err := json.Marshal(Event{Op: Upsert, TenantID: c.Key.Tenant, ProjectID: c.Key.Project, Path: c.Key.Path})
		if err != nil {
			return nil, err
		}
		if n == MaxEvents || len(body)+1+len(event)+len(end) > MaxEventsBody {
			bodies = append(bodies, append(body, end...))
			body, n = []byte(open), 0
		}
		if n > 0 {
			body = append(body, ',')
		}
		body, n = append(body, event...), n+1
	}
	return append(bodies, append(body, end...)), nil
}

// Changes is what the body tells of. An event that is not well formed refuses
// them all.
func (e Events) Changes() ([]Change, error) {
	if len(e.Events) > MaxEvents {
		return nil, fmt.Errorf("more than %d events", MaxEvents)
	}
	changes := make([]Change, len(e.Events))
	for i, event := range e.Events {
		if err := event.validate(); err != nil {
			return nil, fmt.Errorf("events[%d]: %w", i, err)
		}
		changes[i] = Change{Key{event.TenantID, event.ProjectID, event.Path}}
	}
	return changes, nil
}

func (e Event) validate() error {
	if e.Op != Upsert && e.Op != Delete {
		return errors.New("op is neither UPSERT nor DELETE")
	}
	if !principal.ValidName(e.TenantID) || !principal.ValidName(e.ProjectID) || e.Path == "" || len(e.Path) > maxEventPath {
		return errors.New("tenantId, projectId and path do not name a document")
	}
	return nil
}
