// Package refusal is what the gateway itself answers to an MCP client: an HTTP
// status, a JSON-RPC error, a tool's result or nothing, and the words and codes of
// each. A refusal knows its own form; nobody else decides by its status or code.
//
// It knows JSON-RPC and the errors of leases, and nothing of sessions, upstream
// servers or who asks.
package refusal
