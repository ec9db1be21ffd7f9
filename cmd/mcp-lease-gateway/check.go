package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
	"github.com/vancetope/mcp-lease-gateway/texproxy"
)

const (
	// checkTime is the longest that a check may take, a collection included.
	checkTime = time.Minute
	// readingTime is how long a person reads a page before the next click.
	readingTime = time.Minute
)

func newCheckCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "check",
		Short: "Check gateway.yaml and every document",
		Long: `check reads gateway.yaml and every document of every source and prints what is wrong
with them, a line each: file:line: key: what. It ends with 1 where anything is wrong.
It warns of what is right and will surprise, and of that ends with 0.`,
		Example: `  mcp-lease-gateway check --config gateway.yaml`,
		Args:    wrongUsage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), checkTime)
			defer cancel()
			r, err := check(ctx, path)
			if err != nil {
				return err
			}
			return r.print(c.OutOrStdout())
		},
	}
	configFlag(c, &path)
	return c
}

// report is what a check has found.
type report struct {
	documents int
	problems  strictyaml.Problems
	warnings  strictyaml.Problems
}

func (r *report) problem(file, key, what string) {
	r.problems = append(r.problems, strictyaml.Problem{File: file, Key: key, What: what})
}

func (r *report) warn(file, key, what string) {
	r.warnings = append(r.warnings, strictyaml.Problem{File: file, Key: key, What: what})
}

func (r *report) print(w io.Writer) error {
	r.problems.Sort()
	r.warnings.Sort()
	for _, p := range r.problems {
		if _, err := fmt.Fprintln(w, p.Error()); err != nil {
			return err
		}
	}
	for _, p := range r.warnings {
		if _, err := fmt.Fprintf(w, "%s: warning: %s\n", p.Where(), keyed(p)); err != nil {
			return err
		}
	}
	if len(r.problems) > 0 {
		return &codeError{codeFailed, fmt.Errorf("%d problem(s) in gateway.yaml and %d documents", len(r.problems), r.documents)}
	}
	_, err := fmt.Fprintf(w, "gateway.yaml and %d documents are in order\n", r.documents)
	return err
}

func keyed(p strictyaml.Problem) string {
	if p.Key == "" {
		return p.What
	}
	return p.Key + ": " + p.What
}

// check reads everything. Its error is that nothing could be checked; what is
// wrong is in the report.
func check(ctx context.Context, path string) (*report, error) {
	r := &report{}
	conf, err := config.Load(path, os.LookupEnv)
	var wrong config.Problems
	if errors.As(err, &wrong) {
		// Without gateway.yaml it is not known where the documents are.
		r.problems = wrong
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	r.secretsOfPods(conf)
	docs, err := openDocuments(conf, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer docs.close(context.WithoutCancel(ctx))
	all, err := docs.cascade.All(ctx)
	if err != nil {
		r.problem(conf.Path, "documents", err.Error())
	}
	r.documents = len(all)
	for _, f := range all {
		r.document(ctx, conf, docs, f)
	}
	for _, s := range conf.Tex {
		r.service(ctx, conf, docs, s)
	}
	return r, nil
}

// secretsOfPods finds what serve would refuse to start without.
func (r *report) secretsOfPods(c *config.Gateway) {
	if c.Embedded() {
		return
	}
	if len(c.Session.Keys) == 0 {
		r.problem(c.Path, "session.keys", "pods that share a store need the same keys; make one with `openssl rand -base64 32`")
	}
	if len(c.Internal.Tokens) == 0 {
		r.problem(c.Path, "internal.tokens", "pods that share a store call each other and need the same token; make one with `openssl rand -hex 32`")
	}
}

func (r *report) document(ctx context.Context, c *config.Gateway, docs *documents, f document.Found) {
	if name, ok := definition.NameOf(f.Key.Path); ok {
		r.problems = append(r.problems, definition.CheckDocument(name, f, docs.limits, docs.vars)...)
		return
	}
	if name, ok := server.NameOf(f.Key.Path); ok {
		checked := server.Check(name, f.Key.Tenant, f.Key.Project, f, docs.limits, docs.vars)
		r.problems = append(r.problems, checked.Problems...)
		r.warnings = append(r.warnings, checked.Warnings...)
		for _, s := range checked.Secrets {
			if _, err := docs.secrets.Lookup(f.Layer, f.Key.Tenant, f.Key.Project, s.Name); err != nil {
				r.warnings = append(r.warnings, strictyaml.Problem{File: f.Name, Line: s.Line, Key: s.Key, What: err.Error()})
			}
		}
		if d := checked.Document; d != nil {
			r.leaseOf(ctx, c, docs, f, d)
		}
		return
	}
	if f.Key.Path == settings.Path {
		_, problems := settings.Check(f, docs.vars)
		r.problems = append(r.problems, problems...)
		return
	}
	r.warn(f.Name, "", "no part of the gateway reads a document at this path")
}

// leaseOf looks at the lease of a server as its scope sees it.
func (r *report) leaseOf(ctx context.Context, c *config.Gateway, docs *documents, f document.Found, d *server.Document) {
	def := d.Inline
	if def == nil {
		if d.Lease == "" {
			return
		}
		tenant, project := scopeOf(f)
		merged, err := docs.definitions.Fresh(ctx, tenant, project, d.Lease)
		var e *definition.Error
		switch {
		case errors.As(err, &e) && e.Unknown:
			// Not wrong: a tenant or project below may define it.
			r.warn(f.Name, "parameters.lease", "no layer that this document's scope sees defines the lease "+d.Lease+", so sessions are refused there")
			return
		case err != nil:
			return // complained of where it stands
		}
		def = &merged.Definition
	}
	if def.Noop() {
		return
	}
	if def.Wait > c.Session.OpenWait {
		r.warn(f.Name, "parameters.lease", fmt.Sprintf("the lease %s waits %s for a slot, but opening a session waits at most %s (session.openWait): clients give up after 5 s", def.Name, def.Wait, c.Session.OpenWait))
	}
	if def.TTL < readingTime {
		r.warn(f.Name, "parameters.lease", fmt.Sprintf("the lease %s is lost after %s without a call (ttlSeconds): a person who reads a page between two calls loses the session", def.Name, def.TTL))
	}
}

// service looks at the lease of a TeX service as everybody's defaults give it.
func (r *report) service(ctx context.Context, c *config.Gateway, docs *documents, s config.TexService) {
	name, err := docs.settings.Setting(ctx, document.SystemTenant, document.TenantProject, texproxy.SettingLease)
	if err != nil || name == "" || name == "none" {
		return
	}
	merged, err := docs.definitions.Fresh(ctx, document.SystemTenant, document.TenantProject, name)
	if err != nil || merged.Noop() {
		return
	}
	if s.Mode == "job" && s.Abandoned.Mode == "expire" && merged.TTL < readingTime {
		r.warn(c.Path, "tex."+s.Name, fmt.Sprintf("a client that polls less often than every %s loses its compile (ttlSeconds of the lease %s)", merged.TTL, name))
	}
}

// scopeOf is a scope that sees the document.
func scopeOf(f document.Found) (tenant, project string) {
	if f.Key.Tenant == "" { // bundled
		return document.SystemTenant, document.TenantProject
	}
	return f.Key.Tenant, f.Key.Project
}
