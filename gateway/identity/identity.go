package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
)

// DefaultUserHeader names users even where no key is configured to read it, so
// that a caller who sends it to the wrong key is refused and not mistaken for
// the key's own user.
const DefaultUserHeader = "X-Vance-User"

// Anonymous is the issuer of callers without a credential.
const Anonymous = "anonymous"

// KeyHeader carries an API key.
const KeyHeader = "X-Api-Key"

// maxSecret bounds a presented credential in bytes before it is looked at.
const maxSecret = 16 << 10

// Options configures an Authenticator.
type Options struct {
	Identity config.Identity
	// Loopback says that the client listener is bound to a loopback address;
	// nobody is anonymous elsewhere.
	Loopback bool
	// Client fetches the JWKS; nil takes one with bounds of its own.
	Client *http.Client
	Log    *slog.Logger
	// Previous is the Authenticator that this one replaces. Its fetched keys are
	// taken over where the identity provider is the same, so that a reload while
	// the provider is down locks nobody out.
	Previous *Authenticator
}

// Authenticator judges credentials. It is immutable and safe for concurrent use.
type Authenticator struct {
	anonymous   *config.Anonymous
	loopback    bool
	keys        []config.APIKey
	userHeaders []string
	tokens      *tokens
}

// New makes an Authenticator. Its refreshes of the JWKS end with ctx.
func New(ctx context.Context, opt Options) (*Authenticator, error) {
	a := &Authenticator{
		anonymous:   opt.Identity.Anonymous,
		loopback:    opt.Loopback,
		keys:        opt.Identity.APIKeys,
		userHeaders: []string{DefaultUserHeader},
	}
	for _, k := range a.keys {
		h := http.CanonicalHeaderKey(k.UserHeader)
		if h == "" || h == DefaultUserHeader {
			continue
		}
		a.userHeaders = append(a.userHeaders, h)
	}
	if j := opt.Identity.JWT; j != nil {
		if p := opt.Previous; p != nil && p.tokens != nil && reflect.DeepEqual(p.tokens.conf, *j) {
			a.tokens = p.tokens
			return a, nil
		}
		t, err := newTokens(ctx, *j, opt.Client, opt.Log)
		if err != nil {
			return nil, fmt.Errorf("identity.jwt: %w", err)
		}
		a.tokens = t
	}
	return a, nil
}

// Retire ends what a replaced Authenticator does in the background, except what
// next has taken over. Requests under way may still use it.
func (a *Authenticator) Retire(next *Authenticator) {
	if a.tokens != nil && (next == nil || next.tokens != a.tokens) {
		a.tokens.stop()
	}
}

// UserHeaders are the headers by which callers name users. They are for the
// gateway and go no further.
func (a *Authenticator) UserHeaders() []string { return a.userHeaders }

// Authenticate finds out who vouches for the request. Errors are *Error with
// status 401 or 403: a wrong credential is never taken for none.
func (a *Authenticator) Authenticate(r *http.Request) (*Credential, error) {
	p, err := presented(r.Header)
	if err != nil {
		return nil, err
	}
	var c *Credential
	switch {
	case p.secret == "":
		if c, err = a.nobody(r); err != nil {
			return nil, err
		}
	default:
		if c = a.Key(p.secret); c != nil {
			break
		}
		if a.tokens == nil || !p.bearer {
			return nil, unauthorized(InvalidToken, "the credential is not known here", nil)
		}
		if c, err = a.tokens.credential(r.Context(), p.secret); err != nil {
			return nil, unauthorized(InvalidToken, "the token is not accepted", err)
		}
	}
	if err := c.named(r.Header, a.userHeaders, p.user); err != nil {
		return nil, err
	}
	return c, nil
}

// Key judges an API key that came by another way than a header, such as a
// sign-in form. It returns nil for a secret that is no key.
func (a *Authenticator) Key(secret string) *Credential {
	if secret == "" || len(secret) > maxSecret {
		return nil
	}
	sum := sha256.Sum256([]byte(secret))
	found := -1
	// All keys are compared, whole, so that the time tells nothing of which
	// matched or how far.
	for i := range a.keys {
		if subtle.ConstantTimeCompare(sum[:], a.keys[i].SHA256[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return nil
	}
	k := a.keys[found]
	return &Credential{
		issuer:     "key:" + k.Name,
		tenants:    k.Tenants,
		user:       k.User,
		userHeader: http.CanonicalHeaderKey(k.UserHeader),
		keyName:    k.Name,
		roles:      k.Roles,
		onLost:     k.OnLost,
	}
}

// nobody answers for a request without a credential: the anonymous scope for
// programs on this machine, and a refusal for everybody else. The listener, the
// peer and the Host must all be loopback (a page in a browser reaches a
// loopback listener under a name of its own, and a proxy on this machine
// reaches it for strangers), and no proxy may have passed the request on.
func (a *Authenticator) nobody(r *http.Request) (*Credential, error) {
	if a.anonymous == nil {
		return nil, unauthorized("", "a credential is needed: an API key or a token", nil)
	}
	if !a.loopback || !loopbackLocal(r) || !loopback.Host(r.RemoteAddr) || !loopback.Host(r.Host) || Forwarded(r.Header) {
		return nil, unauthorized("", "a credential is needed: callers without one are taken on a loopback address of the gateway's own machine only, and not through a proxy", nil)
	}
	return &Credential{
		issuer:  Anonymous,
		tenants: map[string][]string{a.anonymous.Tenant: a.anonymous.Projects},
		user:    a.anonymous.User,
	}, nil
}

// presentation is the credential of a request as it was sent.
type presentation struct {
	secret string
	user   string // of Basic
	bearer bool   // came as Authorization: Bearer
}

// presented reads the credential out of the headers. Two that differ are
// refused: which of them counts must not be a guess.
func presented(h http.Header) (presentation, error) {
	var p presentation
	auths := h.Values("Authorization")
	if len(auths) > 1 {
		return p, unauthorized(InvalidToken, "the request has more than one Authorization header", nil)
	}
	if len(auths) == 1 {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(auths[0]), " ")
		rest = strings.TrimSpace(rest)
		switch {
		case strings.EqualFold(scheme, "Bearer") && rest != "":
			p.secret, p.bearer = rest, true
		case strings.EqualFold(scheme, "Basic"):
			raw, err := base64.StdEncoding.DecodeString(rest)
			user, password, ok := strings.Cut(string(raw), ":")
			if err != nil || !ok || password == "" {
				return p, unauthorized(InvalidToken, "the Basic credential is not readable or has no password", nil)
			}
			p.secret, p.user = password, user
		default:
			return p, unauthorized(InvalidToken, "the Authorization header is neither Bearer nor Basic", nil)
		}
	}
	keys := h.Values(KeyHeader)
	if len(keys) > 1 {
		return p, unauthorized(InvalidToken, "the request has more than one X-API-Key header", nil)
	}
	if len(keys) == 1 {
		key := strings.TrimSpace(keys[0])
		switch {
		case key == "":
			return p, unauthorized(InvalidToken, "the X-API-Key header is empty", nil)
		case p.secret == "":
			p.secret = key
		case subtle.ConstantTimeCompare([]byte(p.secret), []byte(key)) != 1:
			return p, unauthorized(InvalidToken, "the request has two different credentials", nil)
		}
	}
	if len(p.secret) > maxSecret {
		return p, unauthorized(InvalidToken, "the credential is too long", nil)
	}
	return p, nil
}
