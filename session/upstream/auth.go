package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// AuthError says that there is no credential to send. What is a sentence for a
// client; Err is for the log.
type AuthError struct {
	What string
	Err  error
}

func (e *AuthError) Error() string {
	if e.Err == nil {
		return "upstream: " + e.What
	}
	return "upstream: " + e.What + ": " + e.Err.Error()
}

func (e *AuthError) Unwrap() error { return e.Err }

// Authorize sets the credential of a server document on a request's headers.
// caller is the Authorization that the caller lets go up, for type forward.
func (c *Client) Authorize(ctx context.Context, h http.Header, a config.Auth, caller string, untrusted bool) error {
	switch a.Type {
	case "", "none":
	case "bearer":
		h["Authorization"] = []string{"Bearer " + a.Token}
	case "basic":
		h["Authorization"] = []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(a.User+":"+a.Password))}
	case "apiKey":
		h[http.CanonicalHeaderKey(a.HeaderName)] = []string{a.Value}
	case "forward":
		if caller != "" {
			h["Authorization"] = []string{caller}
		}
	case "oauth2":
		t, err := c.tokens.get(ctx, c, a, untrusted)
		if err != nil {
			return err
		}
		h["Authorization"] = []string{"Bearer " + t}
	default:
		return &AuthError{What: fmt.Sprintf("its document names an unknown kind of auth, %q", a.Type)}
	}
	return nil
}

// Rejected tells that the upstream did not take the credential, so that a kept
// access token is fetched anew.
func (c *Client) Rejected(a config.Auth, untrusted bool) {
	if a.Type == "oauth2" {
		c.tokens.forget(tokenKey(a, untrusted))
	}
}

// maxTokens bounds the kept access tokens; one more empties the store.
const maxTokens = 4096

// tokens keeps access tokens per client and scope until they expire.
type tokens struct {
	mu      sync.Mutex
	sources map[[32]byte]oauth2.TokenSource
}

func tokenKey(a config.Auth, untrusted bool) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %q %t", a.TokenURL, a.ClientID, a.ClientSecret, a.Scopes, a.Audience, untrusted))
}

func (t *tokens) forget(key [32]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sources, key)
}

func (t *tokens) get(ctx context.Context, c *Client, a config.Auth, untrusted bool) (string, error) {
	key := tokenKey(a, untrusted)
	t.mu.Lock()
	src := t.sources[key]
	if src == nil {
		cc := clientcredentials.Config{ClientID: a.ClientID, ClientSecret: a.ClientSecret, TokenURL: a.TokenURL, Scopes: a.Scopes}
		if a.Audience != "" {
			cc.EndpointParams = url.Values{"audience": {a.Audience}}
		}
		// The source outlives the request that makes it; its own client bounds
		// each fetch and obeys the same egress as the server's address.
		client := &http.Client{
			Transport:     roundTripper(func(r *http.Request) (*http.Response, error) { return c.Do(r, untrusted) }),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       10 * time.Second,
		}
		src = cc.TokenSource(context.WithValue(context.Background(), oauth2.HTTPClient, client))
		if t.sources == nil || len(t.sources) >= maxTokens {
			t.sources = make(map[[32]byte]oauth2.TokenSource)
		}
		t.sources[key] = src
	}
	t.mu.Unlock()

	type fetched struct {
		t   *oauth2.Token
		err error
	}
	ch := make(chan fetched, 1)
	go func() {
		tok, err := src.Token()
		ch <- fetched{tok, err}
	}()
	select {
	case <-ctx.Done():
		return "", &AuthError{What: "its authorization server did not give the gateway a token in time", Err: context.Cause(ctx)}
	case f := <-ch:
		if f.err == nil {
			return f.t.AccessToken, nil
		}
		// The body of a refusal may repeat what was sent to it.
		var refused *oauth2.RetrieveError
		if errors.As(f.err, &refused) {
			return "", &AuthError{What: fmt.Sprintf("its authorization server refused the gateway a token (HTTP %d)", refused.Response.StatusCode)}
		}
		return "", &AuthError{What: "its authorization server gave the gateway no token: " + Why(f.err), Err: f.err}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
