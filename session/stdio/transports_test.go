//go:build linux

package stdio

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

const afterwards = `{"jsonrpc":"2.0","method":"notifications/afterwards"}`

// answerProgram answers each request with the text of its argument, and says
// something else afterwards.
func answerProgram(args []string) {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Print(args[0] + "\n" + afterwards + "\n")
	}
}

// What an answer means is the same over every transport, and what clients make of
// it. The request's id is 1.
func TestAnAnswerMeansTheSameOverEveryTransport(t *testing.T) {
	const success, refused, unusable = "success", "refused", "unusable"
	for _, c := range []struct{ name, answer, want string }{
		{"as it should be", `{"jsonrpc":"2.0","id":1,"result":{}}`, success},
		{"with members in another order", `{"result":{},"id":1,"jsonrpc":"2.0"}`, success},
		{"with members that nobody knows", `{"jsonrpc":"2.0","id":1,"x":[{"id":2}],"result":{}}`, success},
		{"with error null", `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, success},
		{"with error null in front", `{"error":null,"jsonrpc":"2.0","result":{},"id":1}`, success},
		{"with every member that there is", `{"jsonrpc":"2.0","id":1,"method":null,"params":null,"result":{},"error":null}`, success},
		{"without jsonrpc", `{"id":1,"result":{}}`, success},
		{"with its id as a string", `{"jsonrpc":"2.0","id":"1","result":{}}`, success},
		{"with its id as 1.0", `{"jsonrpc":"2.0","id":1.0,"result":{}}`, success},
		{"with its id as 1e0", `{"jsonrpc":"2.0","id":1e0,"result":{}}`, success},
		{"with a result of null", `{"jsonrpc":"2.0","id":1,"result":null}`, success},
		{"behind a byte order mark", "\xef\xbb\xbf" + `{"jsonrpc":"2.0","id":1,"result":{}}`, success},
		{"before CR", `{"jsonrpc":"2.0","id":1,"result":{}}` + "\r", success},
		{"between blanks", ` 	{"jsonrpc":"2.0","id":1,"result":{}}  ` + "\t \r", success},
		{"in a batch", `[{"jsonrpc":"2.0","id":1,"result":{}}]`, success},
		{"an error", `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"x"}}`, refused},
		{"an error beside result null", `{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-1,"message":"x"}}`, refused},
		{"an error beside a result", `{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":-1,"message":"x"}}`, refused},
		{"an error in a text", `{"jsonrpc":"2.0","id":1,"error":"x"}`, refused},
		{"an error with id null", `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"x"}}`, refused},
		{"an error without id", `{"jsonrpc":"2.0","error":{"code":-1,"message":"x"}}`, refused},
		{"another's result", `{"jsonrpc":"2.0","id":2,"result":{}}`, unusable},
		{"another's error", `{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"x"}}`, unusable},
		{"a text that is no number", `{"jsonrpc":"2.0","id":"1 ","result":{}}`, unusable},
		{"a result without id", `{"jsonrpc":"2.0","result":{}}`, unusable},
		{"a result with id null", `{"jsonrpc":"2.0","id":null,"result":{}}`, unusable},
		{"a request with the same id", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, unusable},
		{"no object", `"result"`, unusable},
		{"no JSON", `Listening on port 1`, unusable},
		{"half of it", `{"jsonrpc":"2.0","id":1,"result":{}`, unusable},
	} {
		t.Run(c.name, func(t *testing.T) {
			for transport, ask := range map[string]func(*testing.T, string) []byte{
				"stdio": overStdio, "JSON": overHTTP("application/json", ""), "events": overHTTP("text/event-stream", "data: "),
			} {
				got := unusable
				if a, ok := wire.ReadAnswer(ask(t, c.answer), []byte("1")); ok && a.Error != nil {
					got = refused
				} else if ok {
					got = success
				}
				if got != c.want {
					t.Errorf("%s: %s, want %s", transport, got, c.want)
				}
			}
		})
	}
}

const question = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

func overStdio(t *testing.T, answer string) []byte {
	t.Helper()
	p, err := Start(t.Context(), Command{Args: program(t, "answer", answer)})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBridge(p, BridgeOptions{})
	defer func() { _ = b.Close(context.Background()) }()
	return firstMessage(t, b.RoundTrip)
}

func overHTTP(contentType, before string) func(*testing.T, string) []byte {
	return func(t *testing.T, answer string) []byte {
		t.Helper()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, before+answer+"\n\n")
		}))
		defer s.Close()
		policy, err := egress.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		c := upstream.NewClient(func() *egress.Policy { return policy })
		defer c.CloseIdle()
		return firstMessage(t, func(r *http.Request) (*http.Response, error) {
			r.URL.Host = strings.TrimPrefix(s.URL, "http://")
			return c.Do(r, false)
		})
	}
}

// firstMessage asks and returns the first message of the answer.
func firstMessage(t *testing.T, roundTrip func(*http.Request) (*http.Response, error)) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://server.test/", strings.NewReader(question))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := roundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get("Content-Type") == "application/json" {
		all, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	ev, err := wire.NewEventReader(resp.Body, 1<<20).Next()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(ev.Data, []byte(afterwards)) {
		return nil // the server's answer was not taken for one
	}
	return ev.Data
}
