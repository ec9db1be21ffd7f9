package tex

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Path is the path of a TeX route: literal text with
//
//	{name}      one segment
//	{job}       one segment, the job's id
//	{name...}   whatever is left of the path, also nothing; last only
//	[…]         an optional part
//
// It matches paths that are cleaned and still escaped. A match says what stands
// in each place and not that it is well formed: see ValidJob and
// ValidName.
type Path struct {
	text  string
	re    *regexp.Regexp
	names []string
	rest  string // the place of {name...}
	parts []pathPart
}

// pathPart is a literal (no name) or a place. Parts of one optional group share
// its number; 0 is none.
type pathPart struct {
	literal string
	name    string
	group   int
}

var (
	placeForm   = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_]{0,31})(\.\.\.)?$`)
	literalForm = regexp.MustCompile(`^[A-Za-z0-9._~!$&'()*+,=:@/-]*$`)
	jobForm     = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9._~=@+-]{1,128}$`)
)

// ParsePath reads a route's path.
func ParsePath(s string) (*Path, error) {
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "[/") {
		return nil, fmt.Errorf("path %q does not begin with /", s)
	}
	r := &pathReader{path: &Path{text: s}, rest: s}
	for r.rest != "" {
		if err := r.next(); err != nil {
			return nil, fmt.Errorf("path %q %w", s, err)
		}
	}
	if r.group != 0 {
		return nil, fmt.Errorf("path %q has [ without ]", s)
	}
	var err error
	r.path.re, err = regexp.Compile("^" + r.re.String() + "$")
	return r.path, err
}

// pathReader reads a path from its start to its end.
type pathReader struct {
	path          *Path
	rest          string // what is still to be read
	re            strings.Builder
	group, groups int // the optional part that is open, and how many there were
}

func (r *pathReader) next() error {
	switch r.rest[0] {
	case '[':
		if r.group != 0 {
			return errors.New("has an optional part inside an optional part")
		}
		r.groups++
		r.group = r.groups
		r.re.WriteString("(?:")
	case ']':
		if r.group == 0 {
			return errors.New("has ] without [")
		}
		r.group = 0
		r.re.WriteString(")?")
	case '}':
		return errors.New("has } without {")
	case '{':
		return r.place()
	default:
		return r.literal()
	}
	r.rest = r.rest[1:]
	return nil
}

func (r *pathReader) literal() error {
	end := strings.IndexAny(r.rest, "{[]}")
	if end < 0 {
		end = len(r.rest)
	}
	text := r.rest[:end]
	if !literalForm.MatchString(text) {
		return errors.New("holds a character that a path may not have unescaped")
	}
	r.re.WriteString(regexp.QuoteMeta(text))
	r.path.parts = append(r.path.parts, pathPart{literal: text, group: r.group})
	r.rest = r.rest[end:]
	return nil
}

func (r *pathReader) place() error {
	inside, after, closed := strings.Cut(r.rest[1:], "}")
	if !closed {
		return errors.New("has { without }")
	}
	m := placeForm.FindStringSubmatch(inside)
	if m == nil {
		return fmt.Errorf("holds {%s}, which is not {name} or {name...}", inside)
	}
	name, takesRest := m[1], m[2] != ""
	switch {
	case slices.Contains(r.path.names, name):
		return fmt.Errorf("names {%s} twice", name)
	case takesRest && (after != "" || name == "job"):
		return errors.New("is wrong: only the last part may be {name...}, and not the job")
	case takesRest:
		r.path.rest = name
		r.re.WriteString("(.*)")
	default:
		r.re.WriteString("([^/]+)")
	}
	r.path.names = append(r.path.names, name)
	r.path.parts = append(r.path.parts, pathPart{name: name, group: r.group})
	r.rest = after
	return nil
}

// String returns the text that was parsed.
func (p *Path) String() string { return p.text }

// Has reports whether the path has a place of this name.
func (p *Path) Has(name string) bool { return slices.Contains(p.names, name) }

// Rest returns the name of the place that takes the rest of the path, or "".
func (p *Path) Rest() string { return p.rest }

// Match returns what stands in the path's places; an absent optional one is
// left out.
func (p *Path) Match(path string) (map[string]string, bool) {
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
func (p *Path) Fill(values map[string]string) (string, error) {
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

// ValidJob reports whether s may stand as a job's id.
func ValidJob(s string) bool { return jobForm.MatchString(s) && s != "." && s != ".." }

// ValidName reports whether s may stand in a named place of a path.
func ValidName(s string) bool { return nameForm.MatchString(s) && s != "." && s != ".." }
