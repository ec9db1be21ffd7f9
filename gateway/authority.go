package gateway

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
)

// Authority judges who may see and revoke leases; see admin.Authority.
type Authority struct {
	Tokens []string // internal.tokens
	Live   *Live
}

var _ admin.Authority = (*Authority)(nil)

// Operator names the caller where it may act on all tenants: by the internal
// token, or by a credential with the role operator.
func (a *Authority) Operator(r *http.Request) (string, error) {
	if len(r.Header.Values(headers.InternalToken)) > 0 {
		if err := admin.InternalToken(r, a.Tokens); err != nil {
			return "", err
		}
		return "internal token", nil
	}
	c, err := a.credential(r)
	if err != nil {
		return "", err
	}
	if !c.Operator() {
		return "", admin.ErrForbidden
	}
	return c.Who(), nil
}

// TenantAdmin names the caller where it has the role tenantAdmin for tenant.
func (a *Authority) TenantAdmin(r *http.Request, tenant string) (string, error) {
	c, err := a.credential(r)
	if err != nil {
		return "", err
	}
	if !c.TenantAdmin(tenant) {
		return "", admin.ErrForbidden
	}
	return c.Who(), nil
}

// credential is the request's own: nobody acts on leases without one, from
// wherever the request comes.
func (a *Authority) credential(r *http.Request) (*identity.Credential, error) {
	if r.Header.Get("Authorization") == "" && r.Header.Get(identity.KeyHeader) == "" {
		return nil, admin.ErrNoCredential
	}
	c, err := a.Live.Load().Identity.Authenticate(r)
	var e *identity.Error
	switch {
	case err == nil:
		return c, nil
	case errors.As(err, &e) && e.Status == http.StatusForbidden:
		return nil, fmt.Errorf("%w: %s", admin.ErrForbidden, e.Why)
	case e != nil:
		return nil, fmt.Errorf("%w: %s", admin.ErrWrongCredential, e.Why)
	}
	return nil, err
}
