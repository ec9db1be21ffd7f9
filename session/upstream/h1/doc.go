// Package h1 is the short way of a small POST to an http:// server. net/http's
// Transport serves every connection by two goroutines that hand requests and
// answers over by channels; here the caller's own goroutine writes the request
// with one write and reads the answer, which halves what a call costs.
//
// Only the plain case takes it: HTTP/1.1 without TLS and a body that is in
// memory and small enough to be written at once. Everything else goes to the
// http.Transport behind it. Answers are parsed by net/http (http.ReadResponse),
// so both ways take and refuse the same ones.
//
// It knows no MCP.
package h1
