package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
)

// allowedOrigin judges a browser's Origin: a page may call where the operator
// lists its origin, and pages of this machine may call a gateway that listens on
// loopback only. A request without an Origin comes from no page.
func (s *Server) allowedOrigin(origin string) bool {
	if slices.Contains(s.opt.Config.Origins, origin) {
		return true
	}
	if !s.loopback {
		return false
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && loopback.Host(u.Host)
}

// Headers that a page may send and read across origins. Credentials come in
// headers that the page sets, never as cookies, so they need no permission of
// their own.
const (
	pageMethods = "GET, POST, DELETE, HEAD"
	pageSends   = "Authorization, Content-Type, Accept, X-API-Key, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID, Range, If-None-Match, traceparent, tracestate"
	pageReads   = "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After, X-Request-Id, ETag, Location, " +
		"Accept-Ranges, Content-Disposition, Content-Range"
)

// shareWith lets an allowed page read the answer.
func shareWith(h http.Header, origin string) {
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", pageReads)
	h.Add("Vary", "Origin")
}

// preflight reports whether a browser asks for permission; it does so without a
// credential.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// permit answers a preflight; userHeaders are those by which keys name users.
func permit(w http.ResponseWriter, userHeaders []string) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", pageMethods)
	h.Set("Access-Control-Allow-Headers", pageSends+", "+strings.Join(userHeaders, ", "))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

// fromAnotherSite reports whether a browser sends the request for a page of
// another site without an Origin: an image, a link, a frame.
func fromAnotherSite(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Origin") == ""
}
