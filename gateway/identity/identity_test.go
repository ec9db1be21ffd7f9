package identity_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

func keys() config.Identity {
	return config.Identity{APIKeys: []config.APIKey{
		{Name: "brain", SHA256: sha256.Sum256([]byte("brain-secret")), Tenants: map[string][]string{"*": {"*"}}, UserHeader: "X-Vance-User", OnLost: "reopen"},
		{Name: "writer", SHA256: sha256.Sum256([]byte("writer-secret")), Tenants: map[string][]string{"acme": {"thesis"}}, User: "u42"},
		{Name: "ops", SHA256: sha256.Sum256([]byte("ops-secret")), Roles: []string{"operator"}},
		{Name: "admin", SHA256: sha256.Sum256([]byte("admin-secret")), Tenants: map[string][]string{"acme": {"*"}}, Roles: []string{"tenantAdmin"}},
		{Name: "half", SHA256: sha256.Sum256([]byte("half-secret")), Tenants: map[string][]string{"acme": {"thesis"}}, Roles: []string{"tenantAdmin"}},
		{Name: "system", SHA256: sha256.Sum256([]byte("system-secret")), Tenants: map[string][]string{"_vance": {"_tenant"}, "acme": {"*"}}},
		{Name: "other", SHA256: sha256.Sum256([]byte("other-secret")), Tenants: map[string][]string{"*": {"*"}, "acme": {"thesis"}}, UserHeader: "X-On-Behalf-Of"},
	}}
}

func authenticator(t *testing.T, opt identity.Options) *identity.Authenticator {
	t.Helper()
	a, err := identity.New(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// request is one as a server sees it that listens on, and was called from,
// loopback.
func request(t *testing.T, headers ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequest("POST", "http://127.0.0.1:8080/mcp/acme/thesis/browser", nil)
	r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080})))
	r.RemoteAddr = "127.0.0.1:50000"
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Basic" {
			user, password, _ := strings.Cut(value, ":")
			r.SetBasicAuth(user, password)
			continue
		}
		r.Header.Add(name, value)
	}
	return r
}

