// Package wire reads MCP messages as they pass, and changes none of them: the
// JSON-RPC envelope of a whole body (Scan for a client's, ScanServer for a
// server's), the responses in what answers a POST (ReadAnswer for a whole message,
// Answers for bytes as they stream), and the lines and events of an SSE stream.
// Bodies stay bytes: a number beyond 2^53, 1.0, the order of keys and unknown
// members go out as they came in.
//
// A client's body is read strictly, since the checks of a tools/call hang on it. A
// server's is read as clients do that take what they can.
//
// It knows nothing of sessions, leases or HTTP.
package wire
