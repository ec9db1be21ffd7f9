// Package upstream is the HTTP leg to MCP servers: the tuned transport, where
// it may dial, the credential of a server document, which headers pass in which
// direction, and the DELETE that ends a session and whose status counts.
//
// It knows nothing of leases or of client sessions.
package upstream
