package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// refusal is an answer of the gateway itself, before or instead of a handler's.
type refusal struct {
	status     int
	code       string // for programs, such as FORBIDDEN
	message    string // one sentence for a person
	retryAfter int    // seconds; 0 for none
}

// refuse writes a refusal in the form of the route: JSON-RPC for MCP, so that a
// client shows the sentence to its user, and a JSON error elsewhere, for TeX with
// the member that its services use.
func refuse(w http.ResponseWriter, k kind, f refusal) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	v := map[string]any{"error": map[string]any{"code": f.code, "message": f.message}}
	switch k {
	case kindTex:
		v["detail"] = f.message // what clients of TeX services show
	case kindMCP:
		v = map[string]any{"jsonrpc": "2.0", "id": nil,
			"error": map[string]any{"code": f.status, "message": f.message, "data": map[string]any{"code": f.code}}}
	}
	body, err := json.Marshal(v)
	if err != nil { // texts only, so it cannot
		body = []byte("{}")
	}
	body = append(body, '\n')
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // a client that is gone reads no refusal
}

// wrongMethod is the refusal of a method that a kind of route does not take.
func wrongMethod(w http.ResponseWriter, k kind) *refusal {
	allow := strings.Join(k.methods(), ", ")
	w.Header().Set("Allow", allow)
	return &refusal{status: http.StatusMethodNotAllowed, code: "METHOD_NOT_ALLOWED", message: "this address takes " + allow + " only"}
}

// nothing is the refusal of an address that leads nowhere.
func nothing() *refusal {
	return &refusal{status: http.StatusNotFound, code: "NOT_FOUND", message: "there is nothing at this address; MCP servers are at /mcp/{tenant}/{project}/{server}, TeX services at /tex/{tenant}/{project}/{service}"}
}
