package document

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestEventsSayWhichDocumentsChanged(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want string // of the error, where it is not taken
	}{
		"new and removed documents":       {`{"events":[{"op":"UPSERT","tenantId":"acme","projectId":"_tenant","path":"_vance/a.yaml"},{"op":"DELETE","tenantId":"acme","projectId":"p","path":"b"}]}`, ""},
		"a path that other programs have": {`{"events":[{"op":"UPSERT","tenantId":"acme","projectId":"p","path":"notes/my file.md"}]}`, ""},
		"no events":                       {`{"events":[]}`, ""},
		"another op":                      {`{"events":[{"op":"UPSERT","tenantId":"acme","projectId":"p","path":"a"},{"op":"upsert","tenantId":"acme","projectId":"p","path":"a"}]}`, "events[1]: op"},
		"no tenant":                       {`{"events":[{"op":"UPSERT","projectId":"p","path":"a"}]}`, "events[0]: tenantId"},
		"a tenant that is a path":         {`{"events":[{"op":"UPSERT","tenantId":"../acme","projectId":"p","path":"a"}]}`, "events[0]: tenantId"},
		"no path":                         {`{"events":[{"op":"UPSERT","tenantId":"acme","projectId":"p"}]}`, "events[0]: tenantId"},
		"a path that is too long":         {`{"events":[{"op":"UPSERT","tenantId":"acme","projectId":"p","path":"` + strings.Repeat("a", maxEventPath+1) + `"}]}`, "events[0]: tenantId"},
		"too many events":                 {`{"events":[` + strings.Repeat(`{},`, MaxEvents) + `{}]}`, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			var e Events
			if err := json.Unmarshal([]byte(tt.body), &e); err != nil {
				t.Fatal(err)
			}
			changes, err := e.Changes()
			if tt.want == "" && (err != nil || len(changes) != len(e.Events)) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%d changes, %v", len(changes), err)
			}
		})
	}
}

func TestWhatIsEncodedIsTakenWhateverItsLength(t *testing.T) {
	for name, tt := range map[string]struct {
		n, path, bodies int
	}{
		"nothing":          {0, 1, 1},
		"one":              {1, 10, 1},
		"as many as fit":   {MaxEvents, 20, 1},
		"one more":         {MaxEvents + 1, 20, 2},
		"with long paths":  {5000, maxEventPath - 10, 3},
		"with odd letters": {2000, -maxEventPath + 10, 6}, // each is six bytes in JSON
	} {
		t.Run(name, func(t *testing.T) {
			var changes []Change
			for i := range tt.n {
				letter := "a"
				if tt.path < 0 {
					letter = "<"
				}
				changes = append(changes, Change{Key{"acme", "p", fmt.Sprint(i, strings.Repeat(letter, max(tt.path, -tt.path)-5))}})
			}
			bodies, err := EncodeEvents(changes)
			if err != nil || len(bodies) != tt.bodies {
				t.Fatalf("%d bodies, %v", len(bodies), err)
			}
			var taken []Change
			for _, b := range bodies {
				var e Events
				if err := json.Unmarshal(b, &e); err != nil || len(b) > MaxEventsBody {
					t.Fatalf("%d bytes, %v", len(b), err)
				}
				part, err := e.Changes()
				if err != nil {
					t.Fatal(err)
				}
				taken = append(taken, part...)
			}
			if !slices.Equal(taken, changes) {
				t.Errorf("%d of %d came", len(taken), len(changes))
			}
		})
	}
}
