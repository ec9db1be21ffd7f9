// Package server resolves server documents, _vance/server-tools/<server>.yaml,
// by their cascade: the first match as a whole (spec §7, mcp_server tools).
package server

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
)

// Document is a checked server document. Secrets in it are still references:
// Auth is asked for each use, so that a rotated secret counts at once.
type Document struct {
	Name        string
	Layer       document.Layer
	Tenant      string // the scope for which it was resolved
	Project     string
	Transport   string // http | stdio
	URL         *url.URL
	Command     []string
	Cwd         string
	Env         map[string]string
	Auth        config.Auth // with {{secret:…}} unresolved; use Resolver.Auth
	Timeout     time.Duration
	InitTimeout time.Duration
	MaxCall     time.Duration
	OnBusy      string                 // refuse | replaceOwn
	Lease       string                 // name reference; "" with Inline nil means no lease
	Inline      *definition.Definition // inline definition
	Modern      string                 // fence | "" (pass through where there are no caps)
	Untrusted   bool                   // tenant's or project's: every address obeys egress
}

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

// Resolver resolves server documents and their secrets for a scope.
type Resolver interface {
	// Resolve returns the cached document: ErrUnknown, ErrDisabled, an
	// *InvalidError, or an error that means the source could not be read.
	Resolve(ctx context.Context, tenant, project, server string) (*Document, error)
	// Auth returns d's auth with its secrets resolved now. The caller keeps it
	// for one use.
	Auth(ctx context.Context, d *Document) (config.Auth, error)
}
