package strictyaml

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Mode says what an unknown key is.
type Mode int

// An unknown key is a problem in Strict and Exact mode, and a warning in Lenient
// mode, for documents of another system that has more keys. A key without a
// value counts as absent, except in Exact mode, where it may be a value that got
// lost.
const (
	Strict Mode = iota
	Lenient
	Exact
)

// Decode fills *v, a struct, from d. Problems are added to d; a field whose
// value is wrong keeps its default. Fields carry tags:
//
//	yaml:"key"       the key; "a.b" stands in a mapping below a; "-" is no key
//	default:"text"   the value where the key is absent, in the form of the file
//	required:"true"  the key must be there
//	enum:"a,b"       the texts that are taken
//	min:"1" max:"9"  bounds of a number or duration
//	form:"size"      an int64 in bytes, written like 32MiB
//	form:"hex"       a [32]byte as 64 hexadecimal digits
//	form:"base64"    [][]byte, each 32 bytes in base64
//	form:"some"      a list of mappings, or one of them without the list
//	secret:"true"    complaints never quote the value
//
// Fields may be strings, bools, ints, float64, time.Duration, *regexp.Regexp,
// *yaml.Node (left as it is), structs, and pointers, slices and maps of these.
func Decode(d *Document, v any, mode Mode) {
	rv := reflect.ValueOf(v).Elem()
	setDefaults(rv)
	if d.Root != nil {
		(&decoder{d, mode}).structure(d.Root, rv, "")
	}
}

// DecodeNode is Decode for a part of a document that stands at path.
func DecodeNode(d *Document, n *yaml.Node, path string, v any, mode Mode) {
	rv := reflect.ValueOf(v).Elem()
	setDefaults(rv)
	(&decoder{d, mode}).structure(n, rv, path)
}

// Defaults sets the defaults of *v as Decode does.
func Defaults(v any) { setDefaults(reflect.ValueOf(v).Elem()) }

type decoder struct {
	*Document
	mode Mode
}

// field is a struct field under the rest of its dotted key.
type field struct {
	key   []string
	value reflect.Value
	tag   reflect.StructTag
}

func fieldsOf(rv reflect.Value) []field {
	var out []field
	t := rv.Type()
	for i := range t.NumField() {
		key := t.Field(i).Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		out = append(out, field{strings.Split(key, "."), rv.Field(i), t.Field(i).Tag})
	}
	return out
}

func setDefaults(rv reflect.Value) {
	for _, f := range fieldsOf(rv) {
		if f.value.Kind() == reflect.Struct {
			setDefaults(f.value)
			continue
		}
		text, ok := f.tag.Lookup("default")
		if !ok {
			continue
		}
		if what := setScalar(f.value, text, f.tag); what != "" {
			panic("strictyaml: the default of " + f.tag.Get("yaml") + ": " + what) // a slip in our own code
		}
	}
}

func (d *decoder) structure(n *yaml.Node, rv reflect.Value, path string) {
	d.fields(n, fieldsOf(rv), path)
}

// fields decodes a mapping into the fields whose keys begin here.
func (d *decoder) fields(n *yaml.Node, fields []field, path string) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, path, "a mapping of keys and values")
		return
	}
	present := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		var here []field
		for _, f := range fields {
			if f.key[0] == key.Value {
				here = append(here, field{f.key[1:], f.value, f.tag})
			}
		}
		if len(here) == 0 {
			d.unknown(key, at, fields)
			continue
		}
		if d.mode != Exact && value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null" && !d.expanded[value] {
			continue
		}
		present[key.Value] = true
		d.lines[at] = key.Line
		if len(here[0].key) > 0 {
			d.fields(value, here, at)
			continue
		}
		d.value(value, here[0].value, here[0].tag, at)
	}
	for _, f := range fields {
		if len(f.key) == 1 && f.tag.Get("required") == "true" && !present[f.key[0]] {
			d.add(n.Line, join(path, f.key[0]), "this key is required")
		}
	}
}

func (d *decoder) unknown(key *yaml.Node, at string, fields []field) {
	var known []string
	for _, f := range fields {
		if !slices.Contains(known, f.key[0]) {
			known = append(known, f.key[0])
		}
	}
	what := "unknown key; known here are " + strings.Join(known, ", ")
	if d.mode == Lenient {
		d.warnings = append(d.warnings, Problem{File: d.File, Line: key.Line, Key: at, What: "unknown key, it has no effect here"})
		return
	}
	d.add(key.Line, at, what)
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	regexpType   = reflect.TypeFor[*regexp.Regexp]()
	nodeType     = reflect.TypeFor[*yaml.Node]()
)

