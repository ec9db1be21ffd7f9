// Package h1 is HTTP/1.1 for small POSTs without TLS, on both sides of the
// gateway: a Server in front of an http.Server, and a Transport in front of an
// http.Transport. It exists because net/http pays for every request with
// goroutines and channels that a small call does not need: its server starts a
// goroutine that watches the connection for the client's end, its transport serves
// each connection by two goroutines. Here one goroutine reads a request and writes
// its answer with one write each, which halves what a call costs.
//
// # What is accepted
//
// One grammar (grammar.go) says what a token, a field value, a host, a target, a
// length and a chunk are, for what is read and for what is written. It takes less
// than HTTP allows:
//
//   - The Server takes "POST /… HTTP/1.1" with CR LF line ends, one Host, one
//     Content-Length of at most six digits, and of the fields that frame a message
//     or belong to a connection nothing else but "Connection: keep-alive". Head and
//     body together are at most 64 KiB, the head alone less than 4 KiB, and all of
//     it is here within 50 ms.
//   - The Transport sends a POST to an http URL whose body is an InMemory of 1 byte
//     to 64 KiB, with a plain host and target and no framing field of the caller's.
//
// What scan accepts is parsed by net/http as well (http.ReadRequest), and answers
// are parsed by net/http alone (http.ReadResponse), so that both ways accept and
// refuse the same; fuzz tests hold them to it.
//
// # What is handed to net/http
//
// Everything else. On the Server's side that is the connection, at its first
// request that is not accepted, with every byte that was read of it; it stays with
// the http.Server, which answers what is odd, slow, large or wrong as it always
// does. With TLS that is every connection, after its handshake. On the way a
// framingGuard follows the requests and has net/http refuse one that says in two
// ways how long it is, which net/http would take. On the Transport's side it is the one request, before a byte of it is
// written. A request of which a byte was written is never repeated.
//
// # Who owns which buffer
//
//   - serverConn.buf (4 KiB) belongs to the connection's goroutine. A small request
//     lies in it until its handler has returned; what follows is moved to the front
//     then.
//   - A large buffer (64 KiB, at most 256 in use) belongs to the request that needs
//     it, from collect until the handler has read the body or has returned,
//     whichever comes first.
//   - response.out belongs to the response and goes back when the handler has
//     returned; writes after that fail and touch nothing.
//   - The Transport's request buffer belongs to RoundTrip. The body's bytes are the
//     caller's and are read until RoundTrip returns, never later: net/http, which
//     may read longer, gets a copy.
//   - A clientConn belongs to the exchange on it, then to its answer's body; the
//     body's end gives it to the pool or closes it.
//
// The package must not know MCP, sessions or who calls.
package h1
