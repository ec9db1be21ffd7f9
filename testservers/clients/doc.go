// Package clients drives real MCP clients, which nobody here wrote, through the
// life of a lease behind the gateway: TypeScript and JavaScript (testservers/node),
// Python (python), Java (java) and Go (driver). Each is a small program that takes
// one line of JSON for each step and answers with one; driver.mjs says which. The
// tests carry the build tag "external"; what they observe is docs/clients.md.
//
// It knows the gateway's configuration and URLs and nothing of its insides.
package clients
