// Package gateway is the pod's face: two listeners, the routes behind them, and
// how the pod starts to serve and stops.
//
// The client listener answers MCP and TeX clients and tenant admins. The
// internal one answers other pods, operators and probes, and is never on the
// client port. What a request means is decided here up to the point where it is
// known who asks for what; session and texproxy go on from there.
//
// It must not know documents, leases or stores beyond what it hands on.
package gateway
