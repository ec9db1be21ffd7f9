// Package routing makes of one stream of messages what an HTTP server of MCP
// would answer: a peer that only reads and writes messages, such as a child
// process, becomes an http.RoundTripper.
//
// A message of the peer goes to exactly one stream:
//
//   - a response goes to the POST whose request it answers;
//   - progress goes to the POST that named its token;
//   - any other message goes to the only POST in flight that takes events, else to
//     the GET stream, and where nobody listens, it is kept for the next one.
//
// Each POST has a mailbox of its own. What a POST leaves unread is routed again,
// its responses excepted, for which nobody else waits.
//
// The package knows HTTP and JSON-RPC, but no process, connection, session or
// lease.
package routing
