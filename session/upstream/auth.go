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
	"github.com/vancetope/mcp-lease-gateway/config/credential"
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
	case "", credential.None:
	case credential.Bearer:
		h["Authorization"] = []string{"Bearer " + a.Token}
	case credential.Basic:
		h["Authorization"] = []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(a.User+":"+a.Password))}
	case credential.APIKey:
		h[http.CanonicalHeaderKey(a.HeaderName)] = []string{a.Value}
	case credential.Forward:
		if caller != "" {
			h["Authorization"] = []string{caller}
		}
	case credential.OAuth2:
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
	if a.Type == credential.OAuth2 {
		c.tokens.forget(tokenKey(a, untrusted))
	}
}

const (
	// maxTokens bounds the credentials whose access tokens are kept; one more
	// empties the store.
	maxTokens = 4096
	// fetchTimeout is the longest that an authorization server is waited for.
	fetchTimeout = 10 * time.Second
	// failureKept is how long a failure answers further requests, so that a server
	// that is broken or hangs is not asked once for each of them.
	failureKept = 5 * time.Second
)

// tokens keeps access tokens per client and scope until they expire.
type tokens struct {
	mu      sync.Mutex
	sources map[[32]byte]*tokenSource
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
		src = newTokenSource(c, a, untrusted)
		if t.sources == nil || len(t.sources) >= maxTokens {
			t.sources = make(map[[32]byte]*tokenSource)
		}
		t.sources[key] = src
	}
	t.mu.Unlock()
	return src.token(ctx)
}

// tokenSource has the access tokens of one credential. However many requests wait
// for one, there is one fetch at a time, and it ends by itself: requests that go
// away leave nothing behind.
type tokenSource struct {
	fetch func(ctx context.Context) (*oauth2.Token, error)

	mu   sync.Mutex
	last *fetch // the one under way, or the one that has ended last
}

// fetch is one request to the authorization server.
type fetch struct {
	done  chan struct{} // closed when the rest is set
	token *oauth2.Token
	err   error
	at    time.Time
}

func newTokenSource(c *Client, a config.Auth, untrusted bool) *tokenSource {
	cc := clientcredentials.Config{ClientID: a.ClientID, ClientSecret: a.ClientSecret, TokenURL: a.TokenURL, Scopes: a.Scopes}
	if a.Audience != "" {
		cc.EndpointParams = url.Values{"audience": {a.Audience}}
	}
	// Its own client obeys the same egress as the server's address.
	client := &http.Client{
		Transport:     roundTripper(func(r *http.Request) (*http.Response, error) { return c.Do(r, untrusted) }),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &tokenSource{fetch: func(ctx context.Context) (*oauth2.Token, error) {
		return cc.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	}}
}

// current is the fetch whose result a request takes, one under way included; it
// begins one where the last result does not count any more.
func (s *tokenSource) current() *fetch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && s.last.counts() {
		return s.last
	}
	f := &fetch{done: make(chan struct{})}
	s.last = f
	go func() {
		// It outlives the request that began it: others wait for it too.
		ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
		defer cancel()
		f.token, f.err = s.fetch(ctx)
		f.at = time.Now()
		close(f.done)
	}()
	return f
}

// counts reports whether the result of a fetch answers a request now.
func (f *fetch) counts() bool {
	select {
	case <-f.done:
		return f.err == nil && f.token.Valid() || f.err != nil && time.Since(f.at) < failureKept
	default:
		return true // under way
	}
}

func (s *tokenSource) token(ctx context.Context) (string, error) {
	f := s.current()
	select {
	case <-ctx.Done():
		return "", &AuthError{What: "its authorization server did not give the gateway a token in time", Err: context.Cause(ctx)}
	case <-f.done:
	}
	if f.err == nil {
		return f.token.AccessToken, nil
	}
	// The body of a refusal may repeat what was sent to it.
	var refused *oauth2.RetrieveError
	if errors.As(f.err, &refused) {
		return "", &AuthError{What: fmt.Sprintf("its authorization server refused the gateway a token (HTTP %d)", refused.Response.StatusCode)}
	}
	return "", &AuthError{What: "its authorization server gave the gateway no token: " + Why(f.err), Err: f.err}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
