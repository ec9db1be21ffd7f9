package texproxy

import (
	"path"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

// A cleaned path has one reading: cleaning it again changes nothing, and no
// escape in it hides a separator.
func FuzzCleanPath(f *testing.F) {
	for _, s := range []string{"", "/", "/a/../b", "/a%2fb", "/%2e%2e/x", "//a//", "/a%41", "/%", "/%zz", "/a;b", "/ä", "/a%20b", "/a\\b", "a/b", "/%25%32%66"} {
		f.Add(s)
	}
	f.Add("/" + strings.Repeat("]", 5000)) // is longer than a path may be, once cleaned
	svc, err := newService(tex.Service{Name: "s", Preset: "rbehzadan", Upstream: "http://x/base", Unmatched: "passThrough"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		clean, ok := cleanPath(s)
		if !ok {
			return
		}
		if again, ok := cleanPath(clean); !ok || again != clean {
			t.Errorf("%q is cleaned to %q and then to %q, %v", s, clean, again, ok)
		}
		lower := strings.ToLower(clean)
		if !strings.HasPrefix(clean, "/") || strings.Contains(clean, "//") || strings.Contains(clean, "/../") ||
			strings.Contains(lower, "%2f") || strings.Contains(lower, "%2e") || strings.Contains(lower, "%5c") || strings.Contains(lower, "%00") {
			t.Errorf("%q is cleaned to %q", s, clean)
		}
		u := below(svc.base, clean, "")
		if got := u.EscapedPath(); got != "/base"+clean {
			t.Errorf("%q goes up as %q", clean, got)
		}
		if got := path.Clean(u.Path); !strings.HasPrefix(got, "/base") {
			t.Errorf("%q leaves the base: %q", clean, got)
		}
		if m, ok := svc.find("GET", s); ok && m.route != nil && m.job() != "" && !tex.ValidJob(m.job()) {
			t.Errorf("%q has the job %q", s, m.job())
		}
	})
}
