package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// TexPath is the path of a TeX route: literal text with
//
//	{name}      one segment
//	{job}       one segment, the job's id
//	{job:3}     three segments, a job's id in parts
//	{name...}   whatever is left of the path, also nothing; last only
//	[…]         an optional part
//
// It matches paths that are cleaned and still escaped. A match says what stands
// in each place and not that it is well formed: see ValidTexJob and
// ValidTexName.
type TexPath struct {
	text  string
	re    *regexp.Regexp
	names []string
	rest  string // the place of {name...}
	parts []texPart
}

// texPart is a literal (no name) or a place. Parts of one optional group share
// its number; 0 is none.
type texPart struct {
	literal string
	name    string
	group   int
}

var (
	texPlace   = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_]{0,31})(?::([1-9])|(\.\.\.))?$`)
	texLiteral = regexp.MustCompile(`^[A-Za-z0-9._~!$&'()*+,=:@/-]*$`)
	texJob     = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	texName    = regexp.MustCompile(`^[A-Za-z0-9._~=@+-]{1,128}$`)
)

// ParseTexPath reads a route's path.
func ParseTexPath(s string) (*TexPath, error) {
	p := &TexPath{text: s}
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "[/") {
		return nil, fmt.Errorf("path %q does not begin with /", s)
	}
	re := strings.Builder{}
	re.WriteString("^")
	group, groups := 0, 0
	for rest := s; rest != ""; {
		i := strings.IndexAny(rest, "{[]}")
		if i < 0 {
			i = len(rest)
		}
		if i > 0 {
			if !texLiteral.MatchString(rest[:i]) {
				return nil, fmt.Errorf("path %q holds a character that a path may not have unescaped", s)
			}
			re.WriteString(regexp.QuoteMeta(rest[:i]))
			p.parts = append(p.parts, texPart{literal: rest[:i], group: group})
			rest = rest[i:]
			continue
		}
		switch rest[0] {
		case '[':
			if group != 0 {
				return nil, fmt.Errorf("path %q has an optional part inside an optional part", s)
			}
			groups++
			group = groups
			re.WriteString("(?:")
			rest = rest[1:]
		case ']':
			if group == 0 {
				return nil, fmt.Errorf("path %q has ] without [", s)
			}
			group = 0
			re.WriteString(")?")
			rest = rest[1:]
		case '}':
			return nil, fmt.Errorf("path %q has } without {", s)
		case '{':
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return nil, fmt.Errorf("path %q has { without }", s)
			}
			m := texPlace.FindStringSubmatch(rest[1:end])
			if m == nil {
				return nil, fmt.Errorf("path %q: %s is not {name}, {job:3} or {name...}", s, rest[:end+1])
			}
			if slices.Contains(p.names, m[1]) {
				return nil, fmt.Errorf("path %q names {%s} twice", s, m[1])
			}
			rest = rest[end+1:]
			switch {
			case m[3] != "":
				if rest != "" || m[1] == "job" {
					return nil, fmt.Errorf("path %q: only the last part may be {name...}, and not the job", s)
				}
				p.rest = m[1]
				re.WriteString("(.*)")
			case m[2] != "":
				n, _ := strconv.Atoi(m[2])
				re.WriteString("([^/]+" + strings.Repeat("/[^/]+", n-1) + ")")
			default:
				re.WriteString("([^/]+)")
			}
			p.names = append(p.names, m[1])
			p.parts = append(p.parts, texPart{name: m[1], group: group})
		}
	}
	if group != 0 {
		return nil, fmt.Errorf("path %q has [ without ]", s)
	}
	re.WriteString("$")
	var err error
	p.re, err = regexp.Compile(re.String())
	return p, err
}

// String returns the text that was parsed.
func (p *TexPath) String() string { return p.text }

// Has reports whether the path has a place of this name.
func (p *TexPath) Has(name string) bool { return slices.Contains(p.names, name) }

// Rest returns the name of the place that takes the rest of the path, or "".
func (p *TexPath) Rest() string { return p.rest }

// Match returns what stands in the path's places; an absent optional one is
// left out.
func (p *TexPath) Match(path string) (map[string]string, bool) {
	m := p.re.FindStringSubmatch(path)
	if m == nil {
		return nil, false
	}
	values := make(map[string]string, len(p.names))
	for i, name := range p.names {
		if m[i+1] != "" {
			values[name] = m[i+1]
		}
	}
	return values, true
}

// Fill makes the path for these values. An optional part is left out where one
// of its places has no value; elsewhere that is an error.
func (p *TexPath) Fill(values map[string]string) (string, error) {
	drop := map[int]bool{}
	for _, part := range p.parts {
		if part.name != "" && values[part.name] == "" {
			if part.group == 0 {
				return "", fmt.Errorf("path %q: no value for {%s}", p.text, part.name)
			}
			drop[part.group] = true
		}
	}
	var b strings.Builder
	for _, part := range p.parts {
		if part.group != 0 && drop[part.group] {
			continue
		}
		b.WriteString(part.literal)
		b.WriteString(values[part.name])
	}
	return b.String(), nil
}

// ValidTexJob reports whether s may stand as a job's id: one segment or, for an
// id in parts, several.
func ValidTexJob(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if !texJob.MatchString(part) || part == "." || part == ".." {
			return false
		}
	}
	return strings.Count(s, "/") < 9
}

// ValidTexName reports whether s may stand in a named place of a path.
func ValidTexName(s string) bool {
	return texName.MatchString(s) && s != "." && s != ".."
}
