package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAnswersOfAStream(t *testing.T) {
	long := strings.Repeat(`\"id\":7,{[\\`, 1000)
	for _, c := range []struct {
		name, id, stream string
		waits, begun     bool
	}{
		{"a result", `7`, "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n", false, false},
		{"an error", `7`, "event: message\r\ndata:{ \"error\" : {\"code\":1}, \"id\" : 7 }\r\n\r\n", false, false},
		{"a string id", `"a"`, "data: {\"id\":\"a\",\"result\":1}\n\n", false, false},
		{"a string id that is written otherwise", `"a"`, "data: {\"id\":\"\\u0061\",\"result\":1}\n\n", false, false},
		{"a number that the server writes as a string", `7`, "data: {\"id\":\"7\",\"result\":1}\n\n", false, false},
		{"a number that is written otherwise", `1.0`, "data: {\"id\":1,\"result\":1}\n\n", false, false},
		{"a number that the server has rounded", `9007199254740993`, "data: {\"id\":9007199254740992,\"result\":1}\n\n", false, false},
		{"another request's", `7`, "data: {\"id\":8,\"result\":{}}\n\n", true, false},
		{"the server's own request", `7`, "data: {\"id\":7,\"method\":\"ping\"}\n\n", true, false},
		{"a notification", `7`, "data: {\"method\":\"notifications/progress\",\"params\":{\"id\":7,\"result\":1}}\n\n", true, false},
		{"an id deeper down", `7`, "data: {\"result\":{\"id\":7}}\n\n", true, false},
		{"an id behind a long result", `7`, "data: {\"result\":{\"t\":\"" + long + "\"},\"id\":7}\n\n", false, false},
		{"an id within a text", `7`, "data: {\"result\":\"\\\"id\\\":7\"}\n\n", true, false},
		{"over several lines", `7`, "data: {\"id\":7,\ndata: \"result\":\ndata:[]}\n\n", false, false},
		{"with lines of CR", `7`, "data: {\"id\":7,\rdata: \"result\":[]}\r\r", false, false},
		{"in a batch", `7`, "data: [{\"id\":6,\"result\":[{}]},{\"id\":7,\"result\":{}}]\n\n", false, false},
		{"in an event that has not ended", `7`, "data: {\"id\":7,\"result\":{}}\n", true, true},
		{"in a comment", `7`, ": {\"id\":7,\"result\":{}}\n\n", true, false},
		{"in another field", `7`, "datax: {\"id\":7,\"result\":{}}\n\n", true, false},
		{"behind garbage", `7`, "data: ]]}{\"x\n\ndata: {\"id\":7,\"result\":{}}\n\n", false, false},
		{"behind a byte order mark", `7`, "\xef\xbb\xbfdata: {\"id\":7,\"result\":{}}\n\n", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, step := range []int{1, 2, 3, 7, len(c.stream)} {
				var a Answers
				a.Await([]byte(c.id))
				for s := c.stream; s != ""; {
					n := min(step, len(s))
					a.Feed([]byte(s[:n]))
					s = s[n:]
				}
				if got := a.Waits([]byte(c.id)); got != c.waits || a.Open() != (c.waits && !c.begun) {
					t.Errorf("by %d: waits %v, want %v", step, got, c.waits)
				}
			}
		})
	}
}

func TestIDsThatClientsTakeForTheSame(t *testing.T) {
	for _, c := range []struct {
		asked, answered string
		same            bool
	}{
		{`1`, `1.0`, true}, {`1`, `"1"`, true}, {`"1"`, `1`, true}, {`1`, `1e0`, true}, {`-0`, `0`, false},
		{`9007199254740993`, `9007199254740992`, true}, {`"é"`, `"\u00e9"`, true},
		{`1`, `2`, false}, {`1`, `"1x"`, false}, {`1`, `" 1"`, false}, {`"1_0"`, `10`, false}, {`"0x10"`, `16`, false}, {`"inf"`, `"Inf"`, false}, {`""`, `0`, false}, {`"a"`, `"A"`, false}, {`null`, `0`, false},
	} {
		if AnswersID([]byte(c.asked), []byte(c.answered)) != c.same {
			t.Errorf("%s answered by %s: %v", c.asked, c.answered, !c.same)
		}
	}
}

// Any message is judged as a whole JSON reader judges it.
func TestAnswersAgreesWithAReader(t *testing.T) {
	value := rapid.OneOf(
		rapid.Map(rapid.Int(), func(n int) any { return n }),
		rapid.Map(rapid.StringMatching(`[a-z"\\{}\[\],:é\n]{0,8}`), func(s string) any { return s }),
		rapid.Map(rapid.MapOf(rapid.SampledFrom([]string{"id", "result", "a"}), rapid.Int()), func(m map[string]int) any { return m }),
		rapid.Map(rapid.SliceOf(rapid.Bool()), func(b []bool) any { return b }),
	)
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.MapOf(rapid.SampledFrom([]string{"id", "result", "error", "method", "params", "x\"y"}), value).Draw(t, "message")
		if rapid.Bool().Draw(t, "ours") {
			m["id"] = 7
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		_, method := m["method"]
		_, result := m["result"]
		_, failed := m["error"]
		answered := fmt.Sprint(m["id"]) == "7" && !method && (result || failed)
		var a Answers
		a.Await([]byte("7"))
		stream := "data: " + string(raw) + "\n\n"
		cut := rapid.IntRange(0, len(stream)).Draw(t, "cut")
		a.Feed([]byte(stream[:cut]))
		a.Feed([]byte(stream[cut:]))
		if a.Waits([]byte("7")) == answered {
			t.Fatalf("answered %v by %s", answered, raw)
		}
	})
}

func BenchmarkAnswers(b *testing.B) {
	for name, text := range map[string]string{"image": strings.Repeat("A", 16<<10), "text": strings.Repeat(`a line of text\n`, 1<<10)} {
		b.Run(name, func(b *testing.B) {
			head, part := []byte(`data: {"id":7,"result":{"content":[{"type":"x","data":"`), []byte(text)
			b.SetBytes(int64(len(part)))
			var a Answers
			a.Await([]byte("7"))
			a.Feed(head)
			b.ReportAllocs()
			for b.Loop() {
				a.Feed(part)
			}
		})
	}
}
