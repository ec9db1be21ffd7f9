// Package tex describes the TeX services of gateway.yaml: their routes, how
// their answers are read and what a refused client sees. A service is described
// in full, or by a preset and what differs from it.
//
// It knows the form of a description only: package texproxy serves it, and what
// a lease is stands in package lease.
package tex
