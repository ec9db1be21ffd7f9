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
		len(req.TransferEncoding) > 0 || len(req.Trailer) > 0 || req.ContentLength != int64(len(body)) || !isHost(u.Host) || !isHost(host) {
		return false
	}
	target := u.RequestURI()
	if !isTarget(target) {
		return false
	}
	out.WriteString("POST ")
	out.WriteString(target)
	out.WriteString(" HTTP/1.1\r\nHost: ")
	out.WriteString(host)
	out.WriteString("\r\n")
	for name, values := range req.Header {
		if !isToken(name) || framingOf(name) != notFraming {
			return false
		}
		for _, v := range values {
			if !isFieldValue(v) {
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

// address is where a URL's server listens.
func address(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), "80")
}
