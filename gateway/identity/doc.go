// Package identity judges the credential of a request and says for whom it may
// speak: API keys, tokens of an identity provider, and on a loopback listener
// nothing at all.
//
// It makes principal.Callers and must not know what they are used for: no
// leases, no sessions, no routes.
package identity
