package strictyaml

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Variables says what ${…} means. A nil *Variables refuses every ${…} in a
// value: the texts of tenants and projects must not read the gateway's
// environment.
type Variables struct {
	// LookupEnv is os.LookupEnv or a stand-in.
	LookupEnv func(name string) (string, bool)
	// ReadFile reads the file of ${file:PATH}.
	ReadFile func(path string) ([]byte, error)
}

// Refused is what a document reads that may not use variables.
const Refused = "${…} is taken in gateway.yaml and in system and bundled documents only; use {{secret:name}} where a secret is meant"

// A variable in a text is replaced by a mark before the text is parsed, since
// `[${NAME}]` is no YAML, and the mark by its value afterwards. The marks are
// private-use characters, which a text must not hold itself.
const (
	markOpen  = '\uE000'
	markClose = '\uE001'
)

var (
	variableForm = regexp.MustCompile(`\$\{[^}\n]*\}?`)
	envForm      = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}$`)
	fileForm     = regexp.MustCompile(`^\$\{file:([^}]+)\}$`)
	markForm     = regexp.MustCompile(string(markOpen) + `([0-9]+)` + string(markClose))
)

// maxFile bounds what ${file:PATH} reads, in bytes.
const maxFile = 64 << 10

func mark(text string) (marked string, variables []string) {
	marked = variableForm.ReplaceAllStringFunc(text, func(v string) string {
		variables = append(variables, v)
		return string(markOpen) + strconv.Itoa(len(variables)-1) + string(markClose)
	})
	return marked, variables
}

// unmark puts the text of the variables back, for keys and complaints.
func unmark(s string, variables []string) string {
	return markForm.ReplaceAllStringFunc(s, func(m string) string {
		return variables[markIndex(m)]
	})
}

func markIndex(m string) int {
	i, _ := strconv.Atoi(strings.Trim(m, string(markOpen)+string(markClose))) // mark wrote the digits
	return i
}

// expand replaces the marks in a value. The error is a sentence without any
// value.
func (v *Variables) expand(s string, variables []string) (string, error) {
	var failed error
	out := markForm.ReplaceAllStringFunc(s, func(m string) string {
		text, err := v.value(variables[markIndex(m)])
		if err != nil && failed == nil {
			failed = err
		}
		return text
	})
	return out, failed
}

func (v *Variables) value(variable string) (string, error) {
	if v == nil {
		return "", fmt.Errorf("%s", Refused)
	}
	if m := envForm.FindStringSubmatch(variable); m != nil {
		if s, ok := v.LookupEnv(m[1]); ok {
			return s, nil
		}
		if m[2] != "" {
			return m[3], nil
		}
		return "", fmt.Errorf("the environment variable %s is not set; set it, or write ${%s:-default}", m[1], m[1])
	}
	if m := fileForm.FindStringSubmatch(variable); m != nil && v.ReadFile != nil {
		text, err := v.ReadFile(m[1])
		if err != nil {
			return "", fmt.Errorf("the file of ${file:%s} cannot be read: %w", m[1], err)
		}
		if len(text) > maxFile {
			return "", fmt.Errorf("the file of ${file:%s} is longer than %d KiB", m[1], maxFile>>10)
		}
		return strings.TrimRight(string(text), "\r\n"), nil
	}
	return "", fmt.Errorf("%s is not a variable; the forms are ${NAME}, ${NAME:-default} and ${file:PATH}", variable)
}

func (d *Document) expandNode(n *yaml.Node, vars *Variables, variables []string, path string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if markForm.MatchString(key.Value) {
				key.Value = unmark(key.Value, variables)
				d.add(key.Line, join(path, key.Value), "a key must not hold a variable")
			}
			d.expandNode(n.Content[i+1], vars, variables, join(path, key.Value))
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			d.expandNode(item, vars, variables, fmt.Sprintf("%s[%d]", path, i))
		}
	case yaml.ScalarNode:
		if !markForm.MatchString(n.Value) {
			return
		}
		text, err := vars.expand(n.Value, variables)
		if err != nil {
			p := Problem{File: d.File, Line: n.Line, Key: path, What: err.Error()}
			if vars == nil {
				p.Reason = p.What // it says that there are none, and not which is meant
			}
			d.problems = append(d.problems, p)
			d.broken[n], d.brokenAt[path] = true, true
			return
		}
		n.Value = text
		d.expanded[n] = true
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
			n.Tag = "" // a plain ${N} may be a number
		}
	}
}
