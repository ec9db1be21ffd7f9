package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// stream is a connection from which in is read.
type stream struct {
	net.Conn
	in io.Reader
}

func (s stream) Read(p []byte) (int, error) { return s.in.Read(p) }

// readAll reads what net/http takes of a guarded stream, up to the first that it
// refuses, and says where each ended.
func readAll(g *framingGuard, limit int) (targets []string, ends []int64, err error) {
	counted := &counter{r: g}
	br := bufio.NewReader(counted)
	for range limit {
		r, err := http.ReadRequest(br)
		if err != nil {
			return targets, ends, err
		}
		targets = append(targets, r.RequestURI)
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return targets, ends, err
		}
		ends = append(ends, counted.n-int64(br.Buffered()))
	}
	return targets, ends, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

const next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n"

func TestTheSecondFramingFieldIsSpoiled(t *testing.T) {
	head := func(lines ...string) string {
		return "POST /one HTTP/1.1\r\nHost: a\r\n" + strings.Join(append(lines, "\r\n"), "\r\n")
	}
	for name, c := range map[string]struct{ text, want string }{
		"a length":                       {head("Content-Length: 3") + "abc" + next, "/one /next"},
		"no length":                      {head("X: y") + next, "/one /next"},
		"a length of zero":               {head("Content-Length: 0") + next, "/one /next"},
		"chunks":                         {head("Transfer-Encoding: chunked") + "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n" + next, "/one /next"},
		"chunks with trailers":           {head("Transfer-Encoding: Chunked") + "3\r\nabc\r\n0\r\nContent-Length: 5\r\nA: b\r\n\r\n" + next, "/one /next"},
		"a body that looks like a head":  {head("Content-Length: 38") + "\r\nContent-Length: 1\r\nContent-Length: 2" + next, "/one /next"},
		"a chunk that looks like a head": {head("Transfer-Encoding: chunked") + "16\r\n\nContent-Length: 1\r\n\r\n\r\n0\r\n\r\n" + next, "/one /next"},
		"line ends after a body":         {head("Content-Length: 3") + "abc" + next, "/one /next"},
		"a length in a value":            {head("X: Content-Length: 3", "Content-Length: 3") + "abc" + next, "/one /next"},
		"a length in a folded value":     {head("X: y", " Content-Length: 3", "Content-Length: 3") + "abc" + next, "/one /next"},
		"chunks and a length":            {head("Transfer-Encoding: chunked", "Content-Length: 3") + "0\r\n\r\n" + next, ""},
		"a length and chunks":            {head("Content-Length: 3", "Transfer-Encoding: chunked") + "0\r\n\r\n" + next, ""},
		"the same length twice":          {head("Content-Length: 3", "Content-Length: 3") + "abc" + next, ""},
		"two lengths in other cases":     {head("content-length: 3", "CONTENT-LENGTH: 3") + "abc" + next, ""},
		"chunked twice":                  {head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + "0\r\n\r\n" + next, ""},
		"chunks and a length between":    {head("TRANSFER-ENCODING:chunked", "X: y", "cOntent-length:3") + "0\r\n\r\n" + next, ""},
		"a folded length":                {head("Content-Length:", " 3") + "abc" + next, ""},
		"a length that is continued":     {head("Content-Length: 3", "\t1") + strings.Repeat("a", 31) + next, ""},
		"folded chunks":                  {head("Transfer-Encoding:", " chunked") + "0\r\n\r\n" + next, ""},
		"chunks of HTTP/1.0":             {strings.Replace(head("Transfer-Encoding: chunked", "Connection: keep-alive"), "HTTP/1.1", "HTTP/1.0", 1) + "0\r\n\r\n" + next, ""},
		"bare line ends":                 {strings.ReplaceAll(head("Transfer-Encoding: chunked", "Content-Length: 3"), "\r\n", "\n") + "0\r\n\r\n" + next, ""},
		"the second of two requests":     {head("Content-Length: 3") + "abc" + head("Content-Length: 3", "Transfer-Encoding: chunked") + "0\r\n\r\n" + next, "/one"},
		"a length without end":           {head("Content-Length: 99999999999999999999") + next, ""},
		"a signed length":                {head("Content-Length: +3") + "abc" + next, ""},
		"a chunk size without end":       {head("Transfer-Encoding: chunked") + "ffffffffffffffffff\r\n" + next, "/one"},
		"a chunk size that is none":      {head("Transfer-Encoding: chunked") + "g\r\n" + next, "/one"},
	} {
		for kind, reader := range map[string]func(io.Reader) io.Reader{
			"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader,
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				got, _, err := readAll(&framingGuard{Conn: stream{in: reader(strings.NewReader(c.text))}}, 3)
				if s := strings.Join(got, " "); s != c.want {
					t.Errorf("net/http takes %q, want %q: %v", s, c.want, err)
				}
				if c.want == "/one /next" && !errors.Is(err, io.EOF) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// FuzzFraming: whatever comes, the guard and net/http agree on where each request
// ends, and none has two framing fields.
func FuzzFraming(f *testing.F) {
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + next))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nA: b\r\n\r\n" + next))
	f.Add([]byte("POST / HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nContent-Length: 5\n\n0\r\n\r\n" + next))
	f.Add([]byte("POST / HTTP/1.0\r\nContent-Length:\r\n 5\r\n\r\nabcde\r\n\r\n" + next))
	f.Fuzz(func(t *testing.T, text []byte) {
		seen := &starts{in: bytes.NewReader(text)}
		seen.guard = &framingGuard{Conn: stream{in: seen}}
		_, ends, err := readAll(seen.guard, 8)
		if err == nil {
			return
		}
		for _, end := range ends {
			if !slices.Contains(seen.at, end) {
				t.Fatalf("net/http ends a request of %q at %d, the guard ends them at %v", text, end, seen.at)
			}
		}
	})
}

// starts gives a byte at a time, and notes before which ones the guard waits for a
// request.
type starts struct {
	in    io.Reader
	guard *framingGuard
	n     int64
	at    []int64
}

func (s *starts) Read(p []byte) (int, error) {
	if s.guard.at == atStart {
		s.at = append(s.at, s.n)
	}
	n, err := s.in.Read(p[:min(1, len(p))])
	s.n += int64(n)
	return n, err
}
