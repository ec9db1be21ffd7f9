package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// levelOf is the level of a call that writes a log line, and where in its arguments
// the message stands.
func levelOf(call *ast.CallExpr) (level string, message int) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", 0
	}
	if len(call.Args) >= 3 { // context, slog.LevelWarn, message
		if l, ok := call.Args[1].(*ast.SelectorExpr); ok && strings.HasPrefix(l.Sel.Name, "Level") {
			return map[string]string{"LevelWarn": "WARN", "LevelError": "ERROR"}[l.Sel.Name], 2
		}
	}
	if !isLog(method.X) {
		return "", 0
	}
	switch method.Sel.Name {
	case "Warn":
		return "WARN", 0
	case "Error":
		return "ERROR", 0
	case "WarnContext":
		return "WARN", 1
	case "ErrorContext":
		return "ERROR", 1
	}
	return "", 0
}

// isLog goes by the name of what is called: log, p.opt.Log, q.log().
func isLog(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log"
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	case *ast.CallExpr:
		return isLog(x.Fun)
	}
	return false
}

// messages are the WARN and ERROR messages of the program's source, by level.
func messages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, dir := range []string{"cmd", "config", "gateway", "internal", "lease", "session", "texproxy"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				level, at := levelOf(call)
				if level == "" || at >= len(call.Args) {
					return true
				}
				if lit, ok := call.Args[at].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					found[text] = level
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

var explained = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (WARN|ERROR) \\| ([^|]+) \\| ([^|]+) \\|$")

// Whoever writes a new line of these levels says in the page what it means.
func TestEveryWarningAndErrorOfTheLogIsExplained(t *testing.T) {
	page, err := os.ReadFile("log-messages.md")
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]string{}
	for _, m := range explained.FindAllStringSubmatch(string(page), -1) {
		in[m[1]] = m[2]
	}
	source := messages(t)
	if len(source) < 60 {
		t.Errorf("only %d messages were found", len(source))
	}
	var wrong []string
	for text, level := range source {
		if in[text] != level {
			wrong = append(wrong, "log-messages.md has no row | `"+text+"` | "+level+" | what it means | what to do |")
		}
	}
	for text := range in {
		if source[text] == "" {
			wrong = append(wrong, "log-messages.md explains `"+text+"`, which nobody writes")
		}
	}
	slices.Sort(wrong)
	for _, w := range wrong {
		t.Error(w)
	}
}
