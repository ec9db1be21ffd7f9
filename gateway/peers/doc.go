// Package peers is how pods talk to each other (spec §6, "Holder Pod alive
// (foreign)"): a revocation is sent to the pod that holds the session, a request
// is forwarded to the pod whose child process it is for, and a changed document
// is sent to everybody.
//
// A call names the pod it means. Addresses are used again, by another pod after
// a restart or by a stranger after a scale-down, so whoever is not meant answers
// 421 and the caller takes the pod for unreachable.
//
// A call is signed with a key derived from the internal token, for the pod that it
// means, and the answer shows that the pod has that token (sign.go): addresses
// stand in the store, and whoever can write it there must neither be sent the
// token nor be believed.
//
// It must not know leases beyond their tokens, nor what a session is.
package peers
