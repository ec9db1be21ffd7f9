package identity_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
)

// provider is an identity provider with one key at a time.
type provider struct {
	*httptest.Server
	mu      sync.Mutex
	key     *ecdsa.PrivateKey
	kid     string
	fetched atomic.Int64
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{}
	p.rotate(t, "k1")
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.fetched.Add(1)
		p.mu.Lock()
		defer p.mu.Unlock()
		raw, err := p.key.PublicKey.Bytes() // 0x04, x, y
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]any{
			"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": p.kid,
			"x": base64.RawURLEncoding.EncodeToString(raw[1:33]), "y": base64.RawURLEncoding.EncodeToString(raw[33:]),
		}}})
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) rotate(t *testing.T, kid string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.key, p.kid = key, kid
	p.mu.Unlock()
}

func (p *provider) conf() config.Identity {
	return config.Identity{JWT: &config.JWT{Issuer: "https://id.example", Audience: "gateway", JWKSURL: p.URL,
		Claims: config.Claims{Tenant: "tenant", Projects: "projects", User: "sub", Roles: "realm.roles"}}}
}

func claims(change func(jwt.MapClaims)) jwt.MapClaims {
	c := jwt.MapClaims{"iss": "https://id.example", "aud": "gateway", "exp": time.Now().Add(time.Hour).Unix(),
		"tenant": "acme", "projects": []string{"thesis"}, "sub": "auth0|u42", "realm": map[string]any{"roles": []string{"tenantAdmin"}}}
	if change != nil {
		change(c)
	}
	return c
}

func (p *provider) sign(t *testing.T, c jwt.MapClaims) string {
	t.Helper()
	tok := jwt.NewWithClaims(jwt.SigningMethodES256, c)
	tok.Header["kid"] = p.kid
	s, err := tok.SignedString(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestACallersTimeIsItsTokens(t *testing.T) {
	p := newProvider(t)
	id := p.conf()
	id.APIKeys = []config.APIKey{{Name: "brain", SHA256: sha256.Sum256([]byte("brain-secret")), Tenants: map[string][]string{"acme": {"*"}}}}
	a := authenticator(t, identity.Options{Identity: id})
	until := time.Now().Add(time.Hour).Truncate(time.Second)
	for secret, want := range map[string]time.Time{
		p.sign(t, claims(func(c jwt.MapClaims) { c["exp"] = until.Unix() })): until.Add(30 * time.Second), // clocks differ
		"brain-secret": {},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		cred, err := a.Authenticate(r)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := cred.Caller("acme", "thesis", ""); err != nil || !c.Expires.Equal(want) {
			t.Errorf("%v, want %v: %v", c.Expires, want, err)
		}
	}
}

func TestTokens(t *testing.T) {
	p := newProvider(t)
	a := authenticator(t, identity.Options{Identity: p.conf()})
	for _, c := range []struct {
		name   string
		change func(jwt.MapClaims)
		status int
		user   string
		admin  bool
	}{
		{name: "a token opens what its claims say", user: "auth0|u42", admin: true},
		{name: "an audience among others counts", change: func(c jwt.MapClaims) { c["aud"] = []string{"x", "gateway"} }, user: "auth0|u42", admin: true},
		{name: "projects may be words of one text", change: func(c jwt.MapClaims) { c["projects"] = "other thesis" }, user: "auth0|u42", admin: true},
		{name: "a star opens every project", change: func(c jwt.MapClaims) { c["projects"] = "*" }, user: "auth0|u42", admin: true},
		{name: "no user is nobody", change: func(c jwt.MapClaims) { delete(c, "sub") }, admin: true},
		{name: "no roles are none", change: func(c jwt.MapClaims) { delete(c, "realm") }, user: "auth0|u42"},
		{name: "no projects open nothing", change: func(c jwt.MapClaims) { delete(c, "projects") }, status: 403},
		{name: "no tenant opens nothing", change: func(c jwt.MapClaims) { delete(c, "tenant") }, status: 403},
		{name: "a star for a tenant opens nothing", change: func(c jwt.MapClaims) { c["tenant"] = "*" }, status: 403},
		{name: "projects of another form open nothing", change: func(c jwt.MapClaims) { c["projects"] = []any{"thesis", 7} }, status: 403},
		{name: "a user that is no text is refused", change: func(c jwt.MapClaims) { c["sub"] = 7 }, status: 401},
		{name: "a user with a line break is refused", change: func(c jwt.MapClaims) { c["sub"] = "a\nb" }, status: 401},
		{name: "no expiry is refused", change: func(c jwt.MapClaims) { delete(c, "exp") }, status: 401},
		{name: "an expired token is refused", change: func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Hour).Unix() }, status: 401},
		{name: "a token of tomorrow is refused", change: func(c jwt.MapClaims) { c["nbf"] = time.Now().Add(time.Hour).Unix() }, status: 401},
		{name: "another issuer is refused", change: func(c jwt.MapClaims) { c["iss"] = "https://evil.example" }, status: 401},
		{name: "another audience is refused", change: func(c jwt.MapClaims) { c["aud"] = "billing" }, status: 401},
		{name: "no audience is refused", change: func(c jwt.MapClaims) { delete(c, "aud") }, status: 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := p.sign(t, claims(c.change))
			cred, err := a.Authenticate(request(t, "Authorization: Bearer "+raw))
			if err != nil {
				if status(err) != c.status {
					t.Fatalf("%v, want status %d", err, c.status)
				}
				return
			}
			caller, err := cred.Caller("acme", "thesis", "")
			if status(err) != c.status {
				t.Fatalf("%v, want status %d", err, c.status)
			}
			if err != nil {
				return
			}
			if caller.User != c.user || caller.Issuer != "jwt:https://id.example" || caller.Authorization.Reveal() != "Bearer "+raw {
				t.Errorf("caller %+v", caller.Principal)
			}
			if cred.TenantAdmin("acme") != c.admin || cred.TenantAdmin("globex") || cred.Operator() {
				t.Error("roles are not the token's")
			}
		})
	}
	t.Run("a token as an API key is refused", func(t *testing.T) {
		if _, err := a.Authenticate(request(t, "X-API-Key: "+p.sign(t, claims(nil)))); status(err) != 401 {
			t.Error(err)
		}
	})
	t.Run("a token that names a user besides its own is refused", func(t *testing.T) {
		if _, err := a.Authenticate(request(t, "Authorization: Bearer "+p.sign(t, claims(nil)), "X-Vance-User: root")); status(err) != 403 {
			t.Error(err)
		}
	})
	t.Run("the public key is no secret of a symmetric token", func(t *testing.T) {
		der, err := x509.MarshalPKIXPublicKey(&p.key.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		tok := jwt.NewWithClaims(jwt.SigningMethodHS256, claims(nil))
		tok.Header["kid"] = p.kid
		raw, err := tok.SignedString(der)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Authenticate(request(t, "Authorization: Bearer "+raw)); status(err) != 401 {
			t.Error(err)
		}
	})
	t.Run("an unsigned token is refused", func(t *testing.T) {
		raw, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims(nil)).SignedString(jwt.UnsafeAllowNoneSignatureType)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Authenticate(request(t, "Authorization: Bearer "+raw)); status(err) != 401 {
			t.Error(err)
		}
	})
}

