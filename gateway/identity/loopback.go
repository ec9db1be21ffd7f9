package identity

import (
	"net"
	"net/http"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
)

// loopbackLocal reports whether the connection came in on a loopback address.
func loopbackLocal(r *http.Request) bool {
	a, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return loopback.Addr(a)
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
