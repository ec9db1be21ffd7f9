package texproxy

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

func TestAnEndOverAnArray(t *testing.T) {
	ends := []tex.End{
		{JSON: "/results/*/status", In: []string{"ok"}, Outcome: tex.OK},
		{JSON: "/results/*/status", In: []string{"ok", "failed"}, Outcome: tex.Error},
		{JSON: "/groups/*/jobs/*/done", In: []string{"true"}, Outcome: tex.OK},
		{JSON: "/*", In: []string{"star"}, Outcome: tex.Gone},
	}
	for name, c := range map[string]struct {
		body string
		want tex.Outcome // "" for no end
	}{
		"all have ended well":                {`{"results":[{"status":"ok"},{"status":"ok"}]}`, tex.OK},
		"all have ended, one badly":          {`{"results":[{"status":"ok"},{"status":"failed"}]}`, tex.Error},
		"one runs":                           {`{"results":[{"status":"ok"},{"status":"running"}]}`, ""},
		"one does not say":                   {`{"results":[{"status":"ok"},{}]}`, ""},
		"one says something else":            {`{"results":[{"status":"ok"},{"status":["ok"]}]}`, ""},
		"there are none":                     {`{"results":[]}`, ""},
		"there is no array":                  {`{"results":{"status":"ok"}}`, ""},
		"arrays in an array":                 {`{"groups":[{"jobs":[{"done":true}]},{"jobs":[{"done":true},{"done":true}]}]}`, tex.OK},
		"one of them is empty":               {`{"groups":[{"jobs":[{"done":true}]},{"jobs":[]}]}`, ""},
		"a star is a name where no array is": {`{"*":"star"}`, tex.Gone},
		"an array at the root":               {`["star","star"]`, tex.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			a := &answer{Response: &http.Response{StatusCode: 200}}
			if err := json.Unmarshal([]byte(c.body), &a.json); err != nil {
				t.Fatal(err)
			}
			if got, over := a.ended(ends); got != c.want || over != (c.want != "") {
				t.Errorf("%s ends as %q, %t; want %q", c.body, got, over, c.want)
			}
		})
	}
}
