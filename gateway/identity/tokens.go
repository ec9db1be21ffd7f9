package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

const (
	jwksTimeout = 5 * time.Second
	jwksRefresh = 15 * time.Minute
	// jwksUnknown is how often an unknown key id may ask the provider again:
	// anybody can invent key ids.
	jwksUnknown = 30 * time.Second
	maxClaim    = 256 // bytes of a user
	clockLeeway = 30 * time.Second
)

// methods are the asymmetric algorithms. With a symmetric one the provider's
// public key would be the secret.
var methods = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// tokens judges the tokens of one identity provider.
type tokens struct {
	conf   config.JWT
	keys   keyfunc.Keyfunc
	parser *jwt.Parser
	stop   context.CancelFunc // ends the refreshes
}

func newTokens(ctx context.Context, conf config.JWT, client *http.Client, log *slog.Logger) (*tokens, error) {
	if conf.Issuer == "" || conf.Audience == "" || conf.JWKSURL == "" {
		return nil, errors.New("issuer, audience and jwksURL are all needed")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(ctx)
	keys, err := keyfunc.NewDefaultOverrideCtx(ctx, []string{conf.JWKSURL}, keyfunc.Override{
		Client:           jwksClient(client, log),
		HTTPTimeout:      jwksTimeout,
		RateLimitWaitMax: jwksTimeout,
		RefreshInterval:  jwksRefresh,
		RefreshErrorHandlerFunc: func(u string) func(context.Context, error) {
			return func(ctx context.Context, err error) {
				log.LogAttrs(ctx, slog.LevelWarn, "the identity provider's keys could not be fetched; the ones known go on counting",
					slog.String("url", u), slog.Any("err", err))
			}
		},
		RefreshUnknownKID: rate.NewLimiter(rate.Every(jwksUnknown), 1),
	})
	if err != nil {
		stop()
		return nil, err
	}
	return &tokens{conf: conf, keys: keys, stop: stop, parser: jwt.NewParser(
		jwt.WithValidMethods(methods),
		jwt.WithIssuer(conf.Issuer),
		jwt.WithAudience(conf.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithLeeway(clockLeeway),
	)}, nil
}

// credential judges a token. A claim that is absent or has another form than it
// should grants nothing.
func (t *tokens) credential(ctx context.Context, raw string) (*Credential, error) {
	claims := jwt.MapClaims{}
	if _, err := t.parser.ParseWithClaims(raw, claims, t.keys.KeyfuncCtx(ctx)); err != nil {
		return nil, err
	}
	c := &Credential{
		issuer:     "jwt:" + t.conf.Issuer,
		authorized: principal.Secret("Bearer " + raw),
		token:      true,
		roles:      words(claim(claims, t.conf.Claims.Roles)),
	}
	if at, err := claims.GetExpirationTime(); err == nil && at != nil { // the parser demands one
		c.expires = at.Add(clockLeeway)
	}
	if tenant, ok := claim(claims, t.conf.Claims.Tenant).(string); ok && principal.ValidName(tenant) {
		c.tenants = map[string][]string{tenant: words(claim(claims, t.conf.Claims.Projects))}
	}
	switch user := claim(claims, t.conf.Claims.User).(type) {
	case nil:
	case string:
		if !claimedUser(user) {
			return nil, fmt.Errorf("the claim %s is no user", t.conf.Claims.User)
		}
		c.user = user
	default:
		return nil, fmt.Errorf("the claim %s is not a text", t.conf.Claims.User)
	}
	return c, nil
}

// claim looks a claim up by its name, or by a path of names with dots, as some
// providers nest roles.
func claim(claims map[string]any, name string) any {
	if name == "" {
		return nil
	}
	if v, ok := claims[name]; ok {
		return v
	}
	head, rest, nested := strings.Cut(name, ".")
	if !nested {
		return nil
	}
	inner, ok := claims[head].(map[string]any)
	if !ok {
		return nil
	}
	return claim(inner, rest)
}

// words reads a list of names: an array of texts, or one text with spaces as
// in OAuth scopes.
func words(v any) []string {
	switch v := v.(type) {
	case string:
		return strings.Fields(v)
	case []any:
		out := make([]string, 0, len(v))
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil
			}
			out = append(out, s)
		}
		return out
	}
	return nil
}

// claimedUser reports whether a provider's user may be one here: providers have
// forms of their own ("auth0|5f7c"), and a counter's scope encodes what it needs.
func claimedUser(s string) bool {
	return s != "" && len(s) <= maxClaim && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// jwksClient follows a provider nowhere and takes the odd keys out of its sets.
func jwksClient(client *http.Client, log *slog.Logger) *http.Client {
	c := http.Client{Timeout: jwksTimeout}
	if client != nil {
		c = *client
	}
	next := c.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	c.Transport = &keySets{next: next, log: log}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}
