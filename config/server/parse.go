package server

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// file is a server document as it is written. Vance has more keys; those warn.
type file struct {
	// The name; that of the file counts.
	Name string `yaml:"name"`
	// mcp_server.
	Type string `yaml:"type" required:"true"`
	// false ends the cascade: there is no such server in this scope.
	Enabled bool `yaml:"enabled" default:"true"`
	// How the server is reached and shared.
	Parameters parameters `yaml:"parameters"`
}

type parameters struct {
	// http: Streamable HTTP at url. sse: HTTP+SSE of revision 2024-11-05, url is
	// that of its event stream. stdio: command, in system and bundled
	// documents only.
	Transport Transport `yaml:"transport" default:"http"`
	// The server's MCP endpoint.
	URL string `yaml:"url"`
	// Program and arguments.
	Command []string `yaml:"command"`
	// The program's folder.
	Cwd string `yaml:"cwd"`
	// The program's environment, besides PATH, LANG and a HOME of its own.
	Env map[string]string `yaml:"env" secret:"true"`
	// The credential for the server.
	Auth config.Auth `yaml:"auth"`
	// Longest silence of the server in a call.
	TimeoutSeconds int `yaml:"timeoutSeconds" default:"60" min:"1" max:"86400"`
	// Longest wait for initialize: 5, or 60 with stdio.
	InitTimeoutSeconds int `yaml:"initTimeoutSeconds" min:"1" max:"3600"`
	// Longest call.
	MaxCallSeconds int `yaml:"maxCallSeconds" default:"3600" min:"1" max:"604800"`
	// refuse, or replaceOwn: where no slot is free, the caller's own session that was
	// not used for longest, and has no call in flight, is ended first. The default is
	// replaceOwn where the lease gives a user one slot, and refuse elsewhere.
	OnBusy OnBusy `yaml:"onBusy" enum:"refuse,replaceOwn"`
	// Name of a lease, an inline lease, or none.
	Lease *yaml.Node `yaml:"lease"`
	// What a client without sessions (revision 2026-07-28) gets; fence, which
	// sends it to a revision with sessions, is built.
	Modern Modern `yaml:"modern"`
}

// mcpServer is the type of the documents that are served here.
const mcpServer = "mcp_server"

// The longest wait for initialize where a document names none. The first start
// of a stdio server often installs it.
const (
	initHTTP  = 5
	initStdio = 60
)

