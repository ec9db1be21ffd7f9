// Package h1 is the short way of a small POST from a client. net/http's server
// starts a goroutine beside every request that watches the connection for the
// client's going, which wakes other threads twice for a call that is over before
// anybody could go; here the watch begins only when a request lasts, and the
// answer goes out with one write. That halves what a call costs.
//
// Only the plain case takes it: HTTP/1.1 without TLS, a POST of a known, small
// length, nothing unusual in its head, and all of it here at once. At the first
// request of a connection that is not plain, the connection goes to the
// http.Server behind, with every byte that was read, and stays there: what
// net/http answers to whatever is odd, slow, large or wrong is what it would have
// answered anyway. Heads are parsed by net/http (http.ReadRequest) as well, so both
// ways take and refuse the same ones.
//
// It knows no MCP.
package h1