func (d *decoder) value(n *yaml.Node, rv reflect.Value, tag reflect.StructTag, path string) {
	if d.broken[n] {
		return
	}
	d.lines[path] = n.Line
	switch {
	case rv.Type() == nodeType:
		rv.Set(reflect.ValueOf(n))
	case rv.Type() == regexpType:
		d.scalar(n, rv, tag, path)
	case rv.Kind() == reflect.Pointer:
		p := reflect.New(rv.Type().Elem())
		if p.Elem().Kind() == reflect.Struct {
			setDefaults(p.Elem())
		}
		before := len(d.problems)
		d.value(n, p.Elem(), tag, path)
		if len(d.problems) == before || p.Elem().Kind() == reflect.Struct {
			rv.Set(p)
		}
	case rv.Kind() == reflect.Struct:
		d.structure(n, rv, path)
	case rv.Kind() == reflect.Slice && rv.Type().Elem().Kind() != reflect.Uint8:
		d.list(n, rv, tag, path)
	case rv.Kind() == reflect.Map:
		d.mapping(n, rv, tag, path)
	default:
		d.scalar(n, rv, tag, path)
	}
}

func (d *decoder) list(n *yaml.Node, rv reflect.Value, tag reflect.StructTag, path string) {
	if tag.Get("form") == "some" && n.Kind == yaml.MappingNode {
		e := reflect.New(rv.Type().Elem()).Elem()
		setDefaults(e)
		d.value(n, e, tag, path)
		rv.Set(reflect.Append(reflect.MakeSlice(rv.Type(), 0, 1), e))
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, path, "a list")
		return
	}
	out := reflect.MakeSlice(rv.Type(), 0, len(n.Content))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		e := reflect.New(rv.Type().Elem()).Elem()
		if e.Kind() == reflect.Struct {
			setDefaults(e)
		}
		d.value(item, e, tag, at)
		out = reflect.Append(out, e)
	}
	rv.Set(out)
}

func (d *decoder) mapping(n *yaml.Node, rv reflect.Value, tag reflect.StructTag, path string) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, path, "a mapping of keys and values")
		return
	}
	out := reflect.MakeMapWithSize(rv.Type(), len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		e := reflect.New(rv.Type().Elem()).Elem()
		d.value(n.Content[i+1], e, tag, join(path, key.Value))
		out.SetMapIndex(reflect.ValueOf(key.Value), e)
	}
	rv.Set(out)
}

func (d *decoder) scalar(n *yaml.Node, rv reflect.Value, tag reflect.StructTag, path string) {
	want := wants(rv, tag)
	if n.Kind != yaml.ScalarNode {
		d.wrong(n, path, want)
		return
	}
	if !d.expanded[n] {
		ok := true
		switch tagName := n.ShortTag(); {
		case tagName == "!!null":
			ok = false
		case tag.Get("form") == "hex" || tag.Get("form") == "base64":
			// A hash of digits only looks like a number, and is none.
		case rv.Type() == durationType || rv.Kind() == reflect.String || rv.Type() == regexpType:
			ok = tagName == "!!str" || rv.Type() == durationType && n.Value == "0"
		case tag.Get("form") == "size":
			ok = tagName == "!!str" || tagName == "!!int"
		case rv.Kind() == reflect.Bool:
			ok = tagName == "!!bool"
		case rv.CanInt():
			ok = tagName == "!!int"
		case rv.CanFloat():
			ok = tagName == "!!int" || tagName == "!!float"
		}
		if !ok {
			d.wrong(n, path, want)
			return
		}
	} else if n.ShortTag() == "!!null" && rv.Kind() != reflect.String {
		d.add(n.Line, path, "the variable is empty; "+want+" is wanted")
		return
	}
	if reason := setScalar(rv, n.Value, tag); reason != "" {
		what := reason
		if !d.expanded[n] && tag.Get("secret") != "true" && n.Value != "" && len(n.Value) <= 40 {
			what = strconv.Quote(n.Value) + ": " + what
		}
		d.problems = append(d.problems, Problem{File: d.File, Line: n.Line, Key: path, What: what, Reason: reason})
	}
}

func (d *decoder) wrong(n *yaml.Node, path, want string) {
	what := want + " is wanted, this is " + kind(n)
	if n.Kind == yaml.ScalarNode && strings.HasPrefix(want, "a text") && n.ShortTag() != "!!null" {
		what += "; put it in quotes"
	}
	if want == "a duration such as 30s" && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
		what = "a duration needs its unit, such as 30s or 5m"
	}
	d.add(n.Line, path, what)
}

func wants(rv reflect.Value, tag reflect.StructTag) string {
	switch {
	case tag.Get("form") == "size":
		return "a size such as 32MiB"
	case tag.Get("form") == "hex":
		return "64 hexadecimal digits"
	case tag.Get("form") == "base64":
		return "32 bytes in base64"
	case rv.Type() == durationType:
		return "a duration such as 30s"
	case rv.Kind() == reflect.Bool:
		return "true or false"
	case rv.CanInt():
		return "a whole number"
	case rv.CanFloat():
		return "a number"
	}
	return "a text"
}

