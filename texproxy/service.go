package texproxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/credential"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

// kind is what a route means to a lease.
type kind string

// The kinds of requests; they are also what metrics call them.
const (
	kindSubmit kind = "submit"
	kindPoll   kind = "poll"
	kindResult kind = "result"
	kindCancel kind = "cancel"
	kindOther  kind = "other"
)

type route struct {
	tex.Route
	kind kind
	base *url.URL
	path *tex.Path
	fold *tex.Path // of the path in lower case
}

// service is a described service, ready for use.
type service struct {
	tex.Service
	base   *url.URL
	routes []*route // in the order in which they are tried
	poll   *route   // nil in sync mode
	cancel *route   // nil where the service has none
	auth   authorizer
}

func newService(c tex.Service) (*service, error) {
	c, err := c.Complete()
	if err != nil {
		return nil, err
	}
	s := &service{Service: c}
	if s.base, err = baseURL(c.Upstream); err != nil {
		return nil, err
	}
	if s.auth, err = newAuthorizer(c.Auth); err != nil {
		return nil, err
	}
	if s.poll, err = s.add(kindPoll, c.Poll); err != nil {
		return nil, err
	}
	if s.cancel, err = s.add(kindCancel, c.Cancel); err != nil {
		return nil, err
	}
	// A submit path may be as wide as /{action...}, so submits are tried last.
	for _, of := range []struct {
		kind   kind
		routes []tex.Route
	}{{kindResult, []tex.Route{c.Result}}, {kindOther, c.Other}, {kindSubmit, c.Submit}} {
		for _, r := range of.routes {
			if _, err := s.add(of.kind, r); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

func baseURL(text string) (*url.URL, error) { return url.Parse(strings.TrimRight(text, "/")) }

// add adds a route; nil where the service has none of the kind.
func (s *service) add(k kind, r tex.Route) (*route, error) {
	if r.Path == "" {
		return nil, nil
	}
	p, err := tex.ParsePath(r.Path)
	if err != nil {
		return nil, err
	}
	fold, err := tex.ParsePath(strings.ToLower(r.Path))
	if err != nil { // places that differ in case only
		fold = p
	}
	base := s.base
	if r.Upstream != "" {
		if base, err = baseURL(r.Upstream); err != nil {
			return nil, err
		}
	}
	added := &route{r, k, base, p, fold}
	s.routes = append(s.routes, added)
	return added, nil
}

// outcomes are those that jobs of the service can have.
func (s *service) outcomes() []string {
	if s.Mode != tex.Job {
		return nil
	}
	all := []string{string(outcomeCancelled), string(outcomeOverdue)}
	for _, r := range s.routes {
		for _, e := range r.Terminal {
			all = append(all, string(e.Outcome))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// authorizer puts a service's credential on a request. It is the gateway's own:
// abandoned jobs are polled when no caller is there to lend one.
type authorizer func(h http.Header)

func newAuthorizer(a credential.Auth) (authorizer, error) {
	switch a.Type {
	case "", credential.None:
		return func(http.Header) {}, nil
	case credential.Bearer:
		return func(h http.Header) { h.Set("Authorization", "Bearer "+a.Token) }, nil
	case credential.Basic:
		return func(h http.Header) {
			r := http.Request{Header: h}
			r.SetBasicAuth(a.User, a.Password)
		}, nil
	case credential.APIKey:
		if a.HeaderName == "" {
			return nil, &tex.WrongError{Key: "auth.headerName", What: "is missing"}
		}
		return func(h http.Header) { h.Set(a.HeaderName, a.Value) }, nil
	}
	return nil, &tex.WrongError{Key: "auth.type", What: fmt.Sprintf("%q is not bearer, basic, apiKey or none", a.Type)}
}

// match is a request's place in a service.
type match struct {
	route  *route
	path   string // cleaned, escaped: what goes upstream
	values map[string]string
	allow  []string // methods of the routes that the path alone has matched
}

// job returns the id of the job that the path names.
func (m match) job() string { return m.values["job"] }

// find matches a method and a still escaped path. ok is false where nothing
// may go upstream. Route is nil for what passes through unmatched.
func (s *service) find(method, escaped string) (m match, ok bool) {
	clean, ok := cleanPath(escaped)
	if !ok {
		return match{}, false
	}
	bare := clean
	if len(bare) > 1 {
		bare = strings.TrimSuffix(bare, "/")
	}
	found := match{path: bare}
	for _, r := range s.routes {
		values, ok := r.path.Match(bare)
		if !ok {
			continue
		}
		if !slices.Contains(r.Methods, method) {
			found.allow = append(found.allow, r.Methods...)
			continue
		}
		if !wellFormed(r.path, values) {
			return match{}, false
		}
		found.route, found.values, found.allow = r, values, nil
		return found, true
	}
	if len(found.allow) > 0 {
		slices.Sort(found.allow)
		found.allow = slices.Compact(found.allow)
		return found, false
	}
	if s.Unmatched != tex.PassThrough || strings.ContainsAny(clean, ";%") || s.foldsToRoute(bare) {
		// A path that another program may read as one of the routes (with
		// parameters, with escapes, in another case) does not pass.
		return match{}, false
	}
	found.path = clean
	return found, true
}

// foldsToRoute reports whether a path is one of a route for a program that does
// not tell cases apart.
func (s *service) foldsToRoute(path string) bool {
	path = strings.ToLower(path)
	return slices.ContainsFunc(s.routes, func(r *route) bool {
		_, ok := r.fold.Match(path)
		return ok
	})
}

func wellFormed(p *tex.Path, values map[string]string) bool {
	for name, v := range values {
		switch {
		case name == p.Rest():
			if len(v) > 2048 {
				return false
			}
		case name == "job":
			if !tex.ValidJob(v) {
				return false
			}
		case !tex.ValidName(v):
			return false
		}
	}
	return true
}

// below is the URL of a cleaned path below a base.
func below(base *url.URL, escaped, query string) *url.URL {
	u := *base
	full := base.EscapedPath() + escaped
	u.RawPath = full
	if plain, err := url.PathUnescape(full); err == nil {
		u.Path = plain
	} else {
		u.Path = full
	}
	u.RawQuery = query
	return &u
}

// baseOf is where a match's request goes.
func (s *service) baseOf(m match) *url.URL {
	if m.route == nil {
		return s.base
	}
	return m.route.base
}

func (r *route) accepts(status int) bool {
	return slices.Contains(r.Accepted, status) || (status >= 200 && status <= 299)
}

// owned are the keys of the things that a match names and one owner has.
func (s *service) owned(m match) []string {
	var keys []string
	for _, name := range s.Owned {
		if v := m.values[name]; v != "" {
			keys = append(keys, s.Name+"/"+name+"="+v)
		}
	}
	return keys
}

func (s *service) jobKey(id string) string { return s.Name + "/" + id }
