package h1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

const head = "POST /mcp/a/b/c?x=1 HTTP/1.1\r\nHost: gateway:8080\r\nContent-Length: 4\r\nX-A: b\r\n\r\n"

func TestScan(t *testing.T) {
	if n, length, v := scan([]byte(head + "body and more")); v != accepted || n != len(head) || length != 4 {
		t.Fatal(n, length, v)
	}
	for i := range len(head) {
		if _, _, v := scan([]byte(head[:i])); v != incomplete {
			t.Errorf("%q: %v", head[:i], v)
		}
	}
	with := func(line string) string { return strings.Replace(head, "X-A: b\r\n", line, 1) }
	for name, text := range map[string]string{
		"another method":              strings.Replace(head, "POST", "PUT", 1),
		"a method in lower case":      strings.Replace(head, "POST", "post", 1),
		"an absolute target":          strings.Replace(head, "/mcp", "http://other/mcp", 1),
		"a target of a star":          strings.Replace(head, "/mcp/a/b/c?x=1", "*", 1),
		"a space in the target":       strings.Replace(head, "/a/", "/a /", 1),
		"a control in the target":     strings.Replace(head, "/a/", "/a\x01/", 1),
		"an old version":              strings.Replace(head, "1.1", "1.0", 1),
		"an odd version":              strings.Replace(head, "1.1", "1.2", 1),
		"bare line ends":              strings.ReplaceAll(head, "\r\n", "\n"),
		"one bare line end":           strings.Replace(head, "X-A: b\r\n", "X-A: b\n", 1),
		"a bare CR":                   with("X-A: b\rc\r\n"),
		"a folded line":               with("X-A: b\r\n c\r\n"),
		"white space before a colon":  with("X-A : b\r\n"),
		"a line without a colon":      with("X-A\r\n"),
		"a line without a name":       with(": b\r\n"),
		"a name that is no token":     with("X(A): b\r\n"),
		"a zero byte":                 with("X-A: b\x00\r\n"),
		"no host":                     strings.Replace(head, "Host: gateway:8080\r\n", "", 1),
		"two hosts":                   with("Host: other\r\n"),
		"an empty host":               strings.Replace(head, "gateway:8080", "", 1),
		"a host with a path":          strings.Replace(head, "gateway:8080", "gateway/x", 1),
		"no length":                   strings.Replace(head, "Content-Length: 4\r\n", "", 1),
		"two lengths":                 with("content-length: 4\r\n"),
		"a list of lengths":           strings.Replace(head, ": 4", ": 4, 4", 1),
		"a signed length":             strings.Replace(head, ": 4", ": +4", 1),
		"a length in base 16":         strings.Replace(head, ": 4", ": 0x4", 1),
		"an empty length":             strings.Replace(head, ": 4", ": ", 1),
		"a length that overflows":     strings.Replace(head, ": 4", ": 18446744073709551620", 1),
		"chunks":                      with("Transfer-Encoding: chunked\r\n"),
		"chunks in capitals":          with("TRANSFER-ENCODING: chunked\r\n"),
		"identity":                    with("Transfer-Encoding: identity\r\n"),
		"a wait for 100":              with("Expect: 100-continue\r\n"),
		"an upgrade":                  with("Upgrade: h2c\r\n"),
		"a connection that closes":    with("Connection: close\r\n"),
		"a connection's own field":    with("Connection: X-A\r\n"),
		"a trailer":                   with("Trailer: X-B\r\n"),
		"the preface of HTTP/2":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"TLS":                         "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"more fields than are looked": strings.Replace(head, "X-A: b\r\n", strings.Repeat("X-A: b\r\n", maxFields), 1),
	} {
		if _, _, v := scan([]byte(text)); v != refused {
			t.Errorf("%s: %v", name, v)
		}
	}
	for name, text := range map[string]string{
		"keep-alive": with("Connection: Keep-Alive\r\n"), "no body": strings.Replace(head, ": 4", ": 0", 1),
		"white space around": with("X-A:\t b \t\r\n"), "an empty value": with("X-A:\r\n"), "a byte above ASCII": with("X-A: \xfc\r\n"),
		"an address of IPv6": strings.Replace(head, "gateway:8080", "[::1]:8080", 1),
	} {
		if n, _, v := scan([]byte(text)); v != accepted || n != len(text) {
			t.Errorf("%s: %d %v", name, n, v)
		}
	}
}

// FuzzScan demands that net/http takes every head that scan accepts, ends it at
// the same byte and reads the same length.
func FuzzScan(f *testing.F) {
	f.Add([]byte(head + "body"))
	f.Add([]byte("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\nPOST /"))
	f.Add([]byte("POST /%zz HTTP/1.1\r\nHost: [\r\nContent-Length: 12\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, length, v := scan(b)
		if v != accepted {
			return
		}
		br := bufio.NewReader(bytes.NewReader(b))
		r, err := http.ReadRequest(br)
		if err != nil {
			// Then the connection goes to net/http, with every byte.
			if _, ok := parse(b[:n], length); ok {
				t.Fatalf("parse takes %q, which net/http does not: %v", b, err)
			}
			return
		}
		if r.Method != "POST" || r.ContentLength != int64(length) || len(r.TransferEncoding) > 0 || r.Close || r.Host == "" || !strings.HasPrefix(r.RequestURI, "/") {
			t.Fatalf("%q is %+v", b, r)
		}
		whole, err := io.ReadAll(r.Body)
		if len(b)-n >= length && (err != nil || !bytes.Equal(whole, b[n:n+length])) {
			t.Fatalf("the body of %q is %q, %v", b, whole, err)
		}
		own, ok := parse(b[:n], length)
		if !ok || own.Host != r.Host || own.RequestURI != r.RequestURI || len(own.Header) != len(r.Header) {
			t.Fatalf("%v %+v %+v", ok, own, r)
		}
	})
}
