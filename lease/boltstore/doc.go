// Package boltstore is the embedded lease.Store: one gateway process, one file.
//
// The file is a bbolt database and the authority on every holder and counter.
// One goroutine writes: it takes whatever callers have queued, applies it in
// one transaction, waits for the disk and only then answers, so a group of
// callers shares one flush and a lone caller waits for no timer. Each verb sees
// what the verbs before it in the same transaction did, which makes it atomic
// without a lock of its own.
//
// Touches are the exception. A check of every tools/call must not cost a disk
// flush, so the last touch of each HELD holder is kept in memory (seats.go),
// written once a second, and a store that opens counts its own start as a touch
// of everybody: what a crash can forget is at most one second of a clock that
// starts anew anyway.
//
// Store time is the wall clock at the start plus the time since by the
// monotonic clock, so it never steps while the store is open.
//
// The package knows documents and indexes. It does not know what a funnel, a
// reaper or a reconciler wants with them.
package boltstore
