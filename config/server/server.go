package server

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// Document is a checked server document. Secrets in it are still references:
// Resolver.Auth and ResolvedEnv are asked for each use, so that a rotated secret
// counts at once.
type Document struct {
	Name        string
	Layer       document.Layer
	Tenant      string // the scope for which it was resolved
	Project     string
	Transport   Transport
	URL         *url.URL
	Command     []string
	Cwd         string
	Env         map[string]string // with {{secret:…}} unresolved; use ResolvedEnv
	Auth        config.Auth       // with {{secret:…}} unresolved; use Resolver.Auth
	Timeout     time.Duration
	InitTimeout time.Duration
	MaxCall     time.Duration
	OnBusy      OnBusy
	Lease       string                 // name reference; "" with Inline nil means no lease
	Inline      *definition.Definition // inline definition
	LeaseError  *definition.Error      // what is wrong with Lease or Inline: no session can be opened
	Modern      Modern
	Untrusted   bool // tenant's or project's: every address obeys egress

	secrets *Secrets
}

// Transport is how a server is reached.
type Transport string

// The transports.
const (
	HTTP  Transport = "http"  // Streamable HTTP
	SSE   Transport = "sse"   // HTTP+SSE of revision 2024-11-05
	Stdio Transport = "stdio" // a child process
)

// PodBound reports whether a session with the server lives in one gateway process,
// as its child or on its connection, and ends with it.
func (d *Document) PodBound() bool { return d.Transport != HTTP }

// OnBusy is what an open does where its lease's slots are taken.
type OnBusy string

// What an open may do then.
const (
	Refuse     OnBusy = "refuse"
	ReplaceOwn OnBusy = "replaceOwn" // end the caller's own session that was not used for longest
)

// Modern is what a client of revision 2026-07-28, which has no sessions, gets.
// The zero Modern passes it through where there are no caps.
type Modern string

// Fence sends such a client to a revision with sessions.
const Fence Modern = "fence"

// Why there is no document. Unknown and disabled are one 404 for a client.
var (
	ErrUnknown  = errors.New("server: unknown")
	ErrDisabled = errors.New("server: disabled")
)

// InvalidError is a document that is there and wrong.
type InvalidError struct {
	Server string
	Layer  document.Layer
	Where  string // file:line, for logs
	Field  string
	What   string // for logs and operators
	Reason string // of What as much as quotes nothing of the document: a client may read it
	Err    error
}

func (e *InvalidError) Error() string {
	s := "server " + e.Server + ": " + e.Where + ": " + e.Field + ": " + e.What
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *InvalidError) Unwrap() error { return e.Err }

// Client is the sentence that a client may read: which layer and field, and the
// way out, never the text. It speaks of the server as "it".
func (e *InvalidError) Client() string {
	s := "its document is not valid"
	if e.Field != "" {
		s += ": " + e.Field
	}
	s += " in the " + string(e.Layer) + " layer"
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Resolver resolves server documents and their secrets for a scope.
type Resolver interface {
	// Resolve returns the cached document: ErrUnknown, ErrDisabled, an
	// *InvalidError, or an error that means the source could not be read.
	Resolve(ctx context.Context, tenant, project, server string) (*Document, error)
	// Auth returns d's auth with its secrets resolved now. The caller keeps it
	// for one use.
	Auth(ctx context.Context, d *Document) (config.Auth, error)
}

// ResolvedEnv returns d's environment with its secrets resolved now.
func (d *Document) ResolvedEnv() (map[string]string, error) {
	out := make(map[string]string, len(d.Env))
	for name, value := range d.Env {
		text, err := d.secrets.expand(d, value)
		if err != nil {
			return nil, d.invalid("parameters.env."+name, err)
		}
		out[name] = text
	}
	return out, nil
}

func (d *Document) invalid(field string, err error) *InvalidError {
	return &InvalidError{Server: d.Name, Layer: d.Layer, Where: "the " + string(d.Layer) + " document", Field: field, What: err.Error()}
}

// ValidName reports whether s may be a server's name, which is a file's name.
func ValidName(s string) bool { return principal.ValidName(s) }

// PathOf is where the documents of a server stand.
func PathOf(name string) string { return pathPrefix + name + ".yaml" }

// NameOf is the server whose documents stand at a path.
func NameOf(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, pathPrefix)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(rest, ".yaml")
	return name, ok && ValidName(name)
}

const pathPrefix = "_vance/server-tools/"

// Cascaded resolves servers through a document cascade.
type Cascaded struct {
	docs    *document.Cascade
	secrets *Secrets
	lim     definition.Limits
	vars    *strictyaml.Variables
	cache   *document.Cache[*Document]
}

// NewCascaded makes a resolver whose cache follows the changes that docs tells
// of. Vars is what ${…} means in system and bundled documents.
func NewCascaded(docs *document.Cascade, secrets *Secrets, lim definition.Limits, vars *strictyaml.Variables) *Cascaded {
	c := &Cascaded{docs: docs, secrets: secrets, lim: lim, vars: vars}
	c.cache = document.NewCache(docs, c.load)
	return c
}

// Resolve returns the document that a scope sees under a server's name.
func (c *Cascaded) Resolve(ctx context.Context, tenant, project, server string) (*Document, error) {
	if !ValidName(server) {
		return nil, ErrUnknown
	}
	return c.cache.Get(ctx, tenant, project, PathOf(server))
}

func (c *Cascaded) load(ctx context.Context, tenant, project, path string) (*Document, error) {
	name, _ := NameOf(path) // Resolve made the path
	f, err := c.docs.First(ctx, tenant, project, path)
	if errors.Is(err, document.ErrNotFound) {
		return nil, ErrUnknown
	}
	var re *document.ReadError
	if errors.As(err, &re) && document.Lasting(err) {
		return nil, &InvalidError{Server: name, Layer: re.Layer, Where: re.Name, What: re.Err.Error()}
	}
	if err != nil {
		return nil, err
	}
	checked := Check(name, tenant, project, f, c.lim, c.vars)
	switch {
	case checked.Document == nil && len(checked.Problems) > 0:
		p := checked.Problems[0]
		return nil, &InvalidError{Server: name, Layer: f.Layer, Where: p.Where(), Field: p.Key, What: p.What, Reason: p.Reason}
	case checked.Disabled:
		return nil, ErrDisabled
	}
	checked.Document.secrets = c.secrets
	return checked.Document, nil
}

// Auth returns d's auth with its secrets resolved now.
func (c *Cascaded) Auth(_ context.Context, d *Document) (config.Auth, error) {
	a := d.Auth
	for _, f := range []struct {
		name  string
		value *string
	}{
		{"token", &a.Token}, {"user", &a.User}, {"password", &a.Password}, {"value", &a.Value},
		{"clientID", &a.ClientID}, {"clientSecret", &a.ClientSecret},
	} {
		text, err := c.secrets.expand(d, *f.value)
		if err != nil {
			return config.Auth{}, d.invalid("parameters.auth."+f.name, err)
		}
		*f.value = text
	}
	for _, wrong := range a.Check() { // a secret can be empty or hold a line break
		return config.Auth{}, d.invalid("parameters.auth."+wrong.Key, errors.New(wrong.What))
	}
	return a, nil
}

var _ Resolver = (*Cascaded)(nil)
