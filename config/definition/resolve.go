package definition

import (
	"context"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/document"
)

// Merged is a definition with the origin of each field, for operators.
type Merged struct {
	Definition
	Fields []Field
}

// Field is one field of a merged definition.
type Field struct {
	Name    string         `json:"name"` // such as levels.project
	Value   string         `json:"value"`
	Layer   document.Layer `json:"layer"`             // "" for a default
	Ignored []Ignored      `json:"ignored,omitempty"` // values of other layers
}

// Ignored is a value that did not count.
type Ignored struct {
	Layer document.Layer `json:"layer"`
	Value string         `json:"value"`
	Why   string         `json:"why"` // "overridden by project", "a project may not set it"
}

const overridden = "overridden by "

// Overridden reports whether a more specific layer sets the field; otherwise the
// layer may not set it so.
func (i Ignored) Overridden() bool { return strings.HasPrefix(i.Why, overridden) }

// Resolver resolves lease definitions for a scope.
type Resolver interface {
	// Resolve returns the cached merged definition. An *Error says what is wrong.
	Resolve(ctx context.Context, tenant, project, name string) (*Definition, error)
	// Fresh reads past the cache, for operators.
	Fresh(ctx context.Context, tenant, project, name string) (*Merged, error)
}

// Error says why there is no definition. Error() is for logs and operators;
// Client() is for clients and never quotes a document.
type Error struct {
	Lease string
	Layer document.Layer
	Where string // file:line
	Field string
	What  string
	// Reason is of What as much as quotes nothing of the document; "" for none.
	Reason string
	// Unknown says that no layer defines the lease.
	Unknown bool
	// Transient says that a source could not be reached.
	Transient bool
	Err       error
}

func (e *Error) Error() string {
	s := "lease " + e.Lease + ": "
	if e.Where != "" {
		s += e.Where + ": "
	}
	if e.Field != "" {
		s += e.Field + ": "
	}
	s += e.What
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Client is the sentence that a client may read: which layer and field, never
// the text.
func (e *Error) Client() string {
	switch {
	case e.Unknown:
		return "the lease " + e.Lease + " is not defined in any layer"
	case e.Transient:
		return "the definition of the lease " + e.Lease + " could not be read"
	case e.Field != "" && e.Reason != "":
		return "the definition of the lease " + e.Lease + " is not valid: " + e.Field + " in the " + string(e.Layer) + " layer: " + e.Reason
	case e.Field != "":
		return "the definition of the lease " + e.Lease + " is not valid: " + e.Field + " in the " + string(e.Layer) + " layer"
	}
	return "the definition of the lease " + e.Lease + " is not valid in the " + string(e.Layer) + " layer"
}