var (
	envForm     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	secretForm  = regexp.MustCompile(`\{\{\s*secret:\s*([^{}]*?)\s*\}\}`)
	bracesForm  = regexp.MustCompile(`\{\{[^{}]*\}?\}?`)
	secretNames = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// Checked is what reading a document has shown.
type Checked struct {
	Document *Document // nil where there are problems of more than its lease, or it is disabled
	Disabled bool
	Foreign  bool // another program's document: its type is not mcp_server
	Problems strictyaml.Problems
	Warnings strictyaml.Problems
	Secrets  []Reference // in the order of the file

	text *strictyaml.Document
}

// Line is where a key stands in the document, 0 where it does not.
func (c Checked) Line(key string) int { return c.text.Line(key) }

// Reference is a {{secret:name}} in a document.
type Reference struct {
	Key, Name string
	Line      int
}

// Check reads a document as a scope sees it. A tenant's or project's document is
// hostile input: it may not run programs on this host, read its environment or
// have a caller's own credential sent anywhere.
func Check(name, tenant, project string, f document.Found, lim definition.Limits, vars *strictyaml.Variables) Checked {
	if !f.Layer.Trusted() {
		vars = nil
	}
	p := parser{
		Document: strictyaml.Parse(f.Name, f.Text, vars),
		out:      &Document{Name: name, Layer: f.Layer, Tenant: tenant, Project: project, Untrusted: !f.Layer.Trusted()},
		lim:      lim,
	}
	var in file
	if p.Root != nil {
		strictyaml.Decode(p.Document, &in, strictyaml.Lenient)
		p.all(&in)
	}
	c := Checked{Problems: p.Problems(), Warnings: p.Warnings(), Secrets: p.secrets, text: p.Document}
	c.Foreign = in.Type != "" && in.Type != mcpServer
	switch {
	case slices.ContainsFunc(c.Problems, func(p strictyaml.Problem) bool { return !ofLease(p) }):
	case !in.Enabled:
		c.Disabled = true
	default:
		c.Document = p.out
		if len(c.Problems) > 0 {
			c.Document.noLease(c.Problems[0])
		}
	}
	return c
}

const leaseKey = "parameters.lease"

// ofLease reports whether a problem is the lease's alone. A server whose lease is
// broken is there; what cannot be had is a lease.
func ofLease(p strictyaml.Problem) bool {
	return p.Key == leaseKey || strings.HasPrefix(p.Key, leaseKey+".")
}

// noLease notes why the document's lease cannot be had.
func (d *Document) noLease(p strictyaml.Problem) {
	d.Inline = nil
	if d.Lease == "" {
		d.Lease = "of the server " + d.Name // no name at all: it must not look like no lease
	}
	d.LeaseError = &definition.Error{Lease: d.Lease, Layer: d.Layer, Where: p.Where(), Field: p.Key, What: p.What, Reason: p.Reason}
}

type parser struct {
	*strictyaml.Document
	out     *Document
	lim     definition.Limits
	secrets []Reference
}

func (p *parser) all(in *file) {
	if in.Type != "" && in.Type != mcpServer {
		p.Complain("type", "only mcp_server is served here")
		return
	}
	if in.Name != "" && in.Name != p.out.Name {
		p.Warn("name", "the file's name counts: %s", p.out.Name)
	}
	if !in.Enabled {
		return // what is switched off need not be whole, but it must be readable
	}
	q := &in.Parameters
	p.transport(q)
	p.auth(&q.Auth)
	p.env(q)
	p.lease(q.Lease)
	p.modern(q.Modern)
	p.out.Timeout = seconds(q.TimeoutSeconds)
	p.out.MaxCall = seconds(q.MaxCallSeconds)
	p.out.OnBusy = q.OnBusy
	switch {
	case q.InitTimeoutSeconds > 0:
		p.out.InitTimeout = seconds(q.InitTimeoutSeconds)
	case q.Transport == Stdio:
		p.out.InitTimeout = seconds(initStdio)
	default:
		p.out.InitTimeout = seconds(initHTTP)
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// operatorOnly is the way out for what a tenant or project may not do.
const operatorOnly = "ask the operator to put this server into a system document (documents/_vance/_tenant/_vance/server-tools/), which every project can use"

func (p *parser) transport(q *parameters) {
	p.out.Transport = q.Transport
	if p.out.Untrusted && (len(q.Command) > 0 || q.Transport == Stdio) {
		key := "parameters.command"
		if len(q.Command) == 0 {
			key = "parameters.transport"
		}
		p.Complain(key, "a tenant or project must not run programs on the gateway's host; %s, or name a url", operatorOnly)
		return
	}
	switch q.Transport {
	case HTTP, SSE:
		p.url(q.URL)
		if len(q.Command) > 0 {
			p.Complain("parameters.command", "a command needs transport: stdio; or leave it out and keep url")
		}
		for _, key := range []string{"parameters.cwd", "parameters.env"} {
			if p.Has(key) {
				p.Warn(key, "it has no effect without transport: stdio")
			}
		}
	case Stdio:
		p.command(q)
	default:
		p.Complain("parameters.transport", "http, sse or stdio is wanted")
	}
}

func (p *parser) url(s string) {
	if s == "" {
		p.Complain("parameters.url", "a server that is no program needs its url, such as http://browsers:8931/mcp")
		return
	}
	if p.noReferences("parameters.url", s) {
		return
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Hostname() == "":
		p.Complain("parameters.url", "an absolute URL is wanted, such as http://browsers:8931/mcp")
	case u.Scheme != "http" && u.Scheme != "https":
		p.Complain("parameters.url", "the URL must begin with http:// or https://")
	case u.User != nil:
		p.Complain("parameters.url", "the URL must not hold a user or password; use auth")
	case u.Fragment != "" || strings.HasSuffix(s, "#"):
		p.Complain("parameters.url", "the URL must not hold a fragment (#…)")
	default:
		p.out.URL = u
	}
}

func (p *parser) command(q *parameters) {
	if len(q.Command) == 0 || q.Command[0] == "" {
		p.Complain("parameters.command", "a server with transport stdio needs its command as a list: [program, argument, …]")
		return
	}
	for i, arg := range q.Command {
		key := fmt.Sprintf("parameters.command[%d]", i)
		if !p.noReferences(key, arg) && strings.ContainsRune(arg, 0) {
			p.Complain(key, "an argument must not hold a NUL")
		}
	}
	p.noReferences("parameters.cwd", q.Cwd)
	if q.URL != "" {
		p.Warn("parameters.url", "it has no effect with transport: stdio")
	}
	if q.Auth.Type != config.AuthNone {
		p.Warn("parameters.auth", "it has no effect with transport: stdio; give secrets in env")
	}
	p.out.Command, p.out.Cwd = q.Command, q.Cwd
}

func (p *parser) env(q *parameters) {
	p.out.Env = q.Env
	for _, name := range sortedKeys(q.Env) {
		key := "parameters.env." + name
		if !envForm.MatchString(name) {
			p.Complain(key, "this is not the name of an environment variable")
		}
		if strings.ContainsRune(q.Env[name], 0) {
			p.Complain(key, "a value must not hold a NUL")
		}
		p.references(key, q.Env[name])
	}
}

func (p *parser) auth(a *config.Auth) {
	if a.Type == config.AuthForward && p.out.Untrusted {
		p.Complain("parameters.auth.type", "forward sends the caller's own credential to this server, which an operator must want; %s, or use another type", operatorOnly)
		return
	}
	p.out.Auth = *a
	for _, wrong := range a.Check() {
		p.Complain("parameters.auth."+wrong.Key, "%s", wrong.What)
	}
	if a.Type == config.AuthNone && (a.Token != "" || a.Password != "" || a.Value != "" || a.ClientSecret != "") {
		p.Complain("parameters.auth.type", "a credential without its type is never sent; set type to bearer, basic, apiKey or oauth2")
	}
	for _, f := range []struct{ key, value string }{{"token", a.Token}, {"user", a.User}, {"password", a.Password}, {"value", a.Value},
		{"clientID", a.ClientID}, {"clientSecret", a.ClientSecret}} {
		p.references("parameters.auth."+f.key, f.value)
	}
	for _, f := range []struct{ key, value string }{{"headerName", a.HeaderName}, {"tokenURL", a.TokenURL}, {"audience", a.Audience}} {
		p.noReferences("parameters.auth."+f.key, f.value)
	}
}

// lease reads a name reference, an inline definition or nothing.
func (p *parser) lease(n *yaml.Node) {
	const key = leaseKey
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		inline, err := definition.ParseInline(p.Document, n, key, p.out.Tenant, p.out.Project, p.lim)
		if err != nil { // what is wrong is in p
			p.out.Lease = inlineName(n)
			return
		}
		p.out.Inline = inline
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str":
		p.Complain(key, "the name of a lease, an inline lease {name: …, levels: …} or none is wanted")
	case n.Value == "" || n.Value == "none":
	case !definition.ValidName(n.Value):
		p.Complain(key, "a lease name begins with a letter or digit and has letters, digits, _ and - after it, at most 64")
	default:
		p.out.Lease = n.Value
	}
}

// inlineName is the name of an inline definition that is wrong elsewhere.
func inlineName(n *yaml.Node) string {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == "name" && definition.ValidName(n.Content[i+1].Value) {
			return n.Content[i+1].Value
		}
	}
	return ""
}

func (p *parser) modern(s Modern) {
	switch s {
	case "", Fence:
		p.out.Modern = s
	case "perCall", "handle", "principal":
		p.Complain("parameters.modern", "%s is not built in this version; use fence, which sends clients of revision 2026-07-28 to a revision with sessions, or leave it out", s)
	default:
		p.Complain("parameters.modern", "fence is wanted, or nothing")
	}
}

// references notes the secrets that a value names and refuses other braces,
// which are a reference with a slip in it.
func (p *parser) references(key, value string) {
	for _, m := range secretForm.FindAllStringSubmatch(value, -1) {
		if !validSecret(m[1]) {
			p.Complain(key, "the name of a secret has letters, digits, . _ and -, at most 128")
			continue
		}
		p.secrets = append(p.secrets, Reference{key, m[1], p.Line(key)})
	}
	if rest := secretForm.ReplaceAllString(value, ""); bracesForm.MatchString(rest) {
		p.Complain(key, "{{…}} that is no {{secret:name}}; see how it is written")
	}
}

func (p *parser) noReferences(key, value string) (found bool) {
	if bracesForm.MatchString(value) {
		p.Complain(key, "{{secret:name}} is taken in auth and env only, since this value shows in logs and messages")
		return true
	}
	return false
}

func validSecret(name string) bool {
	return secretNames.MatchString(name) && !strings.Contains(name, "..")
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
