package docs

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/vancetope/mcp-lease-gateway/"

// floors are the rooms of architecture.md from the ground up: a room may import
// its own floor's sub-rooms and what is below, and nothing else.
var floors = map[string]int{
	"internal/headers": 0, "internal/h1": 0, "internal/httpbody": 0, "internal/loopback": 0, "internal/principal": 0, "internal/quota": 0, "internal/ratelog": 0, "internal/seal": 0, "internal/strictyaml": 0, "internal/egress": 0, "internal/tracing": 0,
	"config": 1, "lease": 2, "session": 3, "texproxy": 3, "gateway": 4, "internal/telemetry": 4, "cmd": 5, "testservers": 6,
}

func floorOf(path string) (room string, floor int, ok bool) {
	for r, f := range floors {
		if (path == r || strings.HasPrefix(path, r+"/")) && len(r) > len(room) {
			room, floor, ok = r, f, true
		}
	}
	return room, floor, ok
}

func TestImportsPointDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		from := strings.TrimPrefix(p.ImportPath, module)
		room, floor, ok := floorOf(from)
		if !ok {
			if len(p.Imports) > 0 {
				t.Errorf("%s is in no room of the architecture", from)
			}
			continue
		}
		packages++
		for _, i := range p.Imports {
			to, inside := strings.CutPrefix(i, module)
			if !inside {
				continue
			}
			toRoom, toFloor, ok := floorOf(to)
			switch {
			case !ok:
				t.Errorf("%s imports %s, which is in no room of the architecture", from, to)
			case room == toRoom:
			case toFloor >= floor:
				t.Errorf("%s imports %s: up or sideways", from, to)
			case from == "gateway" && (toRoom == "lease" || toRoom == "session" || toRoom == "texproxy" || strings.HasPrefix(to, "config/")):
				t.Errorf("gateway itself imports %s; only packages below it may", to)
			case toRoom == "internal/telemetry" && room != "cmd":
				t.Errorf("%s imports %s, which is for cmd only", from, to)
			}
		}
	}
	if packages < 20 {
		t.Errorf("only %d packages were looked at", packages)
	}
}

const (
	longestFunction = 60   // lines, outside tests
	sessionLines    = 3500 // of the root of session, outside tests
	mostMethods     = 25   // of a type there
	mostFields      = 20
)

// Nobody reads a longer function, or a type with more to it, in one go.
func TestTheRoomsStaySmall(t *testing.T) {
	files, lines := 0, 0
	methods := map[string]int{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		if strings.HasPrefix(rel, "testservers/") || strings.HasPrefix(rel, "lease/storetest/") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, text, 0)
		if err != nil {
			return err
		}
		files++
		inSession := filepath.ToSlash(filepath.Dir(rel)) == "session"
		if inSession {
			lines += strings.Count(string(text), "\n")
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if long := set.Position(n.End()).Line - set.Position(n.Pos()).Line + 1; long > longestFunction {
					t.Errorf("%s: %s has %d lines", rel, n.Name.Name, long)
				}
				if inSession && n.Recv != nil {
					methods[receiver(n.Recv.List[0].Type)]++
				}
			case *ast.TypeSpec:
				if st, ok := n.Type.(*ast.StructType); ok && inSession && st.Fields.NumFields() > mostFields {
					t.Errorf("%s: %s has %d fields", rel, n.Name.Name, st.Fields.NumFields())
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines > sessionLines {
		t.Errorf("the root of session has %d lines", lines)
	}
	for name, n := range methods {
		if n > mostMethods {
			t.Errorf("session: %s has %d methods", name, n)
		}
	}
	if files < 100 || methods["Proxy"] == 0 {
		t.Errorf("only %d files were looked at: %v", files, methods)
	}
}

func receiver(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if name, ok := e.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
