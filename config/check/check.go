package check

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// readingTime is how long a person reads a page before the next click.
const readingTime = time.Minute

// Parts are a loaded gateway.yaml and what resolves its documents.
type Parts struct {
	Gateway     *config.Gateway
	Cascade     *document.Cascade
	Definitions definition.Resolver
	Settings    *settings.Settings
	Secrets     *server.Secrets
	Limits      definition.Limits
	Variables   *strictyaml.Variables
}

// Report is what was found, in the order of the files.
type Report struct {
	Unlooked  bool                // gateway.yaml is wrong, so nobody knows where the documents are
	Documents int                 // of the sources
	Bundled   int                 // those that the gateway brings along
	Problems  strictyaml.Problems // what the gateway refuses
	Warnings  strictyaml.Problems // what it takes, and somebody will wonder about
}

// Run reads every document of every source. What cannot be read is a problem.
func Run(ctx context.Context, p Parts) Report {
	r := run{Parts: p, Report: Report{Warnings: slices.Clone(p.Gateway.Warnings)}}
	var err error
	if r.egress, err = egress.New(p.Gateway.Egress.Allow); err != nil {
		r.problem(p.Gateway.Path, 0, "egress.allow", err.Error())
	}
	r.unread(p.Cascade.Each(ctx, func(f document.Found) {
		if f.Layer == document.Bundled {
			r.Bundled++
		} else {
			r.Documents++
		}
		r.document(ctx, f)
	}))
	if len(p.Gateway.Tex) > 0 {
		r.tex(ctx)
	}
	r.Problems.Sort()
	r.Warnings.Sort()
	return r.Report
}

type run struct {
	Parts
	Report
	egress *egress.Policy // nil where egress.allow is wrong
}

// unread tells of what the sources could not give, each under its own name.
func (r *run) unread(err error) {
	if err == nil {
		return
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range several.Unwrap() {
			r.unread(err)
		}
		return
	}
	var re *document.ReadError
	if errors.As(err, &re) {
		r.problem(re.Name, 0, "", re.Err.Error())
		return
	}
	r.problem(r.Gateway.Path, 0, "documents", err.Error())
}

func (r *run) problem(file string, line int, key, what string) {
	r.Problems = append(r.Problems, strictyaml.Problem{File: file, Line: line, Key: key, What: what})
}

func (r *run) warn(file string, line int, key, what string) {
	r.Warnings = append(r.Warnings, strictyaml.Problem{File: file, Line: line, Key: key, What: what})
}

func (r *run) document(ctx context.Context, f document.Found) {
	if name, ok := definition.NameOf(f.Key.Path); ok {
		if !definition.ValidName(name) {
			r.problem(f.Name, 0, "", "no lease can have this name: "+definition.NameRule)
			return
		}
		tenant, project := scopeOf(f)
		merged, err := r.Definitions.Fresh(ctx, tenant, project, name)
		if err != nil {
			merged = nil // complained of where it stands
		}
		problems, warnings := definition.CheckDocument(name, f, merged, r.Limits, r.Variables)
		r.Problems, r.Warnings = append(r.Problems, problems...), append(r.Warnings, warnings...)
		return
	}
	if name, ok := server.NameOf(f.Key.Path); ok {
		r.server(ctx, name, f)
		return
	}
	if f.Key.Path == settings.Path {
		values, problems := settings.Check(f, r.Variables)
		r.Problems = append(r.Problems, problems...)
		if len(problems) == 0 && !f.Layer.Trusted() && len(r.Gateway.Tex) > 0 {
			r.texLeaseOf(ctx, f, values[settings.TexLease])
		}
		return
	}
	// Other programs keep documents here too. These look as if they were meant
	// for this one.
	for _, folder := range []string{"config/lease", "server-tools", "config/settings"} {
		if strings.Contains(f.Key.Path, folder) {
			r.warn(f.Name, 0, "", "no part of the gateway reads this path; it reads _vance/server-tools/<server>.yaml, _vance/config/lease/<name>.yaml and "+settings.Path)
			return
		}
	}
}

