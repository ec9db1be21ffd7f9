// Package lease is the limited, fair sharing of scarce resources: a Lease is a
// slot on a logical resource, taken through the funnel user → project → tenant
// → global (spec §1 to §6).
//
// The store is the authority on who holds what; a process remembers nothing
// that the cap depends on. What it does remember (which leases it has seen, which
// handlers have failed, who waits) may be lost with it at any instant.
//
//	            create               every level is listed
//	(nothing) ─────────▶ PENDING ───────────────────────────▶ HELD ◀─┐ Check
//	   ▲                  │   │                               │  │ └─┘
//	   │     rolled back  │   │ its own TTL is over           │  │
//	   ├──────────────────┘   ▼                               │  │
//	   │                   REVOKED ◀──────────────────────────┘  │
//	   │                      │     idle, pod dead, revoked,     │
//	   │ MarkLife after its   │     close not confirmed          │
//	   │ handler has run      │                                  │
//	   ├──────────────────────┘                                  │
//	   └─────────────────────────────────────────────────────────┘ Release
//
// A holder that gives its slot back by itself and leaves its reason to whoever comes
// later (Lease.ReleaseAs) becomes REVOKED, too.
//
// The funnel is in funnel.go, those who wait in waitline.go, a lease's life in
// lease.go, what takes it away in reaper.go, what runs then in dispatcher.go,
// what mends a crash in reconciler.go and audit.go, who is alive in pods.go, what an
// outage of the store means in outage.go, what is done without a pod in forced.go.
// docs/protocol.md says which line wins which race, and how that is shown.
//
// The package knows no HTTP, no MCP and no TeX: consumers register a Handler for
// their type and call AcquireNamed, Keep, Check and Release (use.go), and tell
// their clients of a refusal in its words (refusal.go).
package lease
