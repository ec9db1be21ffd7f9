// Package chaos runs several real gateway processes on one MongoDB, lets
// hundreds of clients open, use, close and abandon sessions through them, and
// meanwhile kills, freezes and restarts the processes and takes the store away.
// The judge is the upstream server's own count of living sessions.
//
// Its tests carry the build tag "external". A run prints its seed and every
// figure; CHAOS_SEED repeats one.
package chaos
