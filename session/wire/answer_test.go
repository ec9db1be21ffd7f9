package wire

import (
	"fmt"
	"strings"
	"testing"
)

func TestReadAnswer(t *testing.T) {
	for _, c := range []struct{ name, id, body, result, failure string }{
		{"a result", `1`, `{"jsonrpc":"2.0","id":1,"result":{}}`, `{}`, ""},
		{"a result beside error null", `1`, `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, `{}`, ""},
		{"a result beside every other member as null", `1`, `{"jsonrpc":"2.0","id":1,"method":null,"params":null,"result":{},"error":null}`, `{}`, ""},
		{"members in another order", `1`, `{"result":{},"id":1,"jsonrpc":"2.0"}`, `{}`, ""},
		{"a member that nobody knows", `1`, `{"x":[{}],"id":1,"result":{}}`, `{}`, ""},
		{"no jsonrpc", `1`, `{"id":1,"result":{}}`, `{}`, ""},
		{"a number as a string", `1`, `{"id":"1","result":{}}`, `{}`, ""},
		{"a string as a number", `"1"`, `{"id":1,"result":{}}`, `{}`, ""},
		{"another spelling", `1`, `{"id":1.0,"result":{}}`, `{}`, ""},
		{"a byte order mark", `1`, "\xef\xbb\xbf{\"id\":1,\"result\":{}}", `{}`, ""},
		{"CRLF and blanks", `1`, "\r\n {\r\n\"id\": 1,\r\n\"result\": {}\r\n} \t\r\n", `{}`, ""},
		{"in a batch", `1`, `[{"method":"x"},{"id":2,"result":3},{"id":1,"result":{}}]`, `{}`, ""},
		{"an escaped key", `1`, `{"\u0069d":1,"result":{}}`, `{}`, ""},
		{"a null result", `1`, `{"id":1,"result":null}`, `null`, ""},
		{"an error", `1`, `{"id":1,"error":{"code":1}}`, "", `{"code":1}`},
		{"an error beside result null", `1`, `{"id":1,"result":null,"error":{"code":1}}`, "", `{"code":1}`},
		{"an error beside a result", `1`, `{"id":1,"result":{},"error":{"code":1}}`, "", `{"code":1}`},
		{"an error without id", `1`, `{"error":{"code":1}}`, "", `{"code":1}`},
		{"an error with id null", `1`, `{"id":null,"error":{"code":1}}`, "", `{"code":1}`},

		{"another's result", `1`, `{"id":2,"result":{}}`, "", ""},
		{"another's error", `1`, `{"id":2,"error":{"code":1}}`, "", ""},
		{"a result without id", `1`, `{"result":{}}`, "", ""},
		{"a result with id null", `1`, `{"id":null,"result":{}}`, "", ""},
		{"a request of the server", `1`, `{"id":1,"method":"ping"}`, "", ""},
		{"a text that is no number", `1`, `{"id":"1x","result":{}}`, "", ""},
		{"two messages", `1`, `{"id":1,"result":{}}{"id":1,"result":{}}`, "", ""},
		{"no JSON", `1`, `{"id":1,"result":`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, ok := ReadAnswer([]byte(c.body), []byte(c.id))
			if ok != (c.result+c.failure != "") || string(a.Result) != c.result || string(a.Error) != c.failure {
				t.Errorf("%v, result %q, error %q", ok, a.Result, a.Error)
			}
			if len(a.Message) > 0 && !strings.Contains(c.body, string(a.Message)) {
				t.Errorf("%q", a.Message)
			}
		})
	}
}

func TestAnswersOfAJSONBody(t *testing.T) {
	long := strings.Repeat(`{\"id\":8},`, 1000)
	for _, c := range []struct {
		name, ids, body string
		foreign, open   bool
	}{
		{"the result", `7`, `{"id":7,"result":{"id":8}}`, false, false},
		{"the error", `7`, `{"error":{"code":1},"id":7}`, false, false},
		{"its id behind a long result", `7`, `{"result":"` + long + `","id":7}`, false, false},
		{"its id as a string", `7`, `{"result":{},"id":"7"}`, false, false},
		{"behind a byte order mark", `7`, "\xef\xbb\xbf {\"id\":7 ,\r\n\"result\":{}}\r\n", false, false},
		{"every member that there is", `7`, `{"id":7,"method":null,"error":null,"result":{}}`, false, false},
		{"an error without an id", `7`, `{"error":{"code":1},"id":null}`, false, true},
		{"both of a batch", `7 "a"`, `[{"id":"a","result":1},{"id":7,"result":1}]`, false, false},
		{"one of a batch", `7 "a"`, `[{"id":"a","result":1}]`, false, true},
		{"another's result", `7`, `{"id":8,"result":{"id":7}}`, true, true},
		{"another's error", `7`, `{"id":8,"error":{"code":1}}`, true, true},
		{"another's id behind a long result", `7`, `{"result":"` + long + `","id":8}`, true, true},
		{"a result without an id", `7`, `{"result":{}}`, true, true},
		{"a result with id null", `7`, `{"id":null,"result":{}}`, true, true},
		{"another's in a batch", `7`, `[{"id":7,"result":1},{"id":8,"result":1}]`, true, false},
		{"no response", `7`, `{"id":7}`, false, true},
		{"half of a response", `7`, `{"id":7,"result":{}`, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, step := range []int{1, 2, 7, len(c.body)} {
				var a Answers
				for id := range strings.FieldsSeq(c.ids) {
					a.Await([]byte(id))
				}
				for s := c.body; s != ""; {
					n := min(step, len(s))
					a.FeedJSON([]byte(s[:n]))
					s = s[n:]
				}
				if a.Foreign() != c.foreign || a.Open() != c.open {
					t.Errorf("by %d: foreign %v, open %v", step, a.Foreign(), a.Open())
				}
			}
		})
	}
	t.Run("an id is known before its result has passed", func(t *testing.T) {
		var a Answers
		a.Await([]byte("7"))
		a.FeedJSON([]byte(`{"jsonrpc":"2.0","id":8,"result":{"con`))
		if !a.Foreign() {
			t.Error("it is not known")
		}
	})
}

func TestABodyThatIsNotUTF8IsRefused(t *testing.T) {
	for _, c := range []string{"\xff", "\xc3\x28", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"} {
		for _, where := range []string{`{"jsonrpc":"2.0","method":"a","params":{"t":"%s"}}`, `{"jsonrpc":"2.0","method":"a%s"}`, `{"jsonrpc":"2.0","method":"a","%s":1}`} {
			if _, err := Scan(fmt.Appendf(nil, where, c)); err == nil || err.Error() != "the body is not UTF-8" {
				t.Errorf("%q in %s: %v", c, where, err)
			}
		}
	}
	if _, err := Scan([]byte(`{"jsonrpc":"2.0","method":"ä\ud800\u0000"}`)); err != nil {
		t.Errorf("escapes of anything: %v", err)
	}
}
