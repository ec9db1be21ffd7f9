// Package tracing is OpenTelemetry traces of a pod: a client's W3C context
// comes in, a span stands for the request, and the upstream gets the context of
// the span that called it. It is off unless Start is called, and then costs
// nothing: a client's traceparent passes through like any other header.
//
// Spans carry methods, kinds of routes, host names and statuses. They carry no
// path, query, header or body: session ids, users and credentials stand there.
//
// It must not know leases, sessions or configuration.
package tracing
