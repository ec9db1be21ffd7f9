package identity

import (
	"net/http"
	"slices"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

const star = "*"

// Credential is an accepted credential of one request: what it may reach and
// for whom it speaks.
type Credential struct {
	issuer     string
	tenants    map[string][]string
	user       string // the credential's own
	userHeader string // set where it may speak for users
	keyName    string // "" for tokens and anonymous callers
	speaksFor  string // the user named by header or Basic
	roles      []string
	onLost     principal.OnLost
	authorized principal.Secret // Authorization as it may go upstream
	expires    time.Time        // zero for never
	token      bool
}

// Issuer is "anonymous", "key:<name>" or "jwt:<issuer>". It may be logged.
func (c *Credential) Issuer() string { return c.issuer }

// Who names the credential and its user for an audit record.
func (c *Credential) Who() string {
	switch {
	case c.speaksFor != "":
		return c.issuer + "/" + c.speaksFor
	case c.user != "":
		return c.issuer + "/" + c.user
	}
	return c.issuer
}

// Operator reports whether the credential may act on all tenants' leases.
func (c *Credential) Operator() bool { return slices.Contains(c.roles, config.RoleOperator) }

// TenantAdmin reports whether the credential may see and revoke the leases of
// the whole tenant. A key needs the role and all of the tenant's projects; a
// token's role is given by the provider for the tenant that it names.
func (c *Credential) TenantAdmin(tenant string) bool {
	if !slices.Contains(c.roles, config.RoleTenantAdmin) {
		return false
	}
	projects, ok := c.projects(tenant)
	return ok && (c.token || slices.Contains(projects, star))
}

// Caller is the principal for a scope of a request's path; pathUser is the user
// that the path names or "". Errors are *Error with status 403.
func (c *Credential) Caller(tenant, project, pathUser string) (principal.Caller, error) {
	projects, ok := c.projects(tenant)
	if !ok || !principal.ValidName(tenant) || !principal.ValidName(project) || !allows(projects, project) {
		return principal.Caller{}, forbidden("the credential does not open this tenant and project")
	}
	user := c.user
	switch {
	case pathUser == "":
		if c.speaksFor != "" {
			user = c.speaksFor
		}
	case c.speaksFor != "":
		return principal.Caller{}, forbidden("the user is named twice, by the path and by a header")
	case c.userHeader == "":
		return principal.Caller{}, forbidden("the credential may not speak for users, and the path names one")
	case !principal.ValidUser(pathUser):
		return principal.Caller{}, forbidden("the user in the path does not have the form of a user")
	default:
		user = pathUser
	}
	return principal.Caller{
		Principal:     principal.Principal{Tenant: tenant, Project: project, User: user, Issuer: c.issuer},
		OnLost:        c.onLost,
		Expires:       c.expires,
		Authorization: c.authorized,
	}, nil
}

// projects returns the projects that the credential opens in a tenant. A tenant
// that is named counts before the star; the star never means the scopes that
// carry defaults for others.
func (c *Credential) projects(tenant string) ([]string, bool) {
	if p, ok := c.tenants[tenant]; ok && tenant != star {
		return p, true
	}
	if tenant == document.SystemTenant || tenant == document.TenantProject {
		return nil, false
	}
	p, ok := c.tenants[star]
	return p, ok
}

func allows(projects []string, project string) bool {
	if slices.Contains(projects, project) && project != star {
		return true
	}
	if project == document.SystemTenant || project == document.TenantProject {
		return false
	}
	return slices.Contains(projects, star)
}

// named takes the user that a header or Basic names. It appears once, has the
// form of a user, and comes from a key that may speak for users.
func (c *Credential) named(h http.Header, headers []string, basic string) error {
	if basic != "" && c.userHeader == "" {
		// Programs that can only do Basic must write something before the colon:
		// the key's own name or user is no claim to be somebody else.
		if basic != c.user && basic != c.keyName {
			return forbidden("the key may not speak for users, and the Basic credential names one")
		}
		basic = ""
	}
	user, times := basic, 0
	if basic != "" {
		times = 1
	}
	for _, name := range headers {
		values := h.Values(name)
		if len(values) == 0 {
			continue
		}
		if c.userHeader != name {
			return forbidden("the credential may not speak for users by the header " + name)
		}
		times += len(values)
		user = values[0]
	}
	switch {
	case times == 0:
		return nil
	case times > 1:
		return forbidden("the user is named more than once")
	case !principal.ValidUser(user):
		return forbidden("the user that the request names does not have the form of a user")
	}
	c.speaksFor = user
	return nil
}
