package upstream

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
