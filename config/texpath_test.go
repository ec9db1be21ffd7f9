package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTexPathMatches(t *testing.T) {
	for name, c := range map[string]struct {
		path, in string
		want     map[string]string // nil: no match
	}{
		"one segment":                    {"/tex2pdf/status/{job}", "/tex2pdf/status/a-1", map[string]string{"job": "a-1"}},
		"a slash is not in a segment":    {"/tex2pdf/status/{job}", "/tex2pdf/status/a/b", nil},
		"an empty segment":               {"/tex2pdf/status/{job}", "/tex2pdf/status/", nil},
		"three segments":                 {"/{job:3}/log", "/1/c==/pdf/log", map[string]string{"job": "1/c==/pdf"}},
		"two of three":                   {"/{job:3}", "/1/c", nil},
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
			p, err := ParseTexPath(c.path)
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

func TestTexPathFills(t *testing.T) {
	p, err := ParseTexPath("/project/{p}[/user/{u}]/compile/stop")
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

func TestTexPathRefuses(t *testing.T) {
	for _, s := range []string{"", "x", "/{", "/}", "/]", "/[a", "/[a[b]]", "/{a}/{a}", "/{a...}/b", "/{job...}", "/{a:0}", "/{}", "/{9}", "/a b", "/a%2f", "/a?b"} {
		if p, err := ParseTexPath(s); err == nil {
			t.Errorf("ParseTexPath(%q) = %v", s, p)
		}
	}
}

func TestValidTexJob(t *testing.T) {
	for _, s := range []string{"a", "2f0c-11.x_Y", strings.Repeat("a", 128), "1/c-2/pdf"} {
		if !ValidTexJob(s) {
			t.Errorf("%q is refused", s)
		}
	}
	for _, s := range []string{"", ".", "..", "a/..", "a//b", "a%2fb", "a b", "ä", "a\n", strings.Repeat("a", 129), strings.Repeat("a", 10<<10), strings.Repeat("a/", 9) + "a"} {
		if ValidTexJob(s) {
			t.Errorf("%.20q is taken", s)
		}
	}
}

func TestTexPresetsAreComplete(t *testing.T) {
	for _, name := range TexPresets() {
		s, err := TexService{Name: "x", Preset: name, Upstream: "http://tex:8000"}.Complete()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.MaxUpload != DefaultTexUpload || s.HoldMax != DefaultTexHold || s.Timeout <= 0 {
			t.Errorf("%s: limits are %d, %v, %v", name, s.MaxUpload, s.HoldMax, s.Timeout)
		}
	}
	s, err := TexService{Preset: "rbehzadan", Upstream: "http://x", MaxUpload: 7, Busy: TexAnswer{Status: 503, JSON: "{}"}}.Complete()
	if err != nil || s.MaxUpload != 7 || s.Busy.Status != 503 || s.Poll.Path != "/tex2pdf/status/{job}" {
		t.Errorf("a preset's value won over the description's: %+v, %v", s, err)
	}
}

func TestTexServiceRefuses(t *testing.T) {
	ok := TexService{Preset: "rbehzadan", Upstream: "http://x"}
	for name, c := range map[string]struct {
		change func(*TexService)
		key    string
	}{
		"an unknown preset":             {func(s *TexService) { s.Preset = "tex" }, "preset"},
		"no upstream":                   {func(s *TexService) { s.Upstream = "" }, "upstream"},
		"a password in the URL":         {func(s *TexService) { s.Upstream = "http://a:b@x" }, "upstream"},
		"an unknown mode":               {func(s *TexService) { s.Mode = "both" }, "mode"},
		"a job without an end":          {func(s *TexService) { s.Preset, s.Mode, s.Submit.Path = "", "job", "/x" }, "poll"},
		"a bad path":                    {func(s *TexService) { s.Result.Path = "/{" }, "result.match.path"},
		"a result without its job":      {func(s *TexService) { s.Result.Path = "/x" }, "result.match.path"},
		"a bad method":                  {func(s *TexService) { s.Poll.Methods = []string{"get"} }, "poll.match.methods"},
		"a pick of nothing":             {func(s *TexService) { s.Submit.JobID = []TexPick{{}} }, "submit.jobId[0]"},
		"an end of nothing":             {func(s *TexService) { s.Poll.Terminal = []TexEnd{{Outcome: "ok"}} }, "poll.terminal[0]"},
		"an unknown outcome":            {func(s *TexService) { s.Poll.Terminal = []TexEnd{{Status: []int{404}, Outcome: "x"}} }, "poll.terminal[0]"},
		"a negative wait":               {func(s *TexService) { s.HoldMax = -1 }, "hold.max"},
		"an unknown abandoned":          {func(s *TexService) { s.Abandoned.Mode = "x" }, "abandoned.mode"},
		"an unknown unmatched":          {func(s *TexService) { s.Unmatched = "x" }, "unmatched"},
		"an impossible status":          {func(s *TexService) { s.Busy.Status = 42 }, "busy.status"},
		"a further route of any method": {func(s *TexService) { s.Other = []TexRoute{{Path: "/x"}} }, "other[0].match"},
	} {
		t.Run(name, func(t *testing.T) {
			s := ok
			c.change(&s)
			_, err := s.Complete()
			var e *TexError
			if err == nil {
				t.Fatal("it is taken")
			}
			if e, _ = err.(*TexError); e == nil || e.Key != c.key {
				t.Errorf("error is %v; want key %s", err, c.key)
			}
		})
	}
}
