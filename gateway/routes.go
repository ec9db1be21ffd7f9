package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

// kind is what a path of the client listener leads to.
type kind string

const (
	kindNone     kind = ""
	kindMCP      kind = "mcp"
	kindTex      kind = "tex"
	kindTenant   kind = "admin"    // /brain/{tenant}/admin/leases…
	kindInsights kind = "insights" // /insights/{tenant}/leases…
	kindMetadata kind = "metadata" // OAuth protected resource metadata
)

// route is a parsed path. Its names have the forms of names; kindNone is a path
// that leads nowhere.
type route struct {
	kind    kind
	tenant  string
	project string
	user    string // of the @ segment
	name    string // server or service
	rest    string // of a TeX service: the still escaped path behind it; of an MCP server "" or "/"
}

// metadataPrefix is where RFC 9728 puts a resource's metadata: the well-known
// path in front of the resource's own.
const metadataPrefix = "/.well-known/oauth-protected-resource"

// parseRoute reads the path of u as it was sent: segment by segment, each
// decoded for itself. An encoded slash stays within its segment, and there is no
// cleaning that would let "a/../b" pass for "b".
func parseRoute(u *url.URL) route {
	path := u.EscapedPath()
	if rest, ok := strings.CutPrefix(path, metadataPrefix); ok {
		r := parseSegments(rest)
		if r.kind != kindMCP {
			return route{}
		}
		r.kind = kindMetadata
		return r
	}
	return parseSegments(path)
}

func parseSegments(path string) route {
	first, rest, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || path == "" || path[0] != '/' {
		return route{}
	}
	switch first {
	case "mcp":
		r, rest, ok := scoped(rest)
		if !ok || rest != "" && rest != "/" {
			return route{}
		}
		r.kind, r.rest = kindMCP, rest
		return r
	case "tex":
		r, rest, ok := scoped(rest)
		if !ok {
			return route{}
		}
		r.kind = kindTex
		r.rest = rest
		if rest == "" {
			r.rest = "/"
		}
		return r
	case "brain", "insights":
		tenant, rest, _ := strings.Cut(rest, "/")
		name, ok := decode(tenant)
		if !ok || !principal.ValidName(name) {
			return route{}
		}
		want, k := "leases", kindInsights
		if first == "brain" {
			want, k = "admin/leases", kindTenant
		}
		if rest != want && !strings.HasPrefix(rest, want+"/") || !straight(rest) {
			return route{}
		}
		return route{kind: k, tenant: name}
	}
	return route{}
}

// straight reports whether path has neither dot segments nor empty ones. The
// handlers behind the routes have a ServeMux, which would send whoever asks with
// such a path to a cleaned one before anybody has judged a credential.
func straight(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		switch name, _ := decode(segment); name {
		case "", ".", "..":
			return false
		}
	}
	return true
}

// scoped reads {tenant}/{project}/[@{user}/]{name} and returns what follows,
// with its leading slash.
func scoped(path string) (r route, rest string, ok bool) {
	next := func() (string, bool) {
		s, tail, more := strings.Cut(path, "/")
		path, rest = tail, ""
		if more {
			rest = "/" + tail
		}
		return decode(s)
	}
	for _, dst := range []*string{&r.tenant, &r.project, &r.name} {
		s, ok := next()
		if !ok {
			return route{}, "", false
		}
		if user, named := strings.CutPrefix(s, "@"); named && dst == &r.name {
			// The user's form is judged with the credential: 403, not 404.
			if s, ok = next(); !ok || user == "" {
				return route{}, "", false
			}
			r.user = user
		}
		if !principal.ValidName(s) {
			return route{}, "", false
		}
		*dst = s
	}
	return r, rest, true
}

func decode(segment string) (string, bool) {
	if !strings.Contains(segment, "%") {
		return segment, true
	}
	s, err := url.PathUnescape(segment)
	return s, err == nil
}

// methods are what a kind of route takes; nil leaves the judgement to the
// handler behind it.
func (k kind) methods() []string {
	switch k {
	case kindMCP:
		return []string{http.MethodGet, http.MethodPost, http.MethodDelete}
	case kindMetadata:
		return []string{http.MethodGet, http.MethodHead}
	}
	return nil
}

func (k kind) takes(method string) bool {
	m := k.methods()
	return m == nil || slices.Contains(m, method)
}
