package check

import (
	"context"
	"errors"
	"fmt"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

// texLeaseOf looks at the lease that a tenant or project names for its compiles.
func (r *run) texLeaseOf(ctx context.Context, f document.Found, name string) {
	if name == "" {
		return
	}
	for _, s := range r.Gateway.Tex {
		if s.Lease != "" && (!s.Optional || name != tex.NoLease) {
			r.warn(f.Name, 0, settings.TexLease, "it does not count for the service "+s.Name+", whose lease is "+s.Lease+" by gateway.yaml")
		}
	}
	if name == tex.NoLease {
		return
	}
	tenant, project := scopeOf(f)
	m, err := r.Definitions.Fresh(ctx, tenant, project, name)
	var e *definition.Error
	switch {
	case errors.As(err, &e) && (e.Unknown || !definition.ValidName(name)):
		// Not wrong in a tenant's document: a project below may define it.
		r.warn(f.Name, 0, settings.TexLease, "no layer that this document's scope sees defines the lease "+name+", so compiles are refused there")
		return
	case err != nil:
		return // complained of where it stands
	}
	if m.Caps[definition.User] > 0 {
		for _, who := range r.withoutUser(f) {
			r.warn(f.Name, 0, settings.TexLease, "the lease "+name+" has a cap per user (levels.user), and "+who+" in gateway.yaml names no user, so its compiles are refused here")
		}
	}
}

// tex looks at the room for uploads, and at the lease of compiles as everybody's
// defaults give it.
func (r *run) tex(ctx context.Context) {
	for _, s := range r.Gateway.Tex {
		if share := r.Gateway.Limits.Spool / 3; s.MaxUpload > share {
			r.warn(r.Gateway.Path, 0, "tex."+s.Name, fmt.Sprintf("an upload of more than %d KiB, a third of limits.spool, is refused, although maxUpload would take it", share>>10))
		}
	}
	set, err := r.Settings.Setting(ctx, document.SystemTenant, document.TenantProject, settings.TexLease)
	if err != nil {
		set = "" // complained of where it stands
	}
	bySetting := false
	for _, s := range r.Gateway.Tex {
		if s.Lease != "" {
			r.texLease(ctx, s, s.Lease, "tex."+s.Name, "its lease is "+s.Lease)
		} else if !bySetting || s.Abandoned.Mode == tex.Expire {
			r.texLease(ctx, s, set, "tex", "the setting "+settings.TexLease+" names the lease "+set)
			bySetting = true
		}
	}
}

// texLease looks at the lease of a service; why says where its name comes from.
func (r *run) texLease(ctx context.Context, s tex.Service, name, key, why string) {
	if name == "" || name == tex.NoLease {
		return
	}
	m, err := r.Definitions.Fresh(ctx, document.SystemTenant, document.TenantProject, name)
	var e *definition.Error
	switch {
	case errors.As(err, &e) && e.Unknown:
		r.warn(r.Gateway.Path, 0, key, why+", which neither the system nor the bundled layer defines, so compiles are refused where no tenant defines it")
	case err != nil: // complained of where it stands
	case s.Mode == tex.Job && s.Abandoned.Mode == tex.Expire && m.TTL < readingTime:
		r.warn(r.Gateway.Path, 0, "tex."+s.Name, "a client that polls less often than every "+m.TTL.String()+" loses its compile (ttlSeconds of the lease "+name+", abandoned.mode expire)")
	}
}
