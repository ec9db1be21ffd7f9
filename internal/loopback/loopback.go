// Package loopback tells whether an address means this machine and no other. It
// looks at texts and addresses; it resolves nothing and knows no HTTP.
package loopback

import (
	"net"
	"net/netip"
	"strings"
)

// Host reports whether a host, with or without a port, means this machine: a
// loopback address, localhost or a name below it. Another name may resolve to a
// loopback address and is none, since whoever owns it can point it elsewhere.
func Host(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Addr reports whether a connection's or listener's address is a loopback one.
func Addr(a net.Addr) bool {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return a != nil && Host(a.String())
}
