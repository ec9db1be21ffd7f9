package settings

import (
	"context"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// Path is where the documents of settings stand.
const Path = "_vance/config/settings.yaml"

// TexLease is the setting that names the lease of a scope's compiles; empty or
// none means no lease.
const TexLease = "tex.lease"

// Settings resolves settings. It is safe for concurrent use.
type Settings struct {
	docs  *document.Cascade
	vars  *strictyaml.Variables
	cache *document.Cache[map[string]string]
}

// New makes a resolver whose cache follows the changes that docs tells of.
func New(docs *document.Cascade, vars *strictyaml.Variables) *Settings {
	s := &Settings{docs: docs, vars: vars}
	s.cache = document.NewCache(docs, s.load)
	return s
}

// Setting returns the value of key that a scope sees: that of the most specific
// layer which has the key, "" where that layer leaves it empty or no layer has
// it. Every key that the program asks for is in the bundled layer, so "" means
// that somebody left it empty on purpose. A layer that cannot be read or is not
// valid is an error.
func (s *Settings) Setting(ctx context.Context, tenant, project, key string) (string, error) {
	all, err := s.cache.Get(ctx, tenant, project, Path)
	return all[key], err
}

func (s *Settings) load(ctx context.Context, tenant, project, path string) (map[string]string, error) {
	layers, err := s.docs.Layers(ctx, tenant, project, path)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, f := range layers { // least specific first
		values, problems := Check(f, s.vars)
		if err := problems.Err(); err != nil {
			return nil, err
		}
		for key, value := range values {
			all[key] = value
		}
	}
	return all, nil
}

// Check reads one layer's document. Keys that this program does not know are
// other programs'.
func Check(f document.Found, vars *strictyaml.Variables) (map[string]string, strictyaml.Problems) {
	if !f.Layer.Trusted() {
		vars = nil
	}
	doc := strictyaml.Parse(f.Name, f.Text, vars)
	values := map[string]string{}
	if doc.Root == nil {
		return values, doc.Problems()
	}
	for i := 0; i+1 < len(doc.Root.Content); i += 2 {
		key, value := doc.Root.Content[i], doc.Root.Content[i+1]
		switch {
		case value.Kind != yaml.ScalarNode:
			doc.ComplainAt(key.Line, key.Value, "a setting is one value: a text, a number, true or false")
		case value.ShortTag() == "!!null":
			values[key.Value] = ""
		default:
			values[key.Value] = value.Value
		}
	}
	return values, doc.Problems()
}
