package settings

import (
	"context"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config/document"
)

type docs map[string]string // "tenant/project" → text

func (d docs) Read(_ context.Context, k document.Key) ([]byte, error) {
	if t, ok := d[k.Tenant+"/"+k.Project]; ok && k.Path == Path {
		return []byte(t), nil
	}
	return nil, document.ErrNotFound
}

func (d docs) Name(k document.Key) string                   { return k.Tenant + "/" + k.Project + "/" + k.Path }
func (d docs) List(context.Context) ([]document.Key, error) { return nil, nil }

func TestSetting(t *testing.T) {
	for _, tc := range []struct {
		name string
		docs docs
		want string
	}{
		{"the bundled value holds where nobody says otherwise", docs{}, "tex"},
		{"a system value", docs{"_vance/_tenant": "tex.lease: sys"}, "sys"},
		{"a tenant's value", docs{"_vance/_tenant": "tex.lease: sys", "acme/_tenant": "tex.lease: ten"}, "ten"},
		{"a project's value", docs{"acme/_tenant": "tex.lease: ten", "acme/thesis": "tex.lease: pro"}, "pro"},
		{"a layer without the key lets the next one speak", docs{"acme/_tenant": "tex.lease: ten", "acme/thesis": "other: 1"}, "ten"},
		{"an empty value is one", docs{"acme/_tenant": "tex.lease: ten", "acme/thesis": "tex.lease: ''"}, ""},
		{"so is a key without a value", docs{"acme/thesis": "tex.lease:"}, ""},
		{"another tenant's value is not seen", docs{"umbrella/_tenant": "tex.lease: x"}, "tex"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := New(document.NewCascade(tc.docs), nil).Setting(t.Context(), "acme", "thesis", "tex.lease")
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
	for name, text := range map[string]string{"a list": "tex.lease: [a]", "broken YAML": "{", "a variable": "tex.lease: '${HOME}'", "an alias": "a: &a 1\nb: *a", "nothing": ""} {
		t.Run(name+" in a layer is an error that names the file", func(t *testing.T) {
			_, err := New(document.NewCascade(docs{"acme/thesis": text}), nil).Setting(t.Context(), "acme", "thesis", "tex.lease")
			if err == nil || !strings.Contains(err.Error(), "acme/thesis/_vance/config/settings.yaml") {
				t.Errorf("got %v", err)
			}
		})
	}
}
