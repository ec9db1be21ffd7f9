package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Document is one parsed YAML document whose root is a mapping.
type Document struct {
	File string
	Root *yaml.Node // nil where the text is no YAML mapping; see Problems

	problems Problems
	warnings Problems
	expanded map[*yaml.Node]bool // came out of a variable: never quoted
	broken   map[*yaml.Node]bool // already complained of
	brokenAt map[string]bool     // and by key
	lines    map[string]int      // by key, for complaints about decoded values
}

// Problems is what is wrong so far, in the order of the file.
func (d *Document) Problems() Problems {
	d.problems.Sort()
	return d.problems
}

// Warnings are the unknown keys that Lenient let pass, and what Warn added.
func (d *Document) Warnings() Problems {
	d.warnings.Sort()
	return d.warnings
}

// Complain adds a problem at a key that was decoded, or at its nearest parent.
// The sentence must quote nothing of the file: those who may not read it are
// told. A key whose variable has no value has been complained of already.
func (d *Document) Complain(key, format string, args ...any) {
	if d.brokenAt[key] {
		return
	}
	d.add(d.Line(key), key, fmt.Sprintf(format, args...))
}

// ComplainAt adds a problem at a line, for what was not decoded.
func (d *Document) ComplainAt(line int, key, what string) { d.add(line, key, what) }

// Warn adds a warning at a key.
func (d *Document) Warn(key, format string, args ...any) {
	d.warnings = append(d.warnings, Problem{File: d.File, Line: d.Line(key), Key: key, What: fmt.Sprintf(format, args...)})
}

// Line is where a key stands, or its nearest parent; 0 where neither does.
func (d *Document) Line(key string) int {
	for key != "" {
		if l, ok := d.lines[key]; ok {
			return l
		}
		i := strings.LastIndexAny(key, ".[")
		if i < 0 {
			break
		}
		key = key[:i]
	}
	return 0
}

// Has reports whether a decoded key stands in the text with a value.
func (d *Document) Has(key string) bool { _, ok := d.lines[key]; return ok }

// add notes a problem whose sentence quotes nothing of the file.
func (d *Document) add(line int, key, what string) {
	d.problems = append(d.problems, Problem{File: d.File, Line: line, Key: key, What: what, Reason: what})
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)

// Parse reads text, which must be exactly one YAML mapping. What is wrong is in
// Problems; Root is nil where there is nothing to decode.
func Parse(file string, text []byte, vars *Variables) *Document {
	d := &Document{File: file, expanded: map[*yaml.Node]bool{}, broken: map[*yaml.Node]bool{}, brokenAt: map[string]bool{}, lines: map[string]int{}}
	if !utf8.Valid(text) {
		d.add(0, "", "the text is not UTF-8")
		return d
	}
	if bytes.ContainsRune(text, markOpen) || bytes.ContainsRune(text, markClose) {
		d.add(0, "", "the text holds the private-use characters U+E000 or U+E001; remove them")
		return d
	}
	marked, variables := mark(string(text))
	root, err := parseOne(marked)
	if err != nil {
		line, what := 0, err.Error()
		if m := yamlLine.FindStringSubmatch(what); m != nil {
			line, _ = strconv.Atoi(m[1]) // "" is 0: the whole file
			what = "this is not YAML: " + m[2]
		}
		// The parser's own words may quote the text.
		d.problems = append(d.problems, Problem{File: d.File, Line: line, What: unmark(what, variables)})
		return d
	}
	if root == nil {
		d.add(0, "", "the text is empty")
		return d
	}
	if root.Kind != yaml.MappingNode {
		d.add(root.Line, "", "a mapping of keys and values is wanted, this is "+kind(root))
		return d
	}
	before := len(d.problems)
	d.refuseTricks(root, "")
	if len(d.problems) > before {
		return d // a text with aliases or duplicate keys has no one meaning
	}
	d.expandNode(root, vars, variables, "")
	d.Root = root
	return d
}

func parseOne(text string) (root *yaml.Node, err error) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var next yaml.Node
	switch err := dec.Decode(&next); {
	case err == nil:
		return nil, fmt.Errorf("yaml: line %d: a second document begins here; one is wanted", next.Line)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind == yaml.ScalarNode && doc.Content[0].ShortTag() == "!!null" {
		return nil, nil
	}
	return doc.Content[0], nil
}

// refuseTricks finds anchors, aliases, merge keys, tags of other types and
// duplicate keys.
func (d *Document) refuseTricks(n *yaml.Node, path string) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.add(n.Line, path, "anchors and aliases are not taken; write the value out")
		return
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.add(n.Line, path, "tags are not taken; write the plain value")
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		seen := make(map[string]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind != yaml.ScalarNode {
				d.add(key.Line, path, "a key must be a word")
				continue
			}
			at := join(path, key.Value)
			if key.ShortTag() == "!!merge" {
				d.add(key.Line, at, "merge keys are not taken; write the values out")
				continue
			}
			if key.Anchor != "" || key.Style&yaml.TaggedStyle != 0 {
				d.add(key.Line, at, "anchors and tags are not taken")
				continue
			}
			if first, dup := seen[key.Value]; dup {
				d.add(key.Line, at, fmt.Sprintf("the key stands twice, first in line %d", first))
				continue
			}
			seen[key.Value] = key.Line
			d.refuseTricks(value, at)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			d.refuseTricks(item, fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// kind names what a node is, for people.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!int", "!!float":
			return "a number"
		case "!!bool":
			return "true or false"
		case "!!null":
			return "empty"
		case "!!timestamp":
			return "a date"
		}
		return "a text"
	}
	return "something else"
}
