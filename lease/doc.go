// Package lease is the limited, fair sharing of scarce resources: a Lease is a
// slot on a logical resource, taken through the funnel user → project → tenant
// → global (spec §1 to §6).
//
// The store is the authority on who holds what; a process remembers nothing
// that the cap depends on. The package knows no HTTP, no MCP and no TeX:
// consumers register a Handler for their type and call Acquire, Check and
// Release.
package lease
