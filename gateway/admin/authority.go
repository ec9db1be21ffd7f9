package admin

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
)

// credentials is the gateway's Authority.
type credentials struct {
	tokens  []string
	current func() *identity.Authenticator
}

// Credentials judges by the internal tokens of gateway.yaml and by the
// authenticator in force: an operator has the internal token or a credential
// with the role operator, a tenant's admin a credential with the role
// tenantAdmin for that tenant.
func Credentials(internalTokens []string, current func() *identity.Authenticator) Authority {
	return credentials{internalTokens, current}
}

// Operator implements Authority. A request with an internal token is judged by
// it alone, so that a wrong one is never outweighed.
func (c credentials) Operator(r *http.Request) (string, error) {
	if len(r.Header.Values(TokenHeader)) > 0 || !presents(r) {
		if err := InternalToken(r, c.tokens); err != nil {
			return "", err
		}
		return "internal token", nil
	}
	who, err := c.judge(r)
	if err != nil {
		return "", err
	}
	if !who.Operator() {
		return "", fmt.Errorf("%w: operator", ErrForbidden)
	}
	return who.Who(), nil
}

// TenantAdmin implements Authority.
func (c credentials) TenantAdmin(r *http.Request, tenant string) (string, error) {
	if !presents(r) {
		return "", ErrNoCredential // nobody is an admin without one, on loopback too
	}
	who, err := c.judge(r)
	if err != nil {
		return "", err
	}
	if !who.TenantAdmin(tenant) {
		return "", fmt.Errorf("%w: tenantAdmin of this tenant", ErrForbidden)
	}
	return who.Who(), nil
}

func presents(r *http.Request) bool {
	return r.Header.Get("Authorization") != "" || r.Header.Get(identity.KeyHeader) != ""
}

func (c credentials) judge(r *http.Request) (*identity.Credential, error) {
	who, err := c.current().Authenticate(r)
	var refused *identity.Error
	switch {
	case err == nil:
		return who, nil
	case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
		return nil, fmt.Errorf("%w: %s", ErrForbidden, refused.Why)
	case errors.As(err, &refused):
		return nil, fmt.Errorf("%w: %s", ErrWrongCredential, refused.Why)
	}
	return nil, err
}
