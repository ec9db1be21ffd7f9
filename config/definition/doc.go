// Package definition turns lease documents into lease definitions: four layers,
// merged field by field, with the fields that each layer may set (spec §2), and
// inline definitions from server documents. It encodes the names of scopes for
// resources and counter ids.
//
// It must not know holders, counters or stores.
package definition
