package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestScan(t *testing.T) {
	body := []byte(`{"params":{"arguments":{"name":"inner","_meta":{}},"name":"na\u0076igate","_meta":{"progressToken":1e2,"x":[{}]}},"method":"tools\/call","id":9007199254740993,"jsonrpc":"2.0"}`)
	e, err := Scan(body)
	if err != nil {
		t.Fatal(err)
	}
	m := e.One()
	if m.Method != "tools/call" || m.Name != "navigate" || string(m.ID.Of(body)) != "9007199254740993" || string(m.ProgressToken.Of(body)) != "1e2" ||
		string(m.Meta.Of(body)) != `{"progressToken":1e2,"x":[{}]}` || !m.Request() {
		t.Errorf("%+v", m)
	}
	if string(m.All.Of(body)) != string(body) {
		t.Errorf("%s", m.All.Of(body))
	}
}

func TestScanKinds(t *testing.T) {
	for body, want := range map[string]string{
		`{"jsonrpc":"2.0","method":"a"}`:                                     "notification",
		`{"jsonrpc":"2.0","id":"x","method":"a","params":[1]}`:               "request",
		`{"jsonrpc":"2.0","id":1,"result":null}`:                             "response",
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`:       "response",
		" [ {\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n]\t":                     "notification",
		`{"jsonrpc":"2.0","method":"a","x":"\ud800","y":[[],{},"",-0.0e-1]}`: "notification",
	} {
		e, err := Scan([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		got := "request"
		switch m := e.One(); {
		case m.Response():
			got = "response"
		case !m.Request():
			got = "notification"
		}
		if got != want {
			t.Errorf("%s: %s", body, got)
		}
	}
}

func TestScanRefuses(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600)
	for body, want := range map[string]error{
		"":                                      ErrSyntax,
		"{":                                     ErrSyntax,
		"nul":                                   ErrSyntax,
		"{}{}":                                  ErrInvalid,
		`{"jsonrpc":"2.0","method":"a"} x`:      ErrSyntax,
		`{"jsonrpc":"2.0","method":"a",}`:       ErrSyntax,
		`{"jsonrpc":"2.0","method":"a","x":01}`: ErrSyntax,
		`{"jsonrpc":"2.0","method":"a","x":"\x"}`:              ErrSyntax,
		`{"jsonrpc":"2.0","method":"a","x":"\u12g4"}`:          ErrSyntax,
		"{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"x\":\"\n\"}":  ErrSyntax,
		`{"jsonrpc":"2.0","method":"a","x":[1,]}`:              ErrSyntax,
		`{"jsonrpc":"2.0","method":"a","x":[1}`:                ErrSyntax,
		`{"jsonrpc":"2.0","method":"a","x":{1:2}}`:             ErrSyntax,
		`{"jsonrpc":"2.0","method":"a","params":` + deep + `}`: ErrDepth,
		`5`:                                      ErrInvalid,
		`[]`:                                     ErrInvalid,
		`[1]`:                                    ErrInvalid,
		`{"method":"a"}`:                         ErrInvalid,
		`{"jsonrpc":"1.0","method":"a"}`:         ErrInvalid,
		`{"jsonrpc":"2.0"}`:                      ErrInvalid,
		`{"jsonrpc":"2.0","method":1}`:           ErrInvalid,
		`{"jsonrpc":"2.0","method":""}`:          ErrInvalid,
		`{"jsonrpc":"2.0","id":{},"method":"a"}`: ErrInvalid,
		`{"jsonrpc":"2.0","id":null,"method":"a"}`:                                                ErrInvalid,
		`{"jsonrpc":"2.0","result":1}`:                                                            ErrInvalid,
		`{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`:                                          ErrInvalid,
		`{"jsonrpc":"2.0","id":1,"method":"a","result":1}`:                                        ErrInvalid,
		`{"jsonrpc":"2.0","jsonrpc":"2.0","method":"a"}`:                                          ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","id":1,"id":2}`:                                            ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","params":{},"params":{}}`:                                  ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","\u006dethod":"b"}`:                                        ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","METHOD":"b"}`:                                             ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","paramſ":{}}`:                                              ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","params":{"name":"x","name":"y"}}`:                         ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","params":{"n\u0061me":"y"}}`:                               ErrInvalid,
		`{"jsonrpc":"2.0","method":"a","params":{"_meta":{"progressToken":1,"progressToken":2}}}`: ErrInvalid,
	} {
		if _, err := Scan([]byte(body)); !errors.Is(err, want) {
			t.Errorf("%.80s: got %v, want %v", body, err, want)
		}
	}
}

