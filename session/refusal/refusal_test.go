package refusal

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

func TestARefusalSaysOnceToTryAgain(t *testing.T) {
	f := Lease(&lease.UnavailableError{Why: "the lease store could not be reached; try again"})
	if f.Message != "LEASE_UNAVAILABLE: the lease store could not be reached; try again in about 5 s" {
		t.Error(f.Message)
	}
}

func TestTheGlobalLevelShowsNoFigures(t *testing.T) {
	f := Lease(&lease.BusyError{Resource: "browser", Level: "global", RetryAfter: time.Second})
	body := string(f.Render(nil))
	for _, k := range []string{"cap", "count", "oldestAgeSeconds"} {
		if strings.Contains(body, `"`+k+`"`) {
			t.Errorf("%s in %s", k, body)
		}
	}
}

// A code that a client takes for an HTTP status, or for one of the protocol's own,
// sends it the wrong way.
func TestTheCodeOfBusyIsNobodyElses(t *testing.T) {
	for _, f := range []*Refusal{Lease(&lease.BusyError{Level: "user"}), Limit("limits.perPod", 1)} {
		if f.Code >= -32768 && f.Code <= -32000 || f.Code >= 100 && f.Code < 600 {
			t.Errorf("%d", f.Code)
		}
	}
}

func TestEachFormIsTold(t *testing.T) {
	batch := `[{"jsonrpc":"2.0","id":1,"method":"tools/call"},{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"}]`
	for _, c := range []struct {
		name string
		f    *Refusal
		body string
		want int
		says []string
	}{
		{"an error to a request", UpstreamDown("s", "why"), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, 200, []string{`"id":1,"error"`}},
		{"an error where nobody waits is its status", UpstreamDown("s", "why"), `{"jsonrpc":"2.0","method":"notifications/x"}`, 502, []string{`"id":null,"error"`}},
		{"a status whoever waits", UnknownSession(), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, 404, []string{`"id":1,"error"`}},
		{"a result to a call, an error to the rest", ToldOnce(lease.ReasonIdle, true), batch, 200, []string{`"id":1,"result"`, `"isError":true`, `"id":2,"error"`}},
		{"nothing but a status", Accepted(202), `{"jsonrpc":"2.0","method":"notifications/x"}`, 202, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, err := wire.Scan([]byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			c.f.Write(w, []byte(c.body), env)
			if w.Code != c.want || c.says == nil && w.Body.Len() > 0 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			for _, s := range c.says {
				if !strings.Contains(w.Body.String(), s) {
					t.Errorf("no %s in %s", s, w.Body)
				}
			}
		})
	}
}
