// Package session is MCP sessions that hold leases: one client session, one
// upstream session, one Lease (spec §7). It relays bytes, not structs.
//
// A session's whole state is sealed in its id (see sealed), so any pod serves
// any HTTP session; what a pod remembers of it (see live) is only what is under
// way there. The store is the authority on whether the lease lives; the
// upstream server is the authority on whether the upstream session lives.
//
//	initialize ── acquire ── initialize upstream ── payload ── answer      open.go
//	tools/call ── check ──── relay, checked again every TTL/3              post.go, exchange.go
//	GET        ── peek ───── relay, looked at again every TTL/3            stream.go
//	DELETE     ── DELETE upstream with its auth ── release                 close.go
//	lease gone ── close upstream, end streams ── LEASE_LOST                lost.go, revoked.go
//
// It knows no credentials of clients, no configuration files and no store.
package session
