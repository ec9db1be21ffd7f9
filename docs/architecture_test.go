package docs

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
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
