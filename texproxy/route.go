package texproxy

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config"
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
	config.TexRoute
	kind kind
	path *config.TexPath
	fold *config.TexPath // of the path in lower case
}

// service is a described service, ready for use.
type service struct {
	config.TexService
	base   *url.URL
	routes []route // in the order in which they are tried
	poll   *route  // nil in sync mode
	cancel *route  // nil where the service has none
	auth   authorizer
}

func newService(c config.TexService) (*service, error) {
	c, err := c.Complete()
	if err != nil {
		return nil, err
	}
	s := &service{TexService: c}
	if s.base, err = url.Parse(strings.TrimRight(c.Upstream, "/")); err != nil {
		return nil, err
	}
	if s.auth, err = newAuthorizer(c.Auth); err != nil {
		return nil, err
	}
	add := func(k kind, r config.TexRoute) (*route, error) {
		if r.Path == "" {
			return nil, nil
		}
		p, err := config.ParseTexPath(r.Path)
		if err != nil {
			return nil, err
		}
		fold, err := config.ParseTexPath(strings.ToLower(r.Path))
		if err != nil { // places that differ in case only
			fold = p
		}
		s.routes = append(s.routes, route{r, k, p, fold})
		return &route{r, k, p, fold}, nil
	}
	// A submit path may be as wide as /{action...}, so it is tried last.
	if s.poll, err = add(kindPoll, c.Poll); err != nil {
		return nil, err
	}
	if s.cancel, err = add(kindCancel, c.Cancel); err != nil {
		return nil, err
	}
	if _, err = add(kindResult, c.Result); err != nil {
		return nil, err
	}
	for _, r := range c.Other {
		if _, err = add(kindOther, r); err != nil {
			return nil, err
		}
	}
	_, err = add(kindSubmit, c.Submit)
	return s, err
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
	for i := range s.routes {
		r := &s.routes[i]
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
	if s.Unmatched != "passThrough" || strings.ContainsAny(clean, ";%") || s.foldsToRoute(bare) {
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
	return slices.ContainsFunc(s.routes, func(r route) bool {
		_, ok := r.fold.Match(path)
		return ok
	})
}

func wellFormed(p *config.TexPath, values map[string]string) bool {
	for name, v := range values {
		switch {
		case name == p.Rest():
			if len(v) > 2048 {
				return false
			}
		case name == "job":
			if !validJob(p, v) {
				return false
			}
		case !config.ValidTexName(v):
			return false
		}
	}
	return true
}

// validJob takes one segment strictly and the parts of a longer id as names.
func validJob(p *config.TexPath, id string) bool {
	if !strings.Contains(id, "/") {
		return config.ValidTexJob(id)
	}
	for part := range strings.SplitSeq(id, "/") {
		if !config.ValidTexName(part) {
			return false
		}
	}
	return strings.Contains(p.String(), "{job:")
}

// maxPath is the longest path, in bytes, before and after it is cleaned.
const maxPath = 8 << 10

// cleanPath resolves dots and doubled slashes of an escaped path and undoes the
// escapes of characters that need none, so that one resource has one path. What
// could be read as another path further on is refused: an escaped slash,
// backslash, percent sign or control character.
func cleanPath(escaped string) (string, bool) {
	if escaped == "" {
		escaped = "/"
	}
	if escaped[0] != '/' || len(escaped) > maxPath {
		return "", false
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		c := escaped[i]
		if c <= ' ' || c == 0x7f || c == '\\' || c == '?' || c == '#' || c >= 0x80 {
			return "", false
		}
		if c != '%' {
			if plainPath(c) {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "%%%02X", c)
			}
			continue
		}
		if i+2 >= len(escaped) {
			return "", false
		}
		hi, lo := unhex(escaped[i+1]), unhex(escaped[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		i += 2
		switch d := byte(hi<<4 | lo); {
		case d == '/' || d == '\\' || d == '%' || d < ' ' || d == 0x7f:
			return "", false
		case unreserved(d):
			b.WriteByte(d)
		default:
			b.WriteByte('%')
			b.WriteString(strings.ToUpper(escaped[i-1 : i+1]))
		}
	}
	plain := b.String()
	if len(plain) > maxPath { // what was not escaped has become longer
		return "", false
	}
	clean := path.Clean(plain)
	if strings.HasSuffix(plain, "/") && clean != "/" {
		clean += "/"
	}
	for segment := range strings.SplitSeq(plain, "/") {
		if segment == ".." {
			return "", false // nothing honest climbs
		}
	}
	return clean, true
}

// unreserved characters mean the same with and without an escape (RFC 3986 §2.3).
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// plainPath reports whether a path may hold c without an escape.
func plainPath(c byte) bool { return unreserved(c) || strings.IndexByte("/!$&'()*+,;=:@", c) >= 0 }

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// url is the upstream's URL of a cleaned path.
func (s *service) url(escaped, query string) *url.URL {
	u := *s.base
	full := s.base.EscapedPath() + escaped
	u.RawPath = full
	if plain, err := url.PathUnescape(full); err == nil {
		u.Path = plain
	} else {
		u.Path = full
	}
	u.RawQuery = query
	return &u
}

func (s *service) accepts(status int) bool {
	return slices.Contains(s.Submit.Accepted, status) || (status >= 200 && status <= 299)
}

// owned returns the key of the thing that a match names and one owner has.
func (s *service) owned(m match) (string, bool) {
	for _, name := range s.Owned {
		if v := m.values[name]; v != "" {
			return s.Name + "/" + name + "=" + v, true
		}
	}
	return "", false
}

func (s *service) jobKey(id string) string { return s.Name + "/" + id }

func methodNotAllowed(w http.ResponseWriter, allow []string) {
	w.Header().Set("Allow", strings.Join(allow, ", "))
	writeError(w, http.StatusMethodNotAllowed, "this path does not take the method; it takes "+strings.Join(allow, ", "), nil)
}
