// Package peers is how pods talk to each other (spec §6, "Holder Pod alive
// (foreign)"): a revocation is told to the pod that holds the session, a request
// is forwarded to the pod whose child process it is for, and a changed document
// is told to everybody.
//
// A call names the pod it means. Addresses are used again, by another pod after
// a restart or by a stranger after a scale-down, so whoever is not meant answers
// 421 and the caller takes the pod for unreachable.
//
// It must not know leases beyond their tokens, nor what a session is.
package peers
