package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/credential"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// checker finds what types and bounds do not show. It goes on after a problem,
// so that one run shows them all.
type checker struct {
	*strictyaml.Document
	g    *Gateway
	part bool // only what a look at the store needs
}

func (c *checker) all() {
	c.listeners()
	c.store()
	c.documents()
	c.origins()
	if _, err := egress.New(c.g.Egress.Allow); err != nil {
		c.Complain("egress.allow", "%s", err.Error())
	}
	c.identity()
	tex.Check(c.Document, c.g.Tex)
	if e := c.g.Telemetry.OTLPEndpoint; e != "" {
		if _, what := credential.URL(e, false); what != "" {
			c.Complain("telemetry.otlpEndpoint", "%s", what)
		}
	}
}

func (c *checker) listeners() {
	g := c.g
	_, port, ok := splitHostPort(g.Listen)
	if !ok {
		c.Complain("listen", "host:port is wanted, such as 127.0.0.1:8080 or :8080")
	}
	ihost, iport, iok := splitHostPort(g.Internal.Listen)
	if !iok {
		c.Complain("internal.listen", "host:port is wanted, such as 127.0.0.1:8081")
	}
	if ok && iok && port != 0 && port == iport {
		c.Complain("internal.listen", "the port is that of listen; /internal must not be on the clients' port")
	}
	if g.PublicURL != "" {
		if u, what := credential.URL(g.PublicURL, false); what != "" {
			c.Complain("publicURL", "%s", what)
		} else if strings.Trim(u.Path, "/") != "" {
			c.Complain("publicURL", "scheme and host only: the gateway's paths begin at the root")
		}
	}
	if (g.TLS.Cert == "") != (g.TLS.Key == "") {
		c.Complain("tls", "cert and key belong together; set both or neither")
	}
	for i, t := range g.Internal.Tokens {
		if len(t) < 16 {
			c.Complain(fmt.Sprintf("internal.tokens[%d]", i), "a token of fewer than 16 characters can be guessed; make one with `openssl rand -hex 32`")
		} else if !headerValue(t) {
			c.Complain(fmt.Sprintf("internal.tokens[%d]", i), "a token goes into a header: visible ASCII characters only")
		}
	}
	if iok {
		c.pod(ihost, iport)
	}
	if g.Pod.StaleAfter < 2*g.Pod.Heartbeat {
		c.Complain("pod.staleAfter", "it must be at least twice pod.heartbeat (%s), or one late heartbeat makes a living pod count as dead and takes its leases; three times is usual", g.Pod.Heartbeat)
	}
}

func (c *checker) pod(internalHost string, internalPort int) {
	g := c.g
	if g.Pod.Endpoint == "" {
		host := internalHost
		if everyAddress(host) {
			if !g.Embedded() && !c.part {
				c.Complain("pod.endpoint", "internal.listen is every address of this host, so other pods cannot be told where this one is; set pod.endpoint to this pod's own address, such as ${POD_IP}:%d", internalPort)
				return
			}
			host = "127.0.0.1"
		}
		g.Pod.Endpoint = joinHostPort(host, internalPort)
		return
	}
	host, _, ok := splitHostPort(g.Pod.Endpoint)
	switch {
	case !ok:
		c.Complain("pod.endpoint", "host:port is wanted, such as 10.0.0.7:8081")
	case everyAddress(host):
		c.Complain("pod.endpoint", "this address names no host; set this pod's own address, such as ${POD_IP}:%d", internalPort)
	case loopback.Host(g.Pod.Endpoint) && !loopback.Host(g.Internal.Listen) && !g.Embedded():
		c.Complain("pod.endpoint", "other pods cannot reach a loopback address; set this pod's own address, such as ${POD_IP}:%d", internalPort)
	case !loopback.Host(g.Pod.Endpoint) && loopback.Host(g.Internal.Listen):
		c.Complain("pod.endpoint", "internal.listen (%s) is a loopback address, so nobody can reach this pod at %s; let it listen there", g.Internal.Listen, g.Pod.Endpoint)
	}
}

var databaseForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

func (c *checker) store() {
	g := c.g
	if g.Embedded() {
		if g.Store.Path == "" {
			c.Complain("store.path", "the embedded store needs a file, such as data/leases.db")
		}
	} else {
		if g.Store.URI == "" {
			c.Complain("store.uri", "store.kind mongodb needs the connection string of the database, such as ${MONGODB_URI}")
		}
		if len(g.Session.Keys) == 0 && !c.part {
			c.Complain("session.keys", "pods that share a store need the same session keys; make one with `openssl rand -base64 32`")
		}
		if len(g.Internal.Tokens) == 0 {
			c.Complain("internal.tokens", "pods that share a store need the same token for each other; make one with `openssl rand -hex 32`")
		}
	}
	if g.Store.URI != "" {
		c.mongoURI("store.uri", g.Store.URI)
	}
	if !databaseForm.MatchString(g.Store.Database) {
		c.Complain("store.database", "a database name has letters, digits, _ and -, at most 63")
	}
	if g.Session.OnShutdown == Handover && g.Embedded() {
		c.Complain("session.onShutdown", "handover leaves sessions to other pods, and the embedded store has none; use close, or store.kind mongodb")
	}
}

func (c *checker) mongoURI(key, uri string) {
	if !strings.HasPrefix(uri, "mongodb://") && !strings.HasPrefix(uri, "mongodb+srv://") {
		c.Complain(key, "a MongoDB connection string begins with mongodb:// or mongodb+srv://")
	}
}

