package upstream

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// Header names of MCP, in canonical form for direct map access.
const (
	HeaderSession     = "Mcp-Session-Id"
	HeaderProtocol    = "Mcp-Protocol-Version"
	HeaderLastEventID = "Last-Event-Id"
)

// SessionID is a session id that an upstream server made. It opens that session
// to whoever knows it, so it appears in no log and no error.
type SessionID string

// Valid reports whether the id is visible ASCII of a length that a header bears.
func (s SessionID) Valid() bool {
	if len(s) > 16<<10 {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// hopByHop ends at every proxy (RFC 9110, 7.6.1).
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authenticate": true,
	"Proxy-Authorization": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// private is what an upstream must not learn of a client: its credentials, the
// page that it runs in and the way that it came.
var private = map[string]bool{
	"Authorization": true, "Cookie": true, "Origin": true, "Referer": true, "X-Api-Key": true,
	"Forwarded": true, "X-Real-Ip": true, "Via": true,
	// The gateway's own part of the exchange.
	HeaderSession: true, "Host": true, "Content-Length": true, "Expect": true,
	// Answers are read and followed here, so they come as they are.
	"Accept-Encoding": true,
}

// privatePrefix reports whether a header is private with all of its kind.
func privatePrefix(k string) bool {
	switch k[0] {
	case 'X':
		return strings.HasPrefix(k, "X-Vance-") || strings.HasPrefix(k, "X-Forwarded-")
	case 'S':
		return strings.HasPrefix(k, "Sec-Fetch-")
	case 'A':
		return strings.HasPrefix(k, "Access-Control-")
	}
	return false
}

// RequestHeader returns what passes of a client's headers.
func RequestHeader(in http.Header) http.Header {
	out := make(http.Header, 8) // what usually passes, and the smallest map there is
	for k, v := range in {
		if k == "" || hopByHop[k] || private[k] || privatePrefix(k) {
			continue
		}
		out[k] = v
	}
	for _, k := range named(in) {
		delete(out, k)
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = nil // net/http would make one up
	}
	return out
}

// withheld is what a client must not learn of an upstream: how it asks for
// credentials, its cookies, and which pages it trusts; and what an upstream, which
// may be a project's, must not say in the name of the gateway: orders to a browser
// about the gateway's whole origin, and to a web server in front of it, which
// would answer with a file or an address of its own.
var withheld = map[string]bool{
	"Www-Authenticate": true, "Set-Cookie": true, "Set-Cookie2": true, "Authentication-Info": true,
	"Clear-Site-Data": true, "Strict-Transport-Security": true, "Alt-Svc": true, "Public-Key-Pins": true, "Expect-Ct": true,
	"Nel": true, "Report-To": true, "Reporting-Endpoints": true, "Service-Worker-Allowed": true, "Refresh": true,
	"X-Sendfile": true, "X-Lighttpd-Send-File": true,
	HeaderSession: true, "Content-Length": true,
}

func withheldPrefix(k string) bool {
	return strings.HasPrefix(k, "Access-Control-") || strings.HasPrefix(k, "X-Accel-")
}

// CopyResponseHeader copies what passes of an upstream's headers to a client.
// Content-Length is the caller's business.
func CopyResponseHeader(out, in http.Header) {
	// What Connection names is the upstream's own; what is in out already is the
	// gateway's and stays.
	drop := named(in)
	for k, v := range in {
		if hopByHop[k] || withheld[k] || withheldPrefix(k) || slices.Contains(drop, k) {
			continue
		}
		if _, own := out[k]; !own {
			out[k] = v
		}
	}
}

// named lists the headers that Connection calls hop-by-hop.
func named(h http.Header) []string {
	var names []string
	for _, f := range h["Connection"] {
		for name := range strings.SplitSeq(f, ",") {
			if name = textproto.TrimString(name); name != "" {
				names = append(names, http.CanonicalHeaderKey(name))
			}
		}
	}
	return names
}
