package session

import (
	"slices"

	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// modernRevision is the revision without sessions.
const modernRevision = "2026-07-28"

// batchRevision is the only revision with batches.
const batchRevision = "2025-03-26"

// headerRevision is the first revision whose clients send the header.
const headerRevision = "2025-06-18"

// olderRevision has other transports, and clients that speak it over this one exist.
const olderRevision = "2024-11-05"

// revision refuses a request whose header names an unknown revision. A header
// that is absent stands for the revision of the session.
func (q *request) revision() *refusal.Refusal {
	v := q.r.Header[upstream.HeaderProtocol]
	if len(v) == 0 {
		return nil
	}
	if len(v) > 1 {
		return refusal.Bad(refusal.RPCInvalid, "the header MCP-Protocol-Version stands there more than once")
	}
	if slices.Contains(refusal.Revisions, v[0]) || v[0] == olderRevision {
		return nil
	}
	requested := v[0]
	if len(requested) > 64 {
		requested = requested[:64]
	}
	return refusal.UnsupportedRevision(requested)
}
