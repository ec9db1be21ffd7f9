// Package egress decides where the documents of tenants and projects may lead: to
// public addresses, and of the others to what the operator allows. It decides at
// dial time, on the address that is really dialled, so that a name that resolves to
// a private address gets no further than its owner.
//
// It must not know documents, upstreams or HTTP.
package egress