var (
	wholeForm = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,17})$`) // 010 is 8 to some readers
	sizeForm  = regexp.MustCompile(`^([0-9]{1,12})(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?$`)
	units     = map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
		"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
)

// setScalar sets rv from the text of a value and returns what is wrong with it,
// without quoting it.
func setScalar(rv reflect.Value, text string, tag reflect.StructTag) (wrong string) {
	switch {
	case tag.Get("form") != "":
		return setForm(rv, text, tag)
	case rv.Type() == durationType:
		dur, err := time.ParseDuration(text)
		if err != nil {
			return "a duration is wanted, such as 30s or 5m"
		}
		return setDuration(rv, dur, tag)
	case rv.Type() == regexpType:
		re, err := regexp.Compile(text)
		if err != nil {
			what := "this is not a regular expression"
			var se *syntax.Error
			if errors.As(err, &se) {
				what += ": " + se.Code.String() // and not the expression
			}
			return what
		}
		rv.Set(reflect.ValueOf(re))
	case rv.Kind() == reflect.String:
		if enum := tag.Get("enum"); enum != "" && !slices.Contains(strings.Split(enum, ","), text) {
			return "one of " + strings.ReplaceAll(enum, ",", ", ") + " is wanted"
		}
		if tag.Get("required") == "true" && text == "" {
			return "it must not be empty"
		}
		rv.SetString(text)
	case rv.Kind() == reflect.Bool:
		if text != "true" && text != "false" {
			return "true or false is wanted"
		}
		rv.SetBool(text == "true")
	case rv.CanInt():
		if !wholeForm.MatchString(text) {
			return "a whole number in plain digits is wanted"
		}
		n, _ := strconv.ParseInt(text, 10, 64) // the form bounds it
		return setBounded(rv, n, tag)
	case rv.CanFloat():
		return setFloat(rv, text, tag)
	default:
		panic("strictyaml: no way to decode " + rv.Type().String())
	}
	return ""
}

// setForm is setScalar for a value that is written in a form of its own.
func setForm(rv reflect.Value, text string, tag reflect.StructTag) (wrong string) {
	switch form := tag.Get("form"); form {
	case "hex":
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != rv.Len() {
			return fmt.Sprintf("%d hexadecimal digits are wanted", 2*rv.Len())
		}
		reflect.Copy(rv, reflect.ValueOf(raw))
	case "base64":
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(raw) != 32 {
			return "32 bytes in base64 are wanted, such as `openssl rand -base64 32` prints"
		}
		rv.SetBytes(raw)
	case "size":
		m := sizeForm.FindStringSubmatch(text)
		if m == nil {
			return "a size is wanted, such as 32MiB"
		}
		n, _ := strconv.ParseInt(m[1], 10, 64) // the form bounds it
		if n > math.MaxInt64/units[m[2]] {
			return "the size is too large"
		}
		return setBounded(rv, n*units[m[2]], tag)
	default:
		panic("strictyaml: no way to decode the form " + form)
	}
	return ""
}

func setFloat(rv reflect.Value, text string, tag reflect.StructTag) (wrong string) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return "a number is wanted"
	}
	if lo, err := strconv.ParseFloat(tag.Get("min"), 64); err == nil && f < lo {
		return "at least " + tag.Get("min") + " is wanted"
	}
	if hi, err := strconv.ParseFloat(tag.Get("max"), 64); err == nil && f > hi {
		return "at most " + tag.Get("max") + " is wanted"
	}
	rv.SetFloat(f)
	return ""
}

func setBounded(rv reflect.Value, n int64, tag reflect.StructTag) string {
	if lo, err := strconv.ParseInt(tag.Get("min"), 10, 64); err == nil && n < lo {
		return "at least " + tag.Get("min") + " is wanted"
	}
	if hi, err := strconv.ParseInt(tag.Get("max"), 10, 64); err == nil && n > hi {
		return "at most " + tag.Get("max") + " is wanted"
	}
	if rv.OverflowInt(n) {
		return "the number is too large"
	}
	rv.SetInt(n)
	return ""
}

func setDuration(rv reflect.Value, dur time.Duration, tag reflect.StructTag) string {
	if lo, err := time.ParseDuration(tag.Get("min")); err == nil && dur < lo {
		return "at least " + tag.Get("min") + " is wanted"
	}
	if hi, err := time.ParseDuration(tag.Get("max")); err == nil && dur > hi {
		return "at most " + tag.Get("max") + " is wanted"
	}
	rv.SetInt(int64(dur))
	return ""
}
