package pod

import "testing"

func TestAKeyThatStandsTwiceInALogLineIsFound(t *testing.T) {
	for name, tt := range map[string]struct{ log, key string }{
		"in a line":               {`{"msg":"x","pod":"a"}` + "\n" + `{"msg":"swept","pod":"a","idle":1,"pod":0}` + "\n", "pod"},
		"in a group":              {`{"msg":"x","g":{"a":1,"b":[{"a":1},{"a":2}],"a":2}}`, "a"},
		"after a group":           {`{"msg":"x","g":{"a":1},"msg":"y"}`, "msg"},
		"in no line":              {`{"msg":"x","g":{"msg":1},"h":[{"msg":1},{"msg":2}]}` + "\nnot JSON\n{broken\n", ""},
		"in a line that is cut":   {`{"msg":"x","a":1,"a":`, "a"},
		"in a text of such a key": {`{"msg":"\"msg\":\"msg\""}`, ""},
	} {
		if key, _ := doubled(tt.log); key != tt.key {
			t.Errorf("%s: %q", name, key)
		}
	}
}
