package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
)

func TestGrammar(t *testing.T) {
	for _, c := range []struct {
		name     string
		is       func(string) bool
		yes, not []string
	}{
		{"a token", isToken[string], []string{"a", "X-One", "!#$%&'*+-.^_`|~09azAZ"}, []string{"", " a", "a ", "a:", "a(", "a\r", "a\x00", "ä", "a\x7f", "a\t"}},
		{"a field value", isFieldValue[string], []string{"", "a", "a b", "a\tb", "\xfc", "a:b"}, []string{" a", "a ", "\ta", "a\t", "a\rb", "a\nb", "a\x00b", "a\x7fb", " "}},
		{"a host", isHost[string], []string{"a", "a:80", "[::1]:8080", "127.0.0.1", "a_b-c.d"}, []string{"", "a:", "a/b", "a b", "a@b", "ä", "[fe80::1%25eth0]", "a,b", "a\r"}},
		{"a target", isTarget[string], []string{"/", "/a?b=c", "//a", "/%zz"}, []string{"", "a", "*", "http://a/", "/a b", "/a\tb", "/\x7f", "/ä", "/a\r\n"}},
		{"a length", func(s string) bool { _, ok := parseLength([]byte(s)); return ok }, []string{"0", "00", "7", "999999"},
			[]string{"", "+1", "-1", "0x1", " 1", "1 ", "1,1", "1_0", "1000000", "18446744073709551620", "１"}},
		{"a framing field", func(s string) bool { return framingOf(s) != notFraming },
			[]string{"Host", "content-length", "CONNECTION", "Transfer-Encoding", "te", "Trailer", "Upgrade", "Expect", "Proxy-Connection", "HTTP2-Settings"},
			[]string{"", "Hos", "Hosts", "Content-Lengtb", "Connectiom", "Accept", "X-Te", "Traileq", "Content-Type", "Transfer-Encodinf"}},
	} {
		for _, s := range c.yes {
			if !c.is(s) {
				t.Errorf("%q is not %s", s, c.name)
			}
		}
		for _, s := range c.not {
			if c.is(s) {
				t.Errorf("%q is %s", s, c.name)
			}
		}
	}
	if n, _ := parseLength([]byte("00120")); n != 120 {
		t.Errorf("00120 is %d", n)
	}
}

func TestLinesAndFields(t *testing.T) {
	for _, c := range []struct {
		text, line string
		n          int
		v          verdict
	}{
		{"a: b\r\nc", "a: b", 6, accepted}, {"\r\n", "", 2, accepted}, {"a", "", 0, incomplete}, {"a\r", "", 0, incomplete}, {"a\n", "", 0, refused}, {"\n", "", 0, refused},
	} {
		if line, n, v := cutLine([]byte(c.text)); string(line) != c.line || n != c.n || v != c.v {
			t.Errorf("%q: %q %d %v", c.text, line, n, v)
		}
	}
	for _, c := range []struct {
		line, name, value string
		ok                bool
	}{
		{"a:b", "a", "b", true}, {"a: \tb \t", "a", "b", true}, {"a:", "a", "", true}, {"a:b:c", "a", "b:c", true},
		{"a", "", "", false}, {":b", "", "", false}, {"a :b", "", "", false}, {" a:b", "", "", false}, {"a:b\rc", "", "", false}, {"a:\x00", "", "", false},
	} {
		name, value, ok := cutField([]byte(c.line))
		if ok != c.ok || ok && (string(name) != c.name || string(value) != c.value) {
			t.Errorf("%q: %q %q %v", c.line, name, value, ok)
		}
	}
}

// FuzzField demands that net/http reads every field that the grammar accepts as
// the grammar does.
func FuzzField(f *testing.F) {
	f.Add("X-A", "b")
	f.Add("x-a!", "\xfc \t b")
	f.Add("a b", "c")
	f.Add("a", "b\r\nc: d")
	f.Fuzz(func(t *testing.T, name, value string) {
		if !isToken(name) || !isFieldValue(value) || framingOf(name) != notFraming {
			return
		}
		line := name + ":" + value
		cut, rest, ok := cutField([]byte(line))
		if !ok || string(cut) != name || string(rest) != value {
			t.Fatalf("%q is %q and %q, %v", line, cut, rest, ok)
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.1\r\nHost: a\r\n" + line + "\r\n\r\n")))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got := r.Header.Values(name); len(r.Header) != 1 || len(got) != 1 || got[0] != value {
			t.Fatalf("%q is %v", line, r.Header)
		}
	})
}

// FuzzChunks demands that net/http reads back what was written in chunks.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("one"), uint16(1))
	f.Add([]byte("0\r\n\r\n"), uint16(5))
	f.Add(bytes.Repeat([]byte("x"), 5000), uint16(4097))
	f.Fuzz(func(t *testing.T, body []byte, size uint16) {
		var b []byte
		for rest := body; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			b = appendChunkEnd(append(appendChunkStart(b, n), rest[:n]...))
			rest = rest[n:]
		}
		b = appendLastChunk(b)
		br := bufio.NewReader(bytes.NewReader(b))
		got, err := io.ReadAll(httputil.NewChunkedReader(br))
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%q, %v", got, err)
		}
		// The reader leaves the line that ends the trailers.
		if end, err := io.ReadAll(br); string(end) != "\r\n" || err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%q follows, %v", end, err)
		}
	})
}
