// Package check looks through gateway.yaml and every document for what is wrong,
// and for what is right and probably not meant. It opens no connection but to the
// documents' own collection.
//
// It must not change anything, nor know leases that are held.
package check