func TestDepthCountsEveryContainer(t *testing.T) {
	at := func(n int) string {
		return `{"jsonrpc":"2.0","method":"a","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	if _, err := Scan([]byte(at(MaxDepth - 1))); err != nil {
		t.Errorf("the deepest allowed: %v", err)
	}
	if _, err := Scan([]byte(at(MaxDepth))); !errors.Is(err, ErrDepth) {
		t.Errorf("one deeper: %v", err)
	}
}

// FuzzScan compares with encoding/json: what one takes for JSON the other does,
// and a message that is accepted has the members that it says.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":"t"}}}`,
		`[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","id":"b","result":{}}]`,
		`{"jsonrpc":"2.0","id":-1.5e+3,"error":{"code":1}}`, `{"jsonrpc":"2.0","m\u0065thod":"x"}`, `{"a":[[{"b":"\ud83d\ude00"}]]}`, "\xff", `"\u00"`, "[[[[", "{}}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := Scan(body)
		plain := bytes.TrimPrefix(body, []byte(bom)) // which clients send and encoding/json refuses
		valid := json.Valid(plain)
		if err == nil && !valid {
			t.Fatalf("took %q for a message", body)
		}
		if errors.Is(err, ErrSyntax) && valid {
			t.Fatalf("took %q for broken", body)
		}
		if err != nil || e.Batch {
			return
		}
		var m map[string]json.RawMessage
		if json.Unmarshal(plain, &m) != nil {
			t.Fatalf("%q is no object", body)
		}
		if id := e.One().ID; !id.None() && !bytes.Equal(id.Of(body), m["id"]) {
			t.Fatalf("id %q, want %q", id.Of(body), m["id"])
		}
		var method string
		_ = json.Unmarshal(m["method"], &method)
		if json.Valid([]byte(`"`+e.One().Method+`"`)) && e.One().Method != method && strings.ToValidUTF8(e.One().Method, "\ufffd") != method {
			t.Fatalf("method %q, want %q", e.One().Method, method)
		}
	})
}

func TestIDs(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{{`1`, `1`, true}, {`1`, `1.0`, false}, {`"1"`, `1`, false}, {`"é"`, `"\u00e9"`, true}, {`"a"`, `"b"`, false}} {
		if (idKey([]byte(c.a)) == idKey([]byte(c.b))) != c.same {
			t.Errorf("%s and %s", c.a, c.b)
		}
	}
}

func TestStream(t *testing.T) {
	for _, c := range []struct {
		in           string
		between, ids bool
	}{
		{"", true, false},
		{"data: x\n\n", true, false},
		{"data: x\r\n\r\n", true, false},
		{"data: x\r\r", true, false},
		{"data: x\n", false, false},
		{"data: x", false, false},
		{"data: x\r\n", false, false},
		{": comment\n\n", true, false},
		{"id: 1\ndata: x\n\n", true, true},
		{"id\n\n", true, true},
		{"idx: 1\n\n", true, false},
		{"xid: 1\n\n", true, false},
		{"data: id: 1\n\n", true, false},
		{"data: x\n\nid", false, false},
		{"data: aaaa\nid: 2\r\n\r\ndata", false, true},
	} {
		for _, step := range []int{1, 2, 3, 1000} {
			var s Stream
			for b := []byte(c.in); len(b) > 0; b = b[min(step, len(b)):] {
				s.Feed(b[:min(step, len(b))])
			}
			if s.Between() != c.between || s.HasIDs() != c.ids {
				t.Errorf("%q by %d: between %v, ids %v", c.in, step, s.Between(), s.HasIDs())
			}
		}
	}
}

