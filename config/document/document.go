package document

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

// The scopes that carry defaults.
const (
	SystemTenant  = "_vance"
	TenantProject = "_tenant"
)

// MaxSize is the longest document in bytes.
const MaxSize = 64 << 10

// Key says where a document stands.
type Key struct{ Tenant, Project, Path string }

var segmentForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// Validate refuses keys that could lead anywhere else than below their scope:
// they become folder and file names.
func (k Key) Validate() error {
	if !principal.ValidName(k.Tenant) || !principal.ValidName(k.Project) {
		return fmt.Errorf("document: %q/%q is not a tenant and project", k.Tenant, k.Project)
	}
	if !validPath(k.Path) {
		return fmt.Errorf("document: %q is not a path", k.Path)
	}
	return nil
}

func validPath(path string) bool {
	parts := strings.Split(path, "/")
	for _, part := range parts {
		if !segmentForm.MatchString(part) || strings.Contains(part, "..") {
			return false
		}
	}
	return len(parts) <= maxDepth
}

// Layer is where in the cascade a document was found.
type Layer string

// The layers, least specific first.
const (
	Bundled Layer = "bundled"
	System  Layer = "system"
	Tenant  Layer = "tenant"
	Project Layer = "project"
)

// Trusted reports whether the layer is the operator's own. A tenant's or
// project's text is hostile input.
func (l Layer) Trusted() bool { return l == Bundled || l == System }

// ErrNotFound says that a source has no document at a key. Any other error of
// Read means that nobody knows.
var ErrNotFound = errors.New("document: not found")

// Source reads documents and tells of changes.
type Source interface {
	// Read returns the text at key, at most MaxSize bytes.
	Read(ctx context.Context, key Key) ([]byte, error)
	// Name says where key stands, for people ("documents/acme/…/browser.yaml").
	Name(key Key) string
	// List returns every key that the source has, for `check`.
	List(ctx context.Context) ([]Key, error)
}

// Found is a document with the layer that it came from.
type Found struct {
	Layer Layer
	Key   Key
	Name  string // for people
	Text  []byte
}

// Change is one changed document; a Key without a Path means that anything may
// have changed.
type Change struct{ Key Key }

// reaches reports whether the change can concern what a scope sees at path:
// a system document is seen by everybody, a tenant's by all its projects.
func (c Change) reaches(tenant, project, path string) bool {
	if c.Key.Path == "" {
		return true
	}
	if c.Key.Path != path {
		return false
	}
	switch {
	case c.Key.Tenant == SystemTenant && c.Key.Project == TenantProject:
		return true
	case c.Key.Tenant != tenant:
		return false
	}
	return c.Key.Project == TenantProject || c.Key.Project == project
}
