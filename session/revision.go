package session

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// modernRevision is the revision without sessions.
const modernRevision = "2026-07-28"

// batchRevision is the only revision with batches.
const batchRevision = "2025-03-26"

// headerRevision is the first revision whose clients send the header.
const headerRevision = "2025-06-18"

// sessionRevisions are the revisions with sessions over Streamable HTTP, newest
// first; olderRevision has other transports, and clients that speak it over
// this one exist.
var sessionRevisions = []string{"2025-11-25", "2025-06-18", "2025-03-26"}

const olderRevision = "2024-11-05"

// revision refuses a request whose header names an unknown revision. A header
// that is absent stands for the revision of the session.
func (q *request) revision() *refusal {
	v := q.r.Header[upstream.HeaderProtocol]
	if len(v) == 0 {
		return nil
	}
	if len(v) > 1 {
		return badRequest(rpcInvalid, "the header MCP-Protocol-Version stands there more than once")
	}
	if slices.Contains(sessionRevisions, v[0]) || v[0] == olderRevision {
		return nil
	}
	requested := v[0]
	if len(requested) > 64 {
		requested = requested[:64]
	}
	return unsupportedRevision(requested)
}

func unsupportedRevision(requested string) *refusal {
	return &refusal{status: http.StatusBadRequest, code: rpcUnsupported,
		message: fmt.Sprintf("protocol version %q is not supported here; this server speaks %v", requested, sessionRevisions),
		data: struct {
			Supported []string `json:"supported"`
			Requested string   `json:"requested"`
		}{sessionRevisions, requested}}
}

// size shows a limit in the unit that a person would use.
func size(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
