package session

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What a server's answer to initialize means is the same over every transport: a
// success never loses its session id, and what is no success leaves nothing behind.
func TestAnAnswerToInitializeMeansTheSameOverEveryTransport(t *testing.T) {
	const success, refused, unusable = "success", "refused", "unusable"
	const result = `"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`
	for _, c := range []struct{ name, answer, want string }{
		{"as it should be", `{"jsonrpc":"2.0","id":1,` + result + `}`, success},
		{"with error null", `{"jsonrpc":"2.0","id":1,` + result + `,"error":null}`, success},
		{"with every member that there is, in another order", `{"error":null,"params":null,` + result + `,"method":null,"id":1,"jsonrpc":"2.0"}`, success},
		{"with its id as a string", `{"jsonrpc":"2.0","id":"1",` + result + `}`, success},
		{"with its id as 1.0", `{"jsonrpc":"2.0","id":1.0,` + result + `}`, success},
		{"behind a byte order mark", "\xef\xbb\xbf" + `{"jsonrpc":"2.0","id":1,` + result + `}`, success},
		{"between blanks and before CR", ` {"jsonrpc":"2.0","id":1,` + result + "} \t\r", success},
		{"an error", `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`, refused},
		{"an error beside a result", `{"jsonrpc":"2.0","id":1,` + result + `,"error":{"code":-1,"message":"no"}}`, refused},
		{"an error with id null", `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}`, refused},
		{"another's result", `{"jsonrpc":"2.0","id":2,` + result + `}`, unusable},
		{"a result without id", `{"jsonrpc":"2.0",` + result + `}`, unusable},
		{"a result without a version", `{"jsonrpc":"2.0","id":1,"result":{}}`, unusable},
		{"no JSON", `Welcome`, unusable},
	} {
		for transport, start := range map[string]func(*testing.T, string, bool) *rig{"stdio": saysOverStdio, "JSON": saysOverHTTP("application/json", ""), "events": saysOverHTTP("text/event-stream", "data: ")} {
			t.Run(c.name+" over "+transport, func(t *testing.T) {
				t.Parallel()
				r := start(t, c.answer, c.want == unusable)
				a := r.do("POST", "", initBody)
				id := a.header.Get("Mcp-Session-Id")
				switch c.want {
				case success:
					if a.status != 200 || id == "" || !strings.Contains(a.body, result) || r.engine.held() != 1 {
						t.Errorf("%+v, %d leases", a, r.engine.held())
					}
				case refused:
					if a.status != 200 || id != "" || !strings.Contains(a.body, `"message":"no"`) || r.engine.held() != 0 {
						t.Errorf("%+v, %d leases", a, r.engine.held())
					}
				case unusable:
					a.want(t, 200, 502, "UPSTREAM_UNAVAILABLE")
					if id != "" || r.engine.held() != 0 {
						t.Errorf("%+v, %d leases", a, r.engine.held())
					}
				}
			})
		}
	}
}

func saysOverStdio(t *testing.T, answer string, silent bool) *rig {
	return stdioRig(t, "", func(r *rig) {
		r.docs.doc.Command = []string{"/bin/sh", "-c", `read -r line; printf '%s\n' "$SAYS"; cat >/dev/null`}
		r.docs.doc.Env = map[string]string{"SAYS": answer}
		if silent {
			r.docs.doc.InitTimeout = time.Second
		}
	})
}

func saysOverHTTP(contentType, before string) func(*testing.T, string, bool) *rig {
	return func(t *testing.T, answer string, _ bool) *rig {
		r := newRig(t)
		r.up.onInit = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Mcp-Session-Id", "s1")
			_, _ = io.WriteString(w, before+answer+"\n\n")
		}
		return r
	}
}
