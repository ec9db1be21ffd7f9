package identity

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// LoopbackHost reports whether a Host header or an origin's host, with or
// without a port, means this machine: a name that no resolver of a stranger can
// point here.
func LoopbackHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
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

// LoopbackAddr reports whether a host:port is an address of this machine only.
func LoopbackAddr(addr string) bool {
	ap, err := netip.ParseAddrPort(addr)
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// loopbackLocal reports whether the connection came in on a loopback address.
func loopbackLocal(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if tcp, is := a.(*net.TCPAddr); is {
		return tcp.IP.IsLoopback()
	}
	return ok && LoopbackAddr(a.String())
}

// Forwarded reports whether a proxy has left its traces in the headers.
func Forwarded(h http.Header) bool {
	for name := range h {
		switch name {
		case "Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Original-Forwarded-For", "X-Envoy-External-Address":
			return true
		}
		if strings.HasPrefix(name, "X-Forwarded-") {
			return true
		}
	}
	return false
}
