// Package wire reads MCP messages without changing them: the JSON-RPC envelope
// of a whole body, single members to splice, and the events of an SSE stream.
// Bodies stay bytes: a number beyond 2^53, 1.0, the order of keys and unknown
// members go out as they came in.
//
// It knows nothing of sessions, leases or HTTP.
package wire
