// Package headers is the one policy that says which HTTP headers pass through the
// gateway: up, from a client to an upstream, and down, from an upstream to a
// client. Both proxies, MCP and TeX, read the same table; where they differ the
// row says so. It knows names only: no credential, no session, no address.
//
// Everything passes that no row withholds, since clients and upstreams have
// headers of their own between them. What is withheld has one of three causes:
// it belongs to one connection, it is the gateway's own part of the exchange, or
// it would make somebody act in the name of somebody else.
package headers
