// Package docs_test keeps docs/configuration.md what the code says: it is
// generated from the structs that gateway.yaml and the documents are read into,
// and this test fails where it is stale.
//
//	go test ./docs -update    # write it anew
package docs_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

var update = flag.Bool("update", false, "write configuration.md anew")

// structs are the struct types of a package, by name.
type structs map[string]*structType

type structType struct {
	doc    string
	fields []field
	word   bool // it is a text with a name, such as a mode
}

type field struct {
	key, doc, kind, elem string
	tag                  reflect.StructTag
}

// read parses the structs of folders, with their comments.
func read(t *testing.T, dirs ...string) structs {
	t.Helper()
	out := structs{}
	var names []string
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		names = append(names, found...)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				ts, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				switch kind := ts.Type.(type) {
				case *ast.StructType:
					out[ts.Name.Name] = &structType{doc: g.Doc.Text(), fields: fields(kind)}
				case *ast.Ident:
					out[ts.Name.Name] = &structType{word: kind.Name == "string"}
				}
			}
		}
	}
	return out
}

func fields(st *ast.StructType) []field {
	var out []field
	for _, f := range st.Fields.List {
		if f.Tag == nil || len(f.Names) != 1 {
			continue
		}
		tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
		key := tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		kind, elem := typeName(f.Type)
		if elem != "" && tag.Get("enum") != "" {
			kind, elem = "text", "" // a text with a type of its own
		}
		out = append(out, field{key: key, doc: f.Doc.Text() + f.Comment.Text(), kind: kind, elem: elem, tag: tag})
	}
	return out
}

// typeName says a type as the file's author thinks of it, and the struct that
// it leads to, if any.
func typeName(e ast.Expr) (kind, elem string) {
	switch e := e.(type) {
	case *ast.Ident:
		switch e.Name {
		case "string":
			return "text", ""
		case "bool":
			return "true or false", ""
		case "int", "int64":
			return "number", ""
		case "float64":
			return "number", ""
		case "byte":
			return "byte", ""
		}
		return "", e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.ArrayType:
		kind, elem := typeName(e.Elt)
		if elem != "" {
			return "list", elem
		}
		return "list of " + plural(kind), ""
	case *ast.MapType:
		return "map", ""
	case *ast.SelectorExpr:
		switch e.Sel.Name {
		case "Duration":
			return "duration", ""
		case "Regexp":
			return "regular expression", ""
		case "Node":
			return "text or map", ""
		}
		return "", e.Sel.Name
	}
	return "value", ""
}

func plural(kind string) string {
	if kind == "text" {
		return "texts"
	}
	return kind + "s"
}

// writer prints sections; a struct that several keys lead to has one.
type writer struct {
	t   *testing.T
	all structs
	out strings.Builder
}

func (w *writer) section(level int, path, name string) {
	st := w.all[name]
	if st == nil {
		w.t.Fatalf("%s leads to the struct %s, which was not found", path, name)
	}
	if path != "" {
		fmt.Fprintf(&w.out, "%s `%s`\n\n", strings.Repeat("#", level), path)
		if text := about(name, st.doc); text != "" {
			fmt.Fprintf(&w.out, "%s\n\n", text)
		}
	}
	fmt.Fprintf(&w.out, "| key | value | default | meaning |\n|---|---|---|---|\n")
	var below []field
	for _, f := range st.fields {
		if elem := w.all[f.elem]; elem != nil && elem.word {
			f.kind, f.elem = "text", ""
		}
		fmt.Fprintf(&w.out, "| `%s` | %s | %s | %s |\n", f.key, w.values(f), defaultOf(f), cell(f.doc))
		if f.elem != "" {
			below = append(below, f)
		}
	}
	w.out.WriteString("\n")
	for _, f := range below {
		p := f.key
		if path != "" {
			p = path + "." + f.key
		}
		if f.kind == "list" {
			p += "[]"
		}
		if f.elem == "Route" && f.key != "submit" {
			continue // said once
		}
		if f.elem == "Answer" && f.key != "busy" {
			continue
		}
		w.section(min(level+1, 4), p, f.elem)
	}
}

func (w *writer) values(f field) string {
	kind := f.kind
	if f.elem != "" {
		kind = "map"
		if f.kind == "list" {
			kind = "list of maps"
		}
	}
	if f.tag.Get("form") == "some" {
		kind = "map, or list of maps"
	}
	switch f.tag.Get("form") {
	case "size":
		kind = "size, such as 32MiB"
	case "hex":
		kind = "64 hexadecimal digits"
	case "base64":
		kind = "list of keys in base64"
	}
	if e := f.tag.Get("enum"); e != "" {
		kind = "`" + strings.ReplaceAll(e, ",", "`, `") + "`"
	}
	if lo, hi := f.tag.Get("min"), f.tag.Get("max"); lo != "" || hi != "" {
		switch {
		case hi == "":
			kind += ", at least " + lo
		case lo == "":
			kind += ", at most " + hi
		default:
			kind += ", " + lo + " to " + hi
		}
	}
	if f.tag.Get("secret") != "" {
		kind += ", secret"
	}
	return kind
}

func defaultOf(f field) string {
	switch {
	case f.tag.Get("required") != "":
		return "must be set"
	case f.tag.Get("default") != "":
		return "`" + f.tag.Get("default") + "`"
	}
	return ""
}

// about is a struct's comment without its Go name.
func about(name, doc string) string {
	first, rest, _ := strings.Cut(oneLine(doc), " ")
	if first != name || rest == "" {
		return text(oneLine(doc))
	}
	rest = strings.TrimPrefix(rest, "is ")
	return text(strings.ToUpper(rest[:1]) + rest[1:])
}

