package gateway

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config"
)

// publicBase is the address under which clients know this gateway, from the
// configuration alone: a request's Host is the caller's word. Empty where the
// configuration does not say.
func publicBase(c *config.Gateway) string {
	if c.Identity.JWT == nil {
		return ""
	}
	// The audience of a token for an MCP server is the server's address (RFC 8707),
	// so an audience that is an address says where the gateway is.
	if u, err := url.Parse(c.Identity.JWT.Audience); err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	if c.Loopback() {
		scheme := "http"
		if c.TLS.Cert != "" {
			scheme = "https"
		}
		return scheme + "://" + c.Listen
	}
	return ""
}

// resourcePath is the canonical path of an MCP route.
func (r route) resourcePath() string {
	var b strings.Builder
	b.WriteString("/mcp/" + r.tenant + "/" + r.project + "/")
	if r.user != "" {
		b.WriteString("@" + url.PathEscape(r.user) + "/")
	}
	b.WriteString(r.name)
	return b.String()
}

// metadata answers RFC 9728: where a token for this resource comes from.
func (s *Server) metadata(w http.ResponseWriter, rt route) {
	live := s.opt.Live.Load()
	if live.Config.Identity.JWT == nil {
		refuseNothing(w, rt.kind)
		return
	}
	doc := map[string]any{
		"authorization_servers":    []string{live.Config.Identity.JWT.Issuer},
		"bearer_methods_supported": []string{"header"},
		"resource_name":            "mcp-lease-gateway",
		"resource":                 publicBase(live.Config) + rt.resourcePath(),
	}
	body, err := json.Marshal(doc)
	if err != nil { // texts only, so it cannot
		body = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=300")
	w.Header().Set("Access-Control-Allow-Origin", "*") // public, and read by pages before they have a token
	_, _ = w.Write(body)
}

// challenge is the WWW-Authenticate of a 401 or 403.
func (s *Server) challenge(rt route, code string) string {
	live := s.opt.Live.Load()
	parts := []string{`realm="mcp-lease-gateway"`}
	if rt.kind == kindMCP && live.Config.Identity.JWT != nil {
		if base := publicBase(live.Config); base != "" {
			parts = append(parts, `resource_metadata="`+base+metadataPrefix+rt.resourcePath()+`"`)
		}
	}
	if code != "" {
		parts = append(parts, `error="`+code+`"`)
	}
	return "Bearer " + strings.Join(parts, ", ")
}
