package definition

import (
	"time"
)

// Level is a quota level of the funnel (spec §1).
type Level string

// The four levels, in the order of the funnel.
const (
	User    Level = "user"
	Project Level = "project"
	Tenant  Level = "tenant"
	Global  Level = "global"
)

// Levels are the levels in the order in which an acquire takes them: narrow to
// wide, so that a full narrow level never occupies a wide one.
var Levels = [...]Level{User, Project, Tenant, Global}

// Cap is the largest number of holders on one counter. It is at least 1; the
// zero Cap in Caps means that the level has no cap.
type Cap int

// Defaults of the fields that a definition leaves out.
const (
	DefaultTTL  = 120 * time.Second
	DefaultWait = 10 * time.Second
)

// InlinePrefix begins the resource of every inline definition and of nothing
// else (spec §2, inline).
const InlinePrefix = "mcp-inline:"

// Definition is a merged lease definition. It is immutable once resolved.
type Definition struct {
	// Name is the lease's name: [A-Za-z0-9][A-Za-z0-9_-]{0,63}.
	Name string
	// Resource is the first part of every counter id. An inline definition's is
	// project-private: InlinePrefix and the encoded tenant/project/name.
	Resource string
	// Caps holds the configured levels only; none at all makes a NOOP lease.
	Caps map[Level]Cap
	// TTL is the idle time after which a reaper takes the lease.
	TTL time.Duration
	// Wait is the longest time an acquire waits for a slot.
	Wait time.Duration
	// Inline says that the definition stood in a consumer's document.
	Inline bool
	// Label is what metrics may call this lease: the resource where its name
	// comes from the system or bundled layer, "mcp-inline", or "other".
	Label string
}

// Noop reports whether the definition has no caps, so that an acquire needs no
// store (spec §3).
func (d *Definition) Noop() bool { return d == nil || len(d.Caps) == 0 }
