package texproxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

// authorizer puts a service's credential on a request. forwarded is the
// caller's own, empty where the gateway asks by itself.
type authorizer func(r *http.Request, forwarded principal.Secret) error

func newAuthorizer(a config.Auth) (authorizer, error) {
	switch a.Type {
	case "", "none":
		return func(*http.Request, principal.Secret) error { return nil }, nil
	case "bearer":
		return header("Authorization", "Bearer "+a.Token), nil
	case "basic":
		return func(r *http.Request, _ principal.Secret) error {
			r.SetBasicAuth(a.User, a.Password)
			return nil
		}, nil
	case "apiKey":
		if a.HeaderName == "" {
			return nil, &config.TexError{Key: "auth.headerName", What: "is missing"}
		}
		return header(a.HeaderName, a.Value), nil
	case "forward":
		return func(r *http.Request, forwarded principal.Secret) error {
			if forwarded != "" {
				r.Header.Set("Authorization", forwarded.Reveal())
			}
			return nil
		}, nil
	case "oauth2":
		return oauth(a), nil
	}
	return nil, &config.TexError{Key: "auth.type", What: fmt.Sprintf("%q is not bearer, basic, apiKey, oauth2, forward or none", a.Type)}
}

func header(name, value string) authorizer {
	return func(r *http.Request, _ principal.Secret) error {
		r.Header.Set(name, value)
		return nil
	}
}

func oauth(a config.Auth) authorizer {
	c := clientcredentials.Config{ClientID: a.ClientID, ClientSecret: a.ClientSecret, TokenURL: a.TokenURL, Scopes: a.Scopes}
	if a.Audience != "" {
		c.EndpointParams = url.Values{"audience": {a.Audience}}
	}
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second},
		// A credential never follows a redirect.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	source := oauth2.ReuseTokenSource(nil, c.TokenSource(context.WithValue(context.Background(), oauth2.HTTPClient, client)))
	return func(r *http.Request, _ principal.Secret) error {
		t, err := source.Token()
		if err != nil {
			// Its text can hold what the token endpoint said of the secret.
			return fmt.Errorf("texproxy: no token from %s", a.TokenURL)
		}
		t.SetAuthHeader(r)
		return nil
	}
}
