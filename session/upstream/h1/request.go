package h1

import (
	"bytes"
	"net"
	"net/http"
	"net/url"
	"strconv"
)

// appendRequest writes a whole request to out, or reports that net/http has to
// judge it: it refuses what must not be sent, and knows the cases that are rare.
func appendRequest(out *bytes.Buffer, req *http.Request, body []byte) bool {
	u := req.URL
	host := req.Host
	if host == "" {
		host = u.Host
	}
	if req.Method != http.MethodPost || u.Scheme != "http" || u.User != nil || u.Opaque != "" || req.Close ||
		len(req.TransferEncoding) > 0 || len(req.Trailer) > 0 || req.ContentLength != int64(len(body)) || !plainHost(u.Host) || !plainHost(host) {
		return false
	}
	target := u.RequestURI()
	if !visible(target) || target[0] != '/' {
		return false
	}
	out.WriteString("POST ")
	out.WriteString(target)
	out.WriteString(" HTTP/1.1\r\nHost: ")
	out.WriteString(host)
	out.WriteString("\r\n")
	for name, values := range req.Header {
		if !token(name) || framing(name) {
			return false
		}
		for _, v := range values {
			if !fieldValue(v) {
				return false
			}
			out.WriteString(name)
			out.WriteString(": ")
			out.WriteString(v)
			out.WriteString("\r\n")
		}
	}
	out.WriteString("Content-Length: ")
	out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(len(body)), 10))
	out.WriteString("\r\n\r\n")
	out.Write(body)
	return true
}

// framing reports whether a header says where a request ends, to whom it goes
// or what becomes of its connection: these are written here or not at all.
func framing(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Upgrade", "Expect":
		return true
	}
	return false
}

// address is where a URL's server listens.
func address(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), "80")
}

// plainHost reports whether a host, with or without a port, needs no
// translation: neither an international name nor a zone.
func plainHost(host string) bool {
	for i := range len(host) {
		switch c := host[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '-', c == '_', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return host != "" && host[len(host)-1] != ':'
}

// visible reports whether s is ASCII that can stand in a request line.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != ""
}

// tokens marks the bytes of a header's name (RFC 9110, 5.6.2).
var tokens = func() (t [256]bool) {
	for c := range 256 {
		t[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

func token(s string) bool {
	for i := range len(s) {
		if !tokens[s[i]] {
			return false
		}
	}
	return s != ""
}

// fieldValue reports whether v is a header's value without control characters
// and without space around it.
func fieldValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return v == "" || !space(v[0]) && !space(v[len(v)-1])
}

func space(c byte) bool { return c == ' ' || c == '\t' }
