// Package config reads gateway.yaml: strictly, with file, line and key in every
// complaint, and with warnings of what is right and not meant. Documents of tenants
// and projects are in the packages below it: document finds texts, definition,
// server and settings read them, check looks through all of them for an operator.
//
// The structs are the reference: the tags say key, default and bounds (see
// strictyaml.Decode), the comment of a field what it means.
//
// It must not know who asks, what is held, or how anything is served.
package config
