package definition

import (
	"errors"
	"regexp"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// Limits are the ceilings for what documents may say (lease.maxTTL and
// lease.maxWait).
type Limits struct {
	MaxTTL  time.Duration
	MaxWait time.Duration
}

// layer is what one document says. A nil field is left out.
type layer struct {
	// The lease's name; it must be the file's.
	Name *string `yaml:"name"`
	// What is counted; leases with the same resource share its slots. The
	// default is the name.
	Resource *string `yaml:"resource"`
	// Most holders in all.
	Global *int `yaml:"levels.global" min:"1" max:"1000000000"`
	// Most holders of one tenant.
	Tenant *int `yaml:"levels.tenant" min:"1" max:"1000000000"`
	// Most holders of one project.
	Project *int `yaml:"levels.project" min:"1" max:"1000000000"`
	// Most holders of one user, over all projects of the tenant.
	User *int `yaml:"levels.user" min:"1" max:"1000000000"`
	// Fields that the operators keep, in bundled and system layers: a tenant's or
	// project's layer may not set resource, ttlSeconds and waitMs, and may only
	// lower the caps of the levels tenant, project and user. With any of them, and
	// wherever levels.global is set, resource and tenant are locked.
	Locked *[]string `yaml:"locked" enum:"resource,tenant,project,user,ttlSeconds,waitMs"`
	// Idle seconds after which the lease is taken back: longer than the longest
	// pause between two uses.
	TTL *int `yaml:"ttlSeconds" min:"1" max:"1000000000"`
	// Longest wait for a slot, in milliseconds; 0 refuses at once.
	Wait *int `yaml:"waitMs" min:"0" max:"1000000000"`
}

var (
	nameForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	resourceForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$`)
)

// ValidName reports whether s may be a lease's name (spec §2).
func ValidName(s string) bool { return nameForm.MatchString(s) }

// NameRule says what a lease's name looks like.
const NameRule = "a lease name begins with a letter or digit and has letters, digits, _ and - after it, at most 64"

// PathOf is where the documents of a lease stand.
func PathOf(name string) string { return pathPrefix + name + ".yaml" }

const pathPrefix = "_vance/config/lease/"

// NameOf is the lease whose documents stand at a path.
func NameOf(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, pathPrefix)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(rest, ".yaml")
	return name, ok && !strings.Contains(name, "/")
}

// CheckDocument returns everything that is wrong with one layer's document, and
// as warnings its fields that do not count. merged is the definition as the
// document's scope sees it; nil where there is none, for then nobody knows which.
func CheckDocument(name string, f document.Found, merged *Merged, lim Limits, vars *strictyaml.Variables) (problems, warnings strictyaml.Problems) {
	_, doc := readLayer(name, f, lim, vars)
	if merged != nil && len(doc.Problems()) == 0 {
		for _, field := range merged.Fields {
			for _, i := range field.Ignored {
				if i.Layer == f.Layer && !i.Overridden() {
					doc.Warn(field.Name, "%s, so it is ignored", i.Why)
				}
			}
		}
	}
	return doc.Problems(), doc.Warnings()
}

// parseLayer validates a document whole, also in the fields that its layer may
// not set: a layer that is broken anywhere was not meant as it stands (spec §2).
func parseLayer(name string, f document.Found, lim Limits, vars *strictyaml.Variables) (layer, strictyaml.Problems) {
	l, doc := readLayer(name, f, lim, vars)
	return l, doc.Problems()
}

func readLayer(name string, f document.Found, lim Limits, vars *strictyaml.Variables) (layer, *strictyaml.Document) {
	if !f.Layer.Trusted() {
		vars = nil
	}
	doc := strictyaml.Parse(f.Name, f.Text, vars)
	var l layer
	if doc.Root != nil {
		strictyaml.Decode(doc, &l, strictyaml.Exact)
		if l.Name != nil && *l.Name != name {
			doc.Complain("name", "it must be the name of the file, %s", name)
		}
		if l.Resource != nil {
			switch {
			case strings.HasPrefix(strings.ToLower(*l.Resource), InlinePrefix):
				doc.Complain("resource", "resources that begin with %s belong to inline definitions", InlinePrefix)
			case !resourceForm.MatchString(*l.Resource):
				doc.Complain("resource", "a resource begins with a letter or digit and has letters, digits and . _ : / @ - after it, at most 128")
			}
		}
		l.ceilings(doc, "", lim)
	}
	return l, doc
}

func (l *layer) ceilings(doc *strictyaml.Document, prefix string, lim Limits) {
	if l.TTL != nil && l.ttl() > lim.MaxTTL {
		doc.Complain(prefix+"ttlSeconds", "it is longer than this gateway allows (lease.maxTTL, %s)", lim.MaxTTL)
	}
	if l.Wait != nil && l.wait() > lim.MaxWait {
		doc.Complain(prefix+"waitMs", "it is longer than this gateway allows (lease.maxWait, %s)", lim.MaxWait)
	}
}

func (l *layer) ttl() time.Duration  { return time.Duration(*l.TTL) * time.Second }
func (l *layer) wait() time.Duration { return time.Duration(*l.Wait) * time.Millisecond }

// ParseInline reads an inline definition, node, which stands in a document at
// key. It has a project's rights whoever wrote it, and a resource that only this
// project's inline leases of this name share (spec §2).
func ParseInline(doc *strictyaml.Document, node *yaml.Node, key, tenant, project string, lim Limits) (*Definition, error) {
	before := len(doc.Problems())
	var l layer
	strictyaml.DecodeNode(doc, node, key, &l, strictyaml.Exact)
	switch {
	case l.Name == nil:
		doc.Complain(key+".name", "an inline lease needs a name")
	case !ValidName(*l.Name):
		doc.Complain(key+".name", NameRule)
	}
	for _, shared := range []struct {
		field string
		set   bool
	}{{"resource", l.Resource != nil}, {"levels.global", l.Global != nil}, {"levels.tenant", l.Tenant != nil}, {"locked", l.Locked != nil}} {
		if shared.set {
			doc.Complain(key+"."+shared.field, "an inline lease must not set it, for it would reach beyond its project; name a lease instead and set it in _vance/config/lease/<name>.yaml")
		}
	}
	l.ceilings(doc, key+".", lim)
	if len(doc.Problems()) > before {
		return nil, errInline
	}
	d := &Definition{
		Name:     *l.Name,
		Resource: InlineResource(tenant, project, *l.Name),
		Caps:     map[Level]Cap{},
		TTL:      min(DefaultTTL, lim.MaxTTL),
		Wait:     min(DefaultWait, lim.MaxWait),
		Inline:   true,
		Label:    "mcp-inline",
	}
	for level, n := range map[Level]*int{Project: l.Project, User: l.User} {
		if n != nil {
			d.Caps[level] = Cap(*n)
		}
	}
	if l.TTL != nil {
		d.TTL = l.ttl()
	}
	if l.Wait != nil {
		d.Wait = l.wait()
	}
	return d, nil
}

var errInline = errors.New("the inline lease is not valid")
