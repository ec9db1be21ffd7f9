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
func (s *Server) publicBase(j *config.JWT) string {
	if p := s.opt.Config.PublicURL; p != "" {
		return strings.TrimRight(p, "/")
	}
	// The audience of a token for an MCP server is the server's address (RFC 8707),
	// so an audience that is an address says where the gateway is.
	if u, err := url.Parse(j.Audience); err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	if !s.loopback {
		return ""
	}
	if s.opt.Certificate != nil {
		return "https://" + s.ClientAddr()
	}
	return "http://" + s.ClientAddr()
}

// resourcePath is the canonical path of an MCP route.
func (r route) resourcePath() string {
	var b strings.Builder
	b.WriteString("/mcp/" + r.tenant + "/" + r.project + "/")
	if r.user != "" {
		b.WriteString("@" + url.PathEscape(r.user) + "/")
	}
	b.WriteString(r.name)
	b.WriteString(r.rest) // clients compare this with the address that they have
	return b.String()
}

// metadata answers RFC 9728: where a token for this resource comes from.
func (s *Server) metadata(w http.ResponseWriter, rt route) {
	j := s.opt.Live.Load().Config.Identity.JWT
	if j == nil || s.publicBase(j) == "" {
		refuse(w, rt.kind, *nothing())
		return
	}
	doc := map[string]any{
		"authorization_servers":    []string{j.Issuer},
		"bearer_methods_supported": []string{"header"},
		"resource_name":            "mcp-lease-gateway",
		"resource":                 s.publicBase(j) + rt.resourcePath(),
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
	parts := []string{`realm="mcp-lease-gateway"`}
	if j := s.opt.Live.Load().Config.Identity.JWT; j != nil && rt.kind == kindMCP {
		if base := s.publicBase(j); base != "" {
			parts = append(parts, `resource_metadata="`+base+metadataPrefix+rt.resourcePath()+`"`)
		}
	}
	if code != "" {
		parts = append(parts, `error="`+code+`"`)
	}
	return "Bearer " + strings.Join(parts, ", ")
}