func (c *checker) documents() {
	d := &c.g.Documents
	if d.MongoDB.URI != "" {
		c.mongoURI("documents.mongodb.uri", d.MongoDB.URI)
		if d.MongoDB.Database == "" {
			d.MongoDB.Database = c.g.Store.Database
		}
		if !databaseForm.MatchString(d.MongoDB.Database) {
			c.Complain("documents.mongodb.database", "a database name has letters, digits, _ and -, at most 63")
		}
		if d.MongoDB.Collection == "" || strings.ContainsAny(d.MongoDB.Collection, "$\x00") {
			c.Complain("documents.mongodb.collection", "this is not a collection name")
		}
		if !c.Has("documents.dir") {
			d.Dir = "" // nobody asked for the folder
		}
	} else if d.Dir == "" {
		c.Complain("documents.dir", "without documents.mongodb.uri the documents need a folder")
	}
}

func (c *checker) origins() {
	for i, o := range c.g.Origins {
		key := fmt.Sprintf("origins[%d]", i)
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || strings.Contains(o, "*") {
			c.Complain(key, "an origin is scheme://host or scheme://host:port, such as https://app.example.com, without a path or *")
		}
	}
}

func (c *checker) identity() {
	id := c.g.Identity
	if a := id.Anonymous; a != nil {
		if !c.g.Loopback() {
			c.Complain("identity.anonymous", "callers without a credential are taken on a loopback listener only, and listen is %s; use apiKeys or jwt, or listen on 127.0.0.1", c.g.Listen)
		}
		c.name("identity.anonymous.tenant", a.Tenant, false)
		c.projects("identity.anonymous.projects", a.Projects)
		c.user("identity.anonymous.user", a.User)
	}
	names, hashes := map[string]bool{}, map[[32]byte]string{}
	for i := range id.APIKeys {
		k, key := &id.APIKeys[i], fmt.Sprintf("identity.apiKeys[%d]", i)
		c.apiKey(key, k)
		if k.Name != "" && names[k.Name] {
			c.Complain(key+".name", "another key has this name; the audit could not tell them apart")
		}
		names[k.Name] = true
		if other, dup := hashes[k.SHA256]; dup && k.SHA256 != [32]byte{} {
			c.Complain(key+".sha256", "the key %s has the same hash", other)
		}
		hashes[k.SHA256] = k.Name
	}
	if j := id.JWT; j != nil {
		c.jwt(j)
	}
}

// emptySHA256 is the hash of no key at all: a variable that was empty when
// somebody hashed it.
var emptySHA256 = [32]byte{0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
	0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55}

func (c *checker) apiKey(key string, k *APIKey) {
	c.name(key+".name", k.Name, false)
	if k.SHA256 == emptySHA256 {
		c.Complain(key+".sha256", "this is the hash of an empty key; hash the key itself: printf %%s \"$KEY\" | sha256sum")
	}
	for tenant, projects := range k.Tenants {
		at := key + ".tenants." + tenant
		if tenant != "*" {
			c.name(at, tenant, false)
		}
		c.projects(at, projects)
	}
	c.user(key+".user", k.User)
	if k.User != "" && k.UserHeader != "" {
		c.Complain(key+".userHeader", "a key stands for one user or speaks for many; set user or userHeader, not both")
	}
	if k.UserHeader != "" {
		if what := credential.HeaderName(k.UserHeader, "X-Vance-User"); what != "" {
			c.Complain(key+".userHeader", "%s", what)
		}
	}
	switch {
	case len(k.Tenants) == 0 && slices.Contains(k.Roles, RoleTenantAdmin):
		c.Complain(key+".tenants", "a tenantAdmin needs the tenants that it administers")
	case len(k.Tenants) == 0 && len(k.Roles) == 0:
		c.Complain(key+".tenants", "the key opens nothing; give it tenants, or the role operator")
	}
}

func (c *checker) jwt(j *JWT) {
	if _, what := credential.URL(j.JWKSURL, true); j.JWKSURL != "" && what != "" {
		c.Complain("identity.jwt.jwksURL", "%s", what)
	}
	for key, claim := range map[string]string{"tenant": j.Claims.Tenant, "projects": j.Claims.Projects, "user": j.Claims.User} {
		if claim == "" {
			c.Complain("identity.jwt.claims."+key, "a claim is wanted; leave the key out for the default")
		}
	}
}

func (c *checker) name(key, name string, star bool) {
	if name == "" || star && name == "*" {
		return // an absent one is complained of where it is required
	}
	if !principal.ValidName(name) {
		c.Complain(key, "%s", principal.NameForm)
	}
}

func (c *checker) projects(key string, projects []string) {
	if len(projects) == 0 && c.Has(key) {
		c.Complain(key, "it opens no project; name some, or \"*\" for all")
	}
	for i, p := range projects {
		at := fmt.Sprintf("%s[%d]", key, i)
		if p == "" {
			c.Complain(at, "a project or \"*\" is wanted")
		}
		c.name(at, p, true)
	}
}

func (c *checker) user(key, user string) {
	if user != "" && !principal.ValidUser(user) {
		c.Complain(key, "a user has letters, digits and . _ @ -, at most 128")
	}
}

func headerValue(s string) bool {
	for _, r := range s {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	return true
}
