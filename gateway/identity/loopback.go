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

// Forwarded reports whether a proxy has left its traces in the headers. It goes by
// families of names, since every proxy and every CDN has its own; a name too many
// costs a caller only a credential.
func Forwarded(h http.Header) bool {
	for name := range h {
		if traceOfProxy(strings.ToLower(name)) {
			return true
		}
	}
	return false
}

// proxies are how the names of the headers begin that proxies, load balancers and
// CDNs add under their own name.
var proxies = []string{"cf-", "cdn-", "fastly-", "fly-", "akamai-", "true-client-", "x-envoy-", "x-azure-", "x-arr-", "x-appengine-",
	"x-vercel-", "x-akamai-", "x-amz-cf-", "x-amzn-", "x-proxy", "x-original-", "x-real-", "x-remote-", "x-client-", "x-cluster-"}

func traceOfProxy(name string) bool {
	if name == "via" || strings.Contains(name, "forwarded") {
		return true
	}
	for _, p := range proxies {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	// Whoever names an address speaks for somebody else: X-ProxyUser-Ip, Wl-Proxy-Client-IP.
	last := name[strings.LastIndexByte(name, '-')+1:]
	switch last {
	case "ip", "ipv4", "ipv6", "clientip", "realip", "userip", "socketip", "sourceip", "remoteip":
		return true
	}
	return last == "addr" || last == "address"
}
