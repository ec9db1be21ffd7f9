package credential

import (
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/internal/headers"
)

// AuthType is how a credential is sent.
type AuthType string

// The types; the zero AuthType is None.
const (
	None    AuthType = "none"
	Bearer  AuthType = "bearer"
	Basic   AuthType = "basic"
	APIKey  AuthType = "apiKey"
	OAuth2  AuthType = "oauth2"  // client credentials
	Forward AuthType = "forward" // the caller's own
)

// Auth is a credential for an upstream.
type Auth struct {
	// bearer{token} | basic{user,password} | apiKey{headerName,value} |
	// oauth2{tokenURL,clientID,clientSecret,scopes,audience} | forward | none.
	// Server documents take all of them, TeX services bearer, basic, apiKey and
	// none.
	Type AuthType `yaml:"type" default:"none" enum:"bearer,basic,apiKey,oauth2,forward,none"`
	// bearer: what stands behind "Bearer " in Authorization.
	Token string `yaml:"token" secret:"true"`
	// basic: the user.
	User string `yaml:"user"`
	// basic: the password.
	Password string `yaml:"password" secret:"true"`
	// apiKey: the header that carries the key.
	HeaderName string `yaml:"headerName"`
	// apiKey: the key.
	Value string `yaml:"value" secret:"true"`
	// oauth2: where tokens are had by client credentials.
	TokenURL string `yaml:"tokenURL"`
	// oauth2: the client.
	ClientID string `yaml:"clientID"`
	// oauth2: its secret.
	ClientSecret string `yaml:"clientSecret" secret:"true"`
	// oauth2: scopes to ask for.
	Scopes []string `yaml:"scopes"`
	// oauth2: audience to ask for, where the provider wants one.
	Audience string `yaml:"audience"`
}

// Wrong is something that is wrong with one key of an Auth.
type Wrong struct{ Key, What string }

// Check says what is wrong with a. What it says never quotes a value.
func (a *Auth) Check() []Wrong {
	var out []Wrong
	want := func(key, value, what string) {
		if value == "" {
			out = append(out, Wrong{key, what})
		}
	}
	switch a.Type {
	case Bearer:
		want("token", a.Token, "auth of type bearer needs its token")
	case Basic:
		want("user", a.User, "auth of type basic needs its user")
		want("password", a.Password, "auth of type basic needs its password")
		if strings.Contains(a.User, ":") && !strings.Contains(a.User, "{{") { // {{secret:name}} is looked at when it is resolved
			out = append(out, Wrong{"user", "the user of basic auth must not hold a colon"})
		}
	case APIKey:
		want("headerName", a.HeaderName, "auth of type apiKey needs the name of its header")
		want("value", a.Value, "auth of type apiKey needs its value")
		if h := textproto.CanonicalMIMEHeaderKey(a.HeaderName); h != "X-Api-Key" && h != "Authorization" && h != "" {
			if what := HeaderName(a.HeaderName, "X-API-Key"); what != "" {
				out = append(out, Wrong{"headerName", what})
			}
		}
	case OAuth2:
		want("tokenURL", a.TokenURL, "auth of type oauth2 needs its tokenURL")
		want("clientID", a.ClientID, "auth of type oauth2 needs its clientID")
		want("clientSecret", a.ClientSecret, "auth of type oauth2 needs its clientSecret")
		if a.TokenURL != "" {
			if _, what := URL(a.TokenURL, true); what != "" {
				out = append(out, Wrong{"tokenURL", what})
			}
		}
	}
	for _, f := range []struct{ key, value string }{{"token", a.Token}, {"value", a.Value}} {
		if strings.ContainsAny(f.value, "\r\n\x00") {
			out = append(out, Wrong{f.key, "it goes into a header and must not hold a line break"})
		}
	}
	return out
}

// URL checks an absolute URL of ours or of an upstream. What never quotes it.
func URL(s string, query bool) (u *url.URL, what string) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return nil, "an absolute URL is wanted, such as http://host:8000"
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "the URL must begin with http:// or https://"
	case u.User != nil:
		return nil, "the URL must not hold a user or password; use auth"
	case u.Fragment != "" || strings.HasSuffix(s, "#"):
		return nil, "the URL must not hold a fragment (#…)"
	case !query && (u.RawQuery != "" || u.ForceQuery):
		return nil, "the URL must not hold a query (?…)"
	}
	return u, ""
}

var tokenForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")

// Headers that carry something else than a user or a key of an upstream.
var reservedHeaders = []string{"Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Cookie",
	"Expect", "Forwarded", "Host", "Keep-Alive", "Last-Event-Id", "Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version",
	"Mcp-Session-Id", "Origin", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "X-Api-Key", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
	headers.InternalToken}

// HeaderName says what is wrong with the name of a header that carries a user or
// a key; such is one that would do.
func HeaderName(h, such string) string {
	if !tokenForm.MatchString(h) {
		return "this is not a header name"
	}
	if slices.Contains(reservedHeaders, textproto.CanonicalMIMEHeaderKey(h)) {
		return "the header " + h + " has another meaning; choose another one, such as " + such
	}
	return ""
}
