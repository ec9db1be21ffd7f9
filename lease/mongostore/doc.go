// Package mongostore is the lease.Store that several pods share: MongoDB 6.0 or
// later, a replica set or a standalone server.
//
// Each verb is one command whose filter holds every condition, so the server
// decides races and no lock, transaction or change stream is needed. All times
// are the server's: written by $currentDate or as $$NOW, compared with $$NOW.
// Writes wait for the majority, reads come from the primary and see what the
// majority has.
//
// Checks are the exception: those that a pod has at the same time go together, and
// a second command says which holders were not there (touch.go).
//
// Nothing is written twice: the driver's retries of writes are off, since an
// increment that was applied and whose reply was lost would count double.
//
// The collections are named by spec §4; a marker in a collection of its own says
// that they are ours. The package knows documents and filters. It does not know
// what a funnel, a reaper or a reconciler wants with them.
package mongostore