// text keeps <name> from being taken for markup.
func text(s string) string { return strings.ReplaceAll(s, "<", "&lt;") }

func cell(doc string) string { return strings.ReplaceAll(text(oneLine(doc)), "|", "\\|") }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func generate(t *testing.T) string {
	w := &writer{t: t, all: read(t, "../config", "../config/tex", "../config/credential")}
	w.out.WriteString(`# Configuration

This page is generated from the structs that the files are read into (` + "`go test ./docs -update`" + `); a test fails where it is stale.
The example to start from is what ` + "`mcp-lease-gateway init`" + ` writes; ` + "`mcp-lease-gateway check`" + ` says what is wrong with a file, with line and key.

Durations are written like ` + "`30s`, `5m`, `1h30m`" + `. Sizes are written like ` + "`32MiB`" + `. In gateway.yaml and in system and bundled documents ` + "`${NAME}`" + ` takes an environment variable (an unset one is an error), ` + "`${NAME:-default}`" + ` has a default, and ` + "`${file:PATH}`" + ` reads a mounted file. Documents of tenants and projects have ` + "`{{secret:name}}`" + ` instead. An unknown key, a wrong type or an impossible value is an error.

` + "`identity`, `egress`, `limits`" + ` and the documents are read anew when they change; the other keys count from the next start. An invalid file keeps the old state, is logged and counted in ` + "`vance_gateway_reload_total{outcome=\"invalid\"}`" + `.

## gateway.yaml

`)
	w.section(2, "", "Gateway")
	fmt.Fprintf(&w.out, "The presets of `tex[].preset` are %s.\n\n", "`"+strings.Join(tex.Presets(), "`, `")+"`")

	server := &writer{t: t, all: read(t, "../config/server")}
	server.all["Auth"], server.all["AuthType"] = w.all["Auth"], w.all["AuthType"]
	server.out.WriteString("## Server documents\n\n`_vance/server-tools/<server>.yaml`: the first match along project → tenant → system → bundled counts, as a whole; `enabled: false` ends the search. Keys that are not here warn.\n\n")
	server.section(2, "", rootOf(t, server.all, "parameters"))
	w.out.WriteString(server.out.String())

	lease := &writer{t: t, all: read(t, "../config/definition")}
	lease.out.WriteString("## Lease documents\n\n`_vance/config/lease/<name>.yaml`: four layers (bundled, system, tenant, project), merged field by field; the most specific layer that may set a field wins. A layer that cannot be read or is not valid, in any field, refuses the lease (LEASE_UNAVAILABLE).\n\n" +
		"| field | layers that may set it |\n|---|---|\n| `levels.global`, `locked` | bundled, system |\n| `resource`, `levels.tenant` | bundled, system, tenant |\n| `levels.project`, `levels.user`, `ttlSeconds`, `waitMs` | all four |\n\nWhere a bundled or system layer sets `levels.global` or locks anything, `resource` is the operators' alone, and a tenant only lowers `levels.tenant`. A field that its layer may not set is ignored, and `check` and `lease definition` say so.\n\n" +
		"`ttlSeconds` defaults to 120 and `waitMs` to 10000; `lease.maxTTL` and `lease.maxWait` of gateway.yaml bound them. No level at all makes a lease that limits nothing.\n\n")
	lease.section(2, "", rootOf(t, lease.all, "levels.global"))
	w.out.WriteString(lease.out.String())

	w.out.WriteString("## Settings documents\n\n`_vance/config/settings.yaml`: a flat map with the cascade project → tenant → system → bundled, setting by setting.\n\n| setting | default | meaning |\n|---|---|---|\n| `tex.lease` | `tex` | the lease of TeX compiles; `none` or empty means no lease |\n")
	return w.out.String()
}

// rootOf is the struct that has a key.
func rootOf(t *testing.T, all structs, key string) string {
	t.Helper()
	for name, st := range all {
		for _, f := range st.fields {
			if f.key == key {
				return name
			}
		}
	}
	t.Fatalf("no struct has the key %s", key)
	return ""
}

func TestTheConfigurationReferenceIsCurrent(t *testing.T) {
	want := generate(t)
	if *update {
		if err := os.WriteFile("configuration.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("configuration.md is stale; run go test ./docs -update\n%s", diff)
	}
}

// TestEveryKeyIsExplained keeps a key without a comment out of the reference.
func TestEveryKeyIsExplained(t *testing.T) {
	for _, dir := range []string{"../config", "../config/server", "../config/definition"} {
		for name, st := range read(t, dir) {
			for _, f := range st.fields {
				// The names of claims explain themselves.
				if strings.TrimSpace(f.doc) == "" && name != "Claims" {
					t.Errorf("%s: %s.%s has no comment", dir, name, f.key)
				}
			}
		}
	}
}

var (
	mdLink = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)
	metric = regexp.MustCompile(`\bvance_[a-z_]+`)
)

// TestLinksLeadSomewhere checks the relative links of every page.
func TestLinksLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../examples/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mdLink.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			}
		}
	}
}

// TestTheMetricsOfTheGuideExist checks the series that the pages name against
// the code.
func TestTheMetricsOfTheGuideExist(t *testing.T) {
	code, err := os.ReadFile("../internal/telemetry/telemetry.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"operations.md", "configuration.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metric.FindAllString(string(text), -1) {
			base := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
			if !strings.Contains(string(code), `"`+base+`"`) {
				t.Errorf("%s names %s, which the code does not have", page, name)
			}
		}
	}
}