func status(err error) int {
	var e *identity.Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

func TestKeys(t *testing.T) {
	a := authenticator(t, identity.Options{Identity: keys(), Loopback: true})
	for _, c := range []struct {
		name     string
		headers  []string
		tenant   string
		project  string
		pathUser string
		want     principal.Principal
		status   int
	}{
		{name: "a bearer key opens its scope as its user", headers: []string{"Authorization: Bearer writer-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}},
		{name: "the scheme's case does not matter", headers: []string{"Authorization: bearer writer-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}},
		{name: "X-API-Key carries a key", headers: []string{"X-API-Key: writer-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}},
		{name: "the same key twice is one credential", headers: []string{"X-API-Key: writer-secret", "Authorization: Bearer writer-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}},
		{name: "the password of Basic is a key", headers: []string{"Basic: :writer-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}},
		{name: "the name of Basic may be the key's own", headers: []string{"Basic: writer:writer-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u42", Issuer: "key:writer"}},
		{name: "the name of Basic is the user of a key that speaks for users", headers: []string{"Basic: u7:brain-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u7", Issuer: "key:brain"}},
		{name: "the name of Basic may be nobody else's", headers: []string{"Basic: u7:writer-secret"}, status: 403},
		{name: "a header names the user", headers: []string{"Authorization: Bearer brain-secret", "X-Vance-User: u7"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u7", Issuer: "key:brain"}},
		{name: "a header of another name names the user of its key", headers: []string{"Authorization: Bearer other-secret", "X-On-Behalf-Of: u7"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u7", Issuer: "key:other"}},
		{name: "one key's user header is not another's", headers: []string{"Authorization: Bearer brain-secret", "X-On-Behalf-Of: u7"}, status: 403},
		{name: "the path names the user", headers: []string{"Authorization: Bearer brain-secret"}, pathUser: "u7@x.org",
			want: principal.Principal{Tenant: "acme", Project: "thesis", User: "u7@x.org", Issuer: "key:brain"}},
		{name: "no user is nobody", headers: []string{"Authorization: Bearer brain-secret"},
			want: principal.Principal{Tenant: "acme", Project: "thesis", Issuer: "key:brain"}},
		{name: "a user from a key that may not speak for users is refused", headers: []string{"Authorization: Bearer writer-secret", "X-Vance-User: u42"}, status: 403},
		{name: "a user in the path of such a key is refused", headers: []string{"Authorization: Bearer writer-secret"}, pathUser: "u42", status: 403},
		{name: "a user named twice by the header is refused", headers: []string{"Authorization: Bearer brain-secret", "X-Vance-User: u7", "X-Vance-User: u7"}, status: 403},
		{name: "a user named by header and path is refused", headers: []string{"Authorization: Bearer brain-secret", "X-Vance-User: u7"}, pathUser: "u7", status: 403},
		{name: "a user named by header and Basic is refused", headers: []string{"Basic: u7:brain-secret", "X-Vance-User: u7"}, status: 403},
		{name: "a user of another form is refused", headers: []string{"Authorization: Bearer brain-secret", "X-Vance-User: u/7"}, status: 403},
		{name: "an empty user header is refused", headers: []string{"Authorization: Bearer brain-secret", "X-Vance-User: "}, status: 403},
		{name: "a user of another form in the path is refused", headers: []string{"Authorization: Bearer brain-secret"}, pathUser: strings.Repeat("u", 129), status: 403},
		{name: "another project is refused", headers: []string{"Authorization: Bearer writer-secret"}, project: "secret", status: 403},
		{name: "another tenant is refused", headers: []string{"Authorization: Bearer writer-secret"}, tenant: "globex", status: 403},
		{name: "a role opens no scope", headers: []string{"Authorization: Bearer ops-secret"}, status: 403},
		{name: "the star is not the system tenant", headers: []string{"Authorization: Bearer brain-secret"}, tenant: "_vance", status: 403},
		{name: "the star is not the defaults' project", headers: []string{"Authorization: Bearer brain-secret"}, project: "_tenant", status: 403},
		{name: "a star in the path opens nothing", headers: []string{"Authorization: Bearer brain-secret"}, tenant: "*", project: "*", status: 403},
		{name: "the star of one tenant's projects is not the defaults' project", headers: []string{"Authorization: Bearer system-secret"}, project: "_tenant", status: 403},
		{name: "the system tenant opens by name", headers: []string{"Authorization: Bearer system-secret"}, tenant: "_vance", project: "_tenant",
			want: principal.Principal{Tenant: "_vance", Project: "_tenant", Issuer: "key:system"}},
		{name: "a tenant that is named counts before the star", headers: []string{"Authorization: Bearer other-secret"}, project: "secret", status: 403},
		{name: "a wrong key is refused", headers: []string{"Authorization: Bearer nonsense"}, status: 401},
		{name: "a key's prefix is refused", headers: []string{"Authorization: Bearer writer-secre"}, status: 401},
		{name: "no credential is refused", status: 401},
		{name: "two different keys are refused", headers: []string{"X-API-Key: brain-secret", "Authorization: Bearer writer-secret"}, status: 401},
		{name: "two Authorization headers are refused", headers: []string{"Authorization: Bearer writer-secret", "Authorization: Bearer writer-secret"}, status: 401},
		{name: "two X-API-Key headers are refused", headers: []string{"X-API-Key: writer-secret", "X-API-Key: writer-secret"}, status: 401},
		{name: "an empty X-API-Key is refused", headers: []string{"X-API-Key: "}, status: 401},
		{name: "an empty bearer is refused", headers: []string{"Authorization: Bearer "}, status: 401},
		{name: "another scheme is refused", headers: []string{"Authorization: Digest writer-secret"}, status: 401},
		{name: "an unreadable Basic is refused", headers: []string{"Authorization: Basic %%%"}, status: 401},
		{name: "a Basic without a password is refused", headers: []string{"Basic: writer:"}, status: 401},
		{name: "an endless key is refused", headers: []string{"Authorization: Bearer " + strings.Repeat("x", 20<<10)}, status: 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			tenant, project := c.tenant, c.project
			if tenant == "" {
				tenant = "acme"
			}
			if project == "" {
				project = "thesis"
			}
			var got principal.Caller
			cred, err := a.Authenticate(request(t, c.headers...))
			if err == nil {
				got, err = cred.Caller(tenant, project, c.pathUser)
			}
			if status(err) != c.status {
				t.Fatalf("status %d (%v), want %d", status(err), err, c.status)
			}
			if c.status != 0 {
				return
			}
			if d := cmp.Diff(c.want, got.Principal); d != "" {
				t.Error(d)
			}
			if got.Authorization != "" {
				t.Error("one of the gateway's own keys may go upstream")
			}
		})
	}
	t.Run("how a key wants to hear of a loss goes along", func(t *testing.T) {
		cred, err := a.Authenticate(request(t, "X-API-Key: brain-secret"))
		if err != nil {
			t.Fatal(err)
		}
		caller, err := cred.Caller("acme", "thesis", "")
		if err != nil || caller.OnLost != "reopen" {
			t.Errorf("OnLost %q, %v", caller.OnLost, err)
		}
	})
	t.Run("no text of an error holds a secret", func(t *testing.T) {
		_, err := a.Authenticate(request(t, "Authorization: Bearer very-secret-indeed"))
		if strings.Contains(err.Error(), "very-secret") {
			t.Error(err)
		}
	})
}

func TestRoles(t *testing.T) {
	a := authenticator(t, identity.Options{Identity: keys()})
	for _, c := range []struct {
		secret, tenant  string
		operator, admin bool
	}{
		{"ops-secret", "acme", true, false},
		{"admin-secret", "acme", false, true},
		{"admin-secret", "globex", false, false},
		{"admin-secret", "_vance", false, false},
		{"half-secret", "acme", false, false},
		{"brain-secret", "acme", false, false},
	} {
		k := a.Key(c.secret)
		if k == nil {
			t.Fatalf("%s is no key", c.secret)
		}
		if k.Operator() != c.operator || k.TenantAdmin(c.tenant) != c.admin {
			t.Errorf("%s in %s: operator %v, tenantAdmin %v", c.secret, c.tenant, k.Operator(), k.TenantAdmin(c.tenant))
		}
	}
	if a.Key("") != nil || a.Key("nonsense") != nil {
		t.Error("nonsense is a key")
	}
}

func TestAnonymous(t *testing.T) {
	id := keys()
	id.Anonymous = &config.Anonymous{Tenant: "dev", Projects: []string{"*"}, User: "dev"}
	local := authenticator(t, identity.Options{Identity: id, Loopback: true})
	open := authenticator(t, identity.Options{Identity: id})
	for _, c := range []struct {
		name   string
		auth   *identity.Authenticator
		change func(*http.Request)
		status int
	}{
		{name: "a program on this machine is taken"},
		{name: "under the name localhost too", change: func(r *http.Request) { r.Host = "localhost:8080" }},
		{name: "over IPv6 too", change: func(r *http.Request) { r.Host, r.RemoteAddr = "[::1]:8080", "[::1]:50000" }},
		{name: "a listener for others takes nobody", auth: open, status: 401},
		{name: "a peer from elsewhere is not taken", change: func(r *http.Request) { r.RemoteAddr = "10.0.0.7:50000" }, status: 401},
		{name: "a strange Host is not taken", change: func(r *http.Request) { r.Host = "rebind.example:8080" }, status: 401},
		{name: "a Host that only begins like loopback is not taken", change: func(r *http.Request) { r.Host = "127.0.0.1.example" }, status: 401},
		{name: "an empty Host is not taken", change: func(r *http.Request) { r.Host = "" }, status: 401},
		{name: "a forwarded request is not taken", change: func(r *http.Request) { r.Header.Set("X-Forwarded-For", "127.0.0.1") }, status: 401},
		{name: "a request through a proxy is not taken", change: func(r *http.Request) { r.Header.Set("Via", "1.1 p") }, status: 401},
		{name: "Forwarded counts too", change: func(r *http.Request) { r.Header.Set("Forwarded", "for=127.0.0.1") }, status: 401},
		{name: "a wrong credential is not nobody's", change: func(r *http.Request) { r.Header.Set("Authorization", "Bearer nonsense") }, status: 401},
		{name: "an empty credential is not nobody's", change: func(r *http.Request) { r.Header.Set("Authorization", "") }, status: 401},
		{name: "nobody names a user", change: func(r *http.Request) { r.Header.Set("X-Vance-User", "root") }, status: 403},
		{name: "a connection on another address is not taken", change: func(r *http.Request) {
			*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 8080})))
		}, status: 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := local
			if c.auth != nil {
				a = c.auth
			}
			r := request(t)
			if c.change != nil {
				c.change(r)
			}
			cred, err := a.Authenticate(r)
			if status(err) != c.status {
				t.Fatalf("status %d (%v), want %d", status(err), err, c.status)
			}
			if err != nil {
				return
			}
			caller, err := cred.Caller("dev", "any", "")
			if err != nil {
				t.Fatal(err)
			}
			want := principal.Principal{Tenant: "dev", Project: "any", User: "dev", Issuer: "anonymous"}
			if d := cmp.Diff(want, caller.Principal); d != "" {
				t.Error(d)
			}
			if _, err := cred.Caller("acme", "any", ""); status(err) != 403 {
				t.Errorf("another tenant: %v", err)
			}
			if _, err := cred.Caller("dev", "any", "root"); status(err) != 403 {
				t.Errorf("a user in the path: %v", err)
			}
		})
	}
}

func TestTracesOfProxies(t *testing.T) {
	for _, name := range []string{
		"Forwarded", "X-Forwarded", "Forwarded-For", "X-Forwarded-For", "X-Forwarded-Host", "X-Original-Forwarded-For", "X-Vercel-Forwarded-For",
		"Via", "X-Via-Ip", "X-Real-IP", "X-Client-IP", "X-Cluster-Client-IP", "X-ProxyUser-Ip", "X-Proxy-User", "True-Client-IP", "Fastly-Client-Ip",
		"CF-Connecting-IP", "CF-Connecting-IPv6", "Cf-Ray", "Cdn-Loop", "Fly-Client-Ip", "X-Azure-ClientIP", "X-Azure-SocketIP", "X-Envoy-External-Address",
		"X-Remote-Addr", "X-Originating-IP", "Wl-Proxy-Client-Ip", "X-Appengine-User-Ip", "X-Original-Host", "X-Amzn-Trace-Id", "Client-IP",
	} {
		if !identity.Forwarded(set(http.Header{}, name)) {
			t.Errorf("%s is no trace of a proxy", name)
		}
	}
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Authorization", "Content-Type", "Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Param-Region", "Last-Event-Id",
		"Origin", "User-Agent", "Sec-Fetch-Mode", "Traceparent", "X-Vance-User", "X-Api-Key", "X-Gzip", "X-Requested-With", "X-Stainless-Lang", "Cache-Control",
	} {
		if identity.Forwarded(set(http.Header{}, name)) {
			t.Errorf("%s counts as a trace of a proxy", name)
		}
	}
}

func set(h http.Header, name string) http.Header {
	h.Set(name, "127.0.0.1")
	return h
}