func TestKeyRotation(t *testing.T) {
	p := newProvider(t)
	a := authenticator(t, identity.Options{Identity: p.conf()})
	stranger := newProvider(t)
	stranger.rotate(t, "invented")

	p.rotate(t, "k2")
	if _, err := a.Authenticate(request(t, "Authorization: Bearer "+p.sign(t, claims(nil)))); err != nil {
		t.Fatalf("a token by the provider's new key: %v", err)
	}
	before := p.fetched.Load()
	for range 5 {
		if _, err := a.Authenticate(request(t, "Authorization: Bearer "+stranger.sign(t, claims(nil)))); status(err) != 401 {
			t.Fatalf("a token by a stranger's key: %v", err)
		}
	}
	if n := p.fetched.Load() - before; n != 0 {
		t.Errorf("invented key ids asked the provider %d times within the limit of one per half minute", n)
	}
}

func TestReloadKeepsKeys(t *testing.T) {
	p := newProvider(t)
	a := authenticator(t, identity.Options{Identity: p.conf()})
	raw := p.sign(t, claims(nil))
	p.Close()
	next := p.conf()
	next.Anonymous = &config.Anonymous{Tenant: "dev"}
	b := authenticator(t, identity.Options{Identity: next, Previous: a})
	a.Retire(b)
	if _, err := b.Authenticate(request(t, "Authorization: Bearer "+raw)); err != nil {
		t.Errorf("after a reload while the provider is down: %v", err)
	}
}

func TestProviderIsBounded(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
			return
		}
		t.Error("a redirect was followed")
	}))
	defer srv.Close()
	conf := (&provider{Server: srv}).conf()
	authenticator(t, identity.Options{Identity: conf}) // starts all the same
	conf.JWT.Audience = ""
	if _, err := identity.New(t.Context(), identity.Options{Identity: conf}); err == nil {
		t.Error("a provider without an audience was taken")
	}
}