func (r *run) server(ctx context.Context, name string, f document.Found) {
	tenant, project := scopeOf(f)
	c := server.Check(name, tenant, project, f, r.Limits, r.Variables)
	r.Warnings = append(r.Warnings, c.Warnings...)
	if c.Foreign {
		r.Warnings = append(r.Warnings, c.Problems...) // another program's tool
		return
	}
	r.Problems = append(r.Problems, c.Problems...)
	for _, s := range c.Secrets {
		if _, err := r.Secrets.Lookup(f.Layer, tenant, project, s.Name); err != nil {
			r.warn(f.Name, s.Line, s.Key, err.Error())
		}
	}
	d := c.Document
	if d == nil {
		return
	}
	r.program(f, c)
	if d.Untrusted && d.URL != nil && r.egress != nil {
		var refused *egress.Error
		if err := r.egress.CheckURL(d.URL); errors.As(err, &refused) {
			r.problem(f.Name, c.Line("parameters.url"), "parameters.url", "this is not a public address and egress.allow in gateway.yaml does not name it, so no session of this server can be opened")
		}
	}
	if d.LeaseError == nil {
		r.leaseOf(ctx, f, c)
	}
}

// leaseOf looks at a server's lease as the document's scope sees it.
func (r *run) leaseOf(ctx context.Context, f document.Found, c server.Checked) {
	const key = "parameters.lease"
	line := c.Line(key)
	d, def := c.Document, c.Document.Inline
	if def == nil {
		if d.Lease == "" {
			return
		}
		m, err := r.Definitions.Fresh(ctx, d.Tenant, d.Project, d.Lease)
		var e *definition.Error
		switch {
		case errors.As(err, &e) && e.Unknown:
			// Not wrong: a tenant or project below may define it.
			r.warn(f.Name, line, key, "no layer that this document's scope sees defines the lease "+d.Lease+", so sessions are refused there")
			return
		case err != nil:
			return // complained of where it stands
		}
		def = &m.Definition
	}
	if def.Noop() {
		r.warn(f.Name, line, key, "the lease "+def.Name+" has no caps here, so it limits nothing")
		return
	}
	if open := r.Gateway.Session.OpenWait; def.Wait > open {
		r.warn(f.Name, line, key, "the lease "+def.Name+" waits "+def.Wait.String()+" for a slot (waitMs), but opening a session waits at most "+open.String()+" (session.openWait), since clients give up after 5 s")
	}
	if def.TTL < readingTime {
		r.warn(f.Name, line, key, "the lease "+def.Name+" is lost after "+def.TTL.String()+" without a call (ttlSeconds): a person who reads a page between two calls loses the session")
	}
	if def.Caps[definition.User] > 0 {
		for _, who := range r.withoutUser(f) {
			r.warn(f.Name, line, key, "the lease "+def.Name+" has a cap per user (levels.user), and "+who+" in gateway.yaml names no user, so its sessions are refused here")
		}
	}
}

// withoutUser lists the credentials that reach a document's scope and name no
// user.
func (r *run) withoutUser(f document.Found) []string {
	id := r.Gateway.Identity
	var out []string
	if a := id.Anonymous; a != nil && a.User == "" && reaches(map[string][]string{a.Tenant: a.Projects}, f) {
		out = append(out, "identity.anonymous")
	}
	for _, k := range id.APIKeys {
		if k.User == "" && k.UserHeader == "" && len(k.Roles) == 0 && reaches(k.Tenants, f) { // a role's key is for people who look
			out = append(out, "the key "+k.Name)
		}
	}
	return out
}

// reaches reports whether tenants opens a scope that sees f.
func reaches(tenants map[string][]string, f document.Found) bool {
	if f.Layer.Trusted() {
		return len(tenants) > 0
	}
	for _, name := range []string{f.Key.Tenant, "*"} {
		for _, project := range tenants[name] {
			if f.Layer == document.Tenant || project == "*" || project == f.Key.Project {
				return true
			}
		}
	}
	return false
}

// scopeOf is a scope that sees the document.
func scopeOf(f document.Found) (tenant, project string) {
	if f.Layer == document.Bundled {
		return document.SystemTenant, document.TenantProject
	}
	return f.Key.Tenant, f.Key.Project
}
