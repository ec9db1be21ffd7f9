// Package upstream sends requests to MCP servers over HTTP: the tuned transport,
// where it may dial, the credential of a server document, and the DELETE that ends
// a session and whose status counts. Which headers pass is the business of
// internal/headers.
//
// It knows nothing of leases or of client sessions.
package upstream
