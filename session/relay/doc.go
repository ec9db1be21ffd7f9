// Package relay is one answer of an upstream on its way to a client: it flows
// through, and one timer watches over it, with no goroutine of its own and no
// buffer outside a copy.
//
//	exchange.go  the watch: silence, the longest time, the lease, keep-alives
//	client.go    what has gone out to the client, and how a begun answer ends
//	copying.go   the copy, and what of a JSON answer is held back
//	pending.go   which requests are still without a response
//
// It knows event streams, JSON-RPC ids and when a lease is to be looked at. It must
// not know sessions, upstream servers or what a client is told.
package relay
