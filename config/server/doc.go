// Package server resolves server documents, _vance/server-tools/<server>.yaml, by
// their cascade: the first match as a whole (spec §7, mcp_server tools), with the
// secrets that they name.
//
// It must not know MCP, and opens no connection.
package server
