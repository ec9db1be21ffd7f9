package upstream

import (
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/internal/headers"
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

// RequestHeader returns what passes of a client's headers.
func RequestHeader(in http.Header) http.Header {
	out := make(http.Header, 8) // what usually passes, and the smallest map there is
	headers.MCP.Up(out, in)
	return out
}

// CopyResponseHeader copies what passes of an upstream's headers to a client.
// Content-Length is the caller's business.
func CopyResponseHeader(out, in http.Header) { headers.MCP.Down(out, in) }
