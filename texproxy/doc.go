// Package texproxy puts leases around TeX compiles: a lease lives from the
// submit of a compile to its end (spec §7). It knows nothing of MCP, of counters
// or of stores.
//
// In job mode a client submits, polls and downloads in requests of their own.
// The whole state of a job is its holder in the lease store, found by service
// and job id, so any pod serves the next poll and a pod's end loses nothing. In
// sync mode one request is one compile, and the lease lasts until the service
// begins to answer.
//
//	          upload     acquire       submit        poll …            end
//	job:   spooled ──► slot taken ──► job stored ──► touched each time ──► released
//	sync:  spooled ──► slot taken ──► compiles, touched by a timer ──────► released
//
// What counts is the compile, not the client: a client that leaves does not end
// its compile, so its slot stays taken until the service says that the compile
// has ended. A job that nobody polls is polled by the pod that served it last,
// and while somebody waits for a slot every job that could give one back is
// polled each second.
//
// Each step of a request returns an answer of the service or an error; one place
// (refuse) says what a client reads of an error, one (relay) how an answer goes
// down.
package texproxy
