package tex

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAPathMatches(t *testing.T) {
	for name, c := range map[string]struct {
		path, in string
		want     map[string]string // nil: no match
	}{
		"one segment":                    {"/tex2pdf/status/{job}", "/tex2pdf/status/a-1", map[string]string{"job": "a-1"}},
		"a slash is not in a segment":    {"/tex2pdf/status/{job}", "/tex2pdf/status/a/b", nil},
		"an empty segment":               {"/tex2pdf/status/{job}", "/tex2pdf/status/", nil},
		"an optional part left out":      {"/project/{p}[/user/{u}]/compile", "/project/x/compile", map[string]string{"p": "x"}},
		"an optional part":               {"/project/{p}[/user/{u}]/compile", "/project/x/user/y/compile", map[string]string{"p": "x", "u": "y"}},
		"half an optional part":          {"/project/{p}[/user/{u}]/compile", "/project/x/user/compile", nil},
		"a rest":                         {"/out/{f...}", "/out/a/b.pdf", map[string]string{"f": "a/b.pdf"}},
		"an empty rest":                  {"/{f...}", "/", map[string]string{}},
		"literals are not expressions":   {"/a.b+", "/axbb", nil},
		"the whole path":                 {"/a", "/a/b", nil},
		"a malformed id is still a find": {"/s/{job}", "/s/a%2fb", map[string]string{"job": "a%2fb"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ParsePath(c.path)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := p.Match(c.in)
			if ok != (c.want != nil) || cmp.Diff(c.want, got) != "" {
				t.Errorf("Match(%q) = %v, %v; want %v", c.in, got, ok, c.want)
			}
		})
	}
}

func TestAPathFills(t *testing.T) {
	p, err := ParsePath("/project/{p}[/user/{u}]/compile/stop")
	if err != nil {
		t.Fatal(err)
	}
	for want, values := range map[string]map[string]string{
		"/project/x/compile/stop":        {"p": "x"},
		"/project/x/user/y/compile/stop": {"p": "x", "u": "y"},
	} {
		if got, err := p.Fill(values); err != nil || got != want {
			t.Errorf("Fill(%v) = %q, %v; want %q", values, got, err, want)
		}
	}
	if got, err := p.Fill(map[string]string{"u": "y"}); err == nil {
		t.Errorf("Fill without {p} = %q", got)
	}
}

func TestAPathRefuses(t *testing.T) {
	for _, s := range []string{"", "x", "/{", "/}", "/]", "/[a", "/[a[b]]", "/{a}/{a}", "/{a...}/b", "/{job...}", "/{a:0}", "/{job:3}", "/{}", "/{9}", "/a b", "/a%2f", "/a?b"} {
		if p, err := ParsePath(s); err == nil {
			t.Errorf("ParsePath(%q) = %v", s, p)
		}
	}
}

func TestValidJob(t *testing.T) {
	for _, s := range []string{"a", "2f0c-11.x_Y", strings.Repeat("a", 128)} {
		if !ValidJob(s) {
			t.Errorf("%q is refused", s)
		}
	}
	for _, s := range []string{"", ".", "..", "a/b", "a/..", "a//b", "a%2fb", "a b", "ä", "a\n", strings.Repeat("a", 129), strings.Repeat("a", 10<<10), strings.Repeat("a/", 9) + "a"} {
		if ValidJob(s) {
			t.Errorf("%.20q is taken", s)
		}
	}
}
