package config

import (
	"errors"
	"fmt"
	"net/textproto"
	"strings"
)

func (c *checker) tex() {
	names := map[string]bool{}
	for i := range c.g.Tex {
		s, key := &c.g.Tex[i], fmt.Sprintf("tex[%d]", i)
		c.name(key+".name", s.Name, false)
		if s.Name != "" && names[s.Name] {
			c.Complain(key+".name", "another service has this name")
		}
		names[s.Name] = true
		c.service(key, s)
	}
}

func (c *checker) service(key string, s *TexService) {
	c.texAuth(key+".auth", &s.Auth)
	if s.Upstream == "" {
		return // complained of already
	}
	whole, err := s.Complete()
	var wrong *TexError
	switch {
	case errors.As(err, &wrong):
		c.Complain(key+"."+wrong.Key, "%s", wrong.What)
	case err != nil:
		c.Complain(key, "%s", err.Error())
	default:
		*s = whole
	}
}

func (c *checker) texAuth(key string, a *Auth) {
	switch a.Type {
	case "oauth2":
		c.Complain(key+".type", "TeX services take bearer, basic, apiKey and none; get a static key for the gateway")
		return
	case "forward":
		c.Complain(key+".type", "the gateway polls abandoned jobs with its own key, so a caller's credential is not forwarded to a TeX service; use bearer, basic, apiKey or none")
		return
	}
	for _, p := range a.Check() {
		c.Complain(key+"."+p.Key, "%s", p.What)
	}
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
	case "bearer":
		want("token", a.Token, "auth of type bearer needs its token")
	case "basic":
		want("user", a.User, "auth of type basic needs its user")
		want("password", a.Password, "auth of type basic needs its password")
		if strings.Contains(a.User, ":") && !strings.Contains(a.User, "{{") { // {{secret:name}} is looked at when it is resolved
			out = append(out, Wrong{"user", "the user of basic auth must not hold a colon"})
		}
	case "apiKey":
		want("headerName", a.HeaderName, "auth of type apiKey needs the name of its header")
		want("value", a.Value, "auth of type apiKey needs its value")
		if h := textproto.CanonicalMIMEHeaderKey(a.HeaderName); h != "X-Api-Key" && h != "Authorization" && h != "" {
			if what := headerName(a.HeaderName, "X-API-Key"); what != "" {
				out = append(out, Wrong{"headerName", what})
			}
		}
	case "oauth2":
		want("tokenURL", a.TokenURL, "auth of type oauth2 needs its tokenURL")
		want("clientID", a.ClientID, "auth of type oauth2 needs its clientID")
		want("clientSecret", a.ClientSecret, "auth of type oauth2 needs its clientSecret")
		if a.TokenURL != "" {
			if _, what := httpURL(a.TokenURL, true); what != "" {
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
