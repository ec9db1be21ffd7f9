// Package view is what an operator or a tenant's admin sees of the leases and
// does to them (spec §9), without HTTP and without a page: holders with their
// ages, counters with what books them, merged definitions, recent events,
// revocation, sweep and reconcile. Its types are the stable JSON forms of the
// admin API; gateway/admin serves them, gateway/insights renders them and the
// `lease` commands print them, so all three show the same.
//
// A whole token never leaves the package: a holder is shown by the shortest
// beginning of its token that is unique, and found again by it.
//
// It must not know HTTP, cookies, HTML or how a caller was authenticated.
package view