func TestEventReader(t *testing.T) {
	in := "\xef\xbb\xbfdata: a\n\n: c\r\n\r\nevent: x\rdata:b\rdata\rdata: c\r\n\r\n" + "id: 1\n\ndata: cut"
	r := NewEventReader(strings.NewReader(in), 1000)
	var raw bytes.Buffer
	var datas []string
	for {
		ev, err := r.Next()
		raw.Write(ev.Raw)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break
		}
		datas = append(datas, string(ev.Data))
	}
	if raw.String() != in {
		t.Errorf("bytes changed: %q", raw.String())
	}
	if got := strings.Join(datas, "|"); got != "a||b\n\nc|" {
		t.Errorf("%q", got)
	}
	if _, err := NewEventReader(strings.NewReader(strings.Repeat("x", 100)), 10).Next(); !errors.Is(err, ErrEventTooLarge) {
		t.Errorf("%v", err)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("data: a\n\nid: 1\r\ndata: b\r\n\r\n"), 3)
	f.Add([]byte("\r\r\n\n: x\r"), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		r := NewEventReader(iotest.OneByteReader(bytes.NewReader(in)), 1<<20)
		var raw []byte
		var follow Stream
		for {
			ev, err := r.Next()
			raw = append(raw, ev.Raw...)
			follow.Feed(ev.Raw)
			if err != nil {
				break
			}
			if !follow.Between() {
				t.Fatalf("an event ended in the middle of one: %q", raw)
			}
		}
		if !bytes.Equal(raw, in) {
			t.Fatalf("%q became %q", in, raw)
		}
	})
}

func TestReadBody(t *testing.T) {
	for _, size := range []int64{-1, 5} {
		b, err := ReadBody(strings.NewReader("12345"), size, 5)
		if err != nil || string(b.B) != "12345" {
			t.Errorf("%v", err)
			continue
		}
		rd := b.Reader()
		b.Free()
		got, err := io.ReadAll(rd)
		if err != nil || string(got) != "12345" {
			t.Errorf("%q, %v", got, err)
		}
		_ = rd.Close()
		if _, err := rd.Read(make([]byte, 1)); err == nil {
			t.Error("read after close")
		}
	}
	for _, c := range []struct {
		body        string
		size, limit int64
		want        error
	}{{"123456", -1, 5, ErrTooLarge}, {"123456", 6, 5, ErrTooLarge}, {"123", 5, 5, io.ErrUnexpectedEOF}} {
		if _, err := ReadBody(strings.NewReader(c.body), c.size, c.limit); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	big := strings.Repeat("x", 3<<20)
	for _, size := range []int64{-1, int64(len(big))} {
		b, err := ReadBody(iotest.HalfReader(strings.NewReader(big)), size, 4<<20)
		if err != nil || string(b.B) != big {
			t.Errorf("%v", err)
			continue
		}
		b.Free()
	}
}

func BenchmarkScan(b *testing.B) {
	body := []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"navigate","arguments":{"url":"http://example.test/page"},"_meta":{"progressToken":7}}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Scan(body); err != nil {
			b.Fatal(err)
		}
	}
}

// A stream of line ends costs what other bytes do.
func BenchmarkLines(b *testing.B) {
	for name, text := range map[string]string{"text": "data: some text of a usual length\n", "x": "x", "CR": "\r", "LF": "\n"} {
		b.Run(name, func(b *testing.B) {
			chunk := []byte(strings.Repeat(text, 128<<10/len(text)))
			b.SetBytes(int64(len(chunk)))
			var s Stream
			for b.Loop() {
				s.Feed(chunk)
			}
		})
	}
}

func TestLineEnd(t *testing.T) {
	for n := range 700 {
		for _, end := range []string{"\r", "\n", "\r\n", ""} {
			if got := lineEnd([]byte(strings.Repeat("x", n) + end + "y")); end == "" && got != n+1 || end != "" && got != n {
				t.Fatalf("behind %d bytes and %q: %d", n, end, got)
			}
		}
	}
}
