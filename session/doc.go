// Package session is MCP sessions that hold leases: one client session, one
// upstream session, one Lease (spec §7). It relays bytes, not structs.
//
// A session's whole state is sealed in its id (see package sessionid), so any pod serves
// any HTTP session; what a pod remembers of it (see session) is only what is
// under way there and what it holds (see hold). The store is the authority on
// whether the lease lives; the upstream server, over HTTP or a child behind its
// bridge, is the authority on whether the upstream session lives.
//
//	initialize ── acquire ── initialize upstream ── payload ── answer      open.go, initialize.go
//	tools/call ── check ──── relay, checked again every TTL/3              call.go, relay/
//	GET        ── peek ───── relay, looked at again every TTL/3            listen.go
//	DELETE     ── end upstream ── release                                  end.go
//	lease gone ── end upstream, end streams ── LEASE_LOST                  end.go, lost.go, revoked.go
//
// Every session ends in Proxy.end; end.go says what each cause means. What the
// gateway itself answers is a refusal; package refusal says how each is told.
//
// It knows no credentials of clients, no configuration files and no store.
package session
