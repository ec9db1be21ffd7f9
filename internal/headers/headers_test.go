package headers

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestWhichHeadersPassUp(t *testing.T) {
	tests := map[string]struct {
		names string
		by    Proxy
	}{
		"of one connection":            {"Connection, Keep-Alive, Proxy-Connection, Proxy-Authenticate, Proxy-Authorization, TE, Trailer, Transfer-Encoding, Upgrade, HTTP2-Settings", both},
		"of the message":               {"Content-Length, Host, Expect", both},
		"the client's credentials":     {"Authorization, Cookie, X-API-Key, DPoP", both},
		"the client's page":            {"Origin, Referer, Sec-Fetch-Site, Sec-Fetch-Mode, Sec-CH-UA, Sec-WebSocket-Key, Access-Control-Request-Headers", both},
		"the client's address":         {"Forwarded, Via, X-Real-IP, X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, X-Forwarded-Prefix, X-Forwarded-Client-Cert, X-Client-IP, Client-IP, True-Client-IP, CF-Connecting-IP, Fastly-Client-IP, Fly-Client-IP, X-Cluster-Client-IP, X-Envoy-External-Address, X-Azure-ClientIP", both},
		"who a front has found":        {"Remote-User, Remote-Groups, X-Remote-User, X-Remote-Group, X-Remote-Extra-Scopes, X-Auth-Request-User, X-Auth-Request-Email, X-Auth-Request-Access-Token, X-Authenticated-User, X-Webauth-User, X-Goog-IAP-JWT-Assertion, X-Amzn-Oidc-Data, X-MS-Client-Principal, X-Consumer-Username, Cf-Access-Jwt-Assertion, Tailscale-User-Login, Client-Cert, SSL-Client-Verify, X-SSL-Client-DN, X-Client-Cert", both},
		"another method or path":       {"X-Original-URL, X-Original-URI, X-Original-Host, X-Rewrite-URL, X-HTTP-Method, X-HTTP-Method-Override, X-HTTP-Path-Override, X-Method-Override, Method-Override, X-Host-Override, X-Envoy-Original-Path, X-Script-Name", both},
		"a proxy for CGI programs":     {"Proxy", both},
		"where files come from":        {"X-Accel-Mapping, X-Sendfile-Type", both},
		"the gateway's own":            {"X-Vance-User, X-Vance-Internal-Token, X-Vance-Operator, Mcp-Session-Id", both},
		"read as another one by CGI":   {"X_Original_Url, X_Api_Key, Remote_user, X-Http_method, Proxy_, X.Forwarded.For, My_header", both},
		"compression":                  {"Accept-Encoding", MCP},
		"what clients and servers say": {"Accept, Accept-Language, Content-Type, Content-Encoding, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID, Traceparent, Tracestate, Baggage, Range, If-None-Match, X-Request-Id, X-Custom, X-Api-Version, X-Github-Token, Idempotency-Key, User-Agent, Prefer", neither},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { passes(t, Proxy.Up, tt.names, tt.by) })
	}
}

func TestWhichHeadersPassDown(t *testing.T) {
	tests := map[string]struct {
		names string
		by    Proxy
	}{
		"of one connection":                {"Connection, Keep-Alive, Proxy-Connection, Proxy-Authenticate, Te, Trailer, Transfer-Encoding, Upgrade", both},
		"of the message":                   {"Content-Length", both},
		"how to sign in":                   {"WWW-Authenticate, Authentication-Info, Proxy-Authentication-Info", both},
		"state in the browser":             {"Set-Cookie, Set-Cookie2, Clear-Site-Data, Service-Worker-Allowed, Strict-Transport-Security, Alt-Svc, Public-Key-Pins, Public-Key-Pins-Report-Only, Expect-CT, Origin-Agent-Cluster, Accept-CH, Set-Login, Sec-Session-Registration, Secure-Session-Registration, Use-As-Dictionary", both},
		"who may read":                     {"Access-Control-Allow-Origin, Access-Control-Allow-Credentials, Access-Control-Expose-Headers, Timing-Allow-Origin, Cross-Origin-Resource-Policy", both},
		"reports, loads and jumps":         {"NEL, Report-To, Reporting-Endpoints, Refresh, Link, Speculation-Rules", both},
		"orders to a web server":           {"X-Accel-Redirect, X-Accel-Buffering, X-Accel-Expires, X-Sendfile, X-Sendfile2, X-LIGHTTPD-send-file, X-LiteSpeed-Location, X-Reproxy-URL, Surrogate-Control, CDN-Cache-Control, Cloudflare-CDN-Cache-Control", both},
		"the gateway's own":                {"X-Vance-User, Mcp-Session-Id", both},
		"addresses at the upstream":        {"Location, Content-Location", MCP},
		"what clients and servers say":     {"Content-Type, Content-Encoding, Content-Disposition, Content-Range, Accept-Ranges, Cache-Control, ETag, Last-Modified, Retry-After, Vary, X-Custom, X-Request-Id, Server, X_underscore, Content-Security-Policy, X-Frame-Options, X-Content-Type-Options, Mcp-Protocol-Version", neither},
		"requests' headers mean nothing":   {"Remote-User, X-Original-Url", neither},
		"a name with a withheld one's end": {"X-Location, My-Set-Cookie", neither},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { passes(t, Proxy.Down, tt.names, tt.by) })
	}
}

func passes(t *testing.T, way func(p Proxy, dst, src http.Header), list string, withheldBy Proxy) {
	t.Helper()
	for name := range strings.SplitSeq(list, ", ") {
		k := http.CanonicalHeaderKey(name)
		for p, proxy := range map[Proxy]string{MCP: "MCP", TeX: "TeX"} {
			dst := http.Header{}
			way(p, dst, http.Header{k: {"x"}})
			if got, want := len(dst[k]) == 1, withheldBy&p == 0; got != want {
				t.Errorf("%s in the %s proxy: passes %v, want %v", name, proxy, got, want)
			}
		}
	}
}

func TestConnectionNamesHeadersOfItsOwn(t *testing.T) {
	for name, connection := range map[string][]string{
		"in one list":         {"keep-alive, X-One , x-two"},
		"in two fields":       {"X-One", "close,X-TWO"},
		"beside empty places": {",, x-one,,\tX-Two"},
	} {
		t.Run(name, func(t *testing.T) {
			for way, copies := range map[string]func(dst, src http.Header){"up": MCP.Up, "down": TeX.Down} {
				dst := http.Header{}
				copies(dst, http.Header{"Connection": connection, "X-One": {"1"}, "X-Two": {"2"}, "X-Three": {"3"}})
				delete(dst, "User-Agent")
				if got := slices.Collect(maps.Keys(dst)); !slices.Equal(got, []string{"X-Three"}) {
					t.Errorf("%s: %v", way, got)
				}
			}
		})
	}
}

func TestTheGatewaysOwnHeadersStay(t *testing.T) {
	for way, copies := range map[string]func(dst, src http.Header){"up": MCP.Up, "down": MCP.Down} {
		dst := http.Header{"X-Request-Id": {"gateway"}}
		copies(dst, http.Header{"X-Request-Id": {"other"}, "X-Trace": {"1", "2"}})
		if dst.Get("X-Request-Id") != "gateway" || !slices.Equal(dst["X-Trace"], []string{"1", "2"}) {
			t.Errorf("%s: %v", way, dst)
		}
	}
}

func TestPodsPassOnWhatIsNotOfOneConnection(t *testing.T) {
	dst := http.Header{}
	EndToEnd(dst, http.Header{"Connection": {"X-One"}, "X-One": {"1"}, "Upgrade": {"x"}, "Authorization": {"Bearer x"}, "Mcp-Session-Id": {"s"}, "Content-Length": {"2"}, "X_Odd": {"1"}})
	if got := slices.Sorted(maps.Keys(dst)); !slices.Equal(got, []string{"Authorization", "Content-Length", "Mcp-Session-Id", "X_Odd"}) {
		t.Errorf("%v", got)
	}
}

func TestNoUserAgentIsInvented(t *testing.T) {
	dst := http.Header{}
	TeX.Up(dst, http.Header{})
	if v, ok := dst["User-Agent"]; !ok || v != nil {
		t.Errorf("%v", dst)
	}
	dst = http.Header{}
	TeX.Up(dst, http.Header{"User-Agent": {"client/1"}})
	if dst.Get("User-Agent") != "client/1" {
		t.Errorf("%v", dst)
	}
}

func TestTableIsCanonicalAndSaysEachNameOnceForEachWay(t *testing.T) {
	seen := map[string]withheld{}
	for _, r := range table {
		if r.up|r.down == neither || len(r.names) == 0 {
			t.Errorf("a row withholds nothing: %v", r)
		}
		for _, n := range r.names {
			if text := strings.Trim(n, "*"); text == "" || http.CanonicalHeaderKey(text) != text {
				t.Errorf("%q is not canonical", n)
			}
			if w := seen[n]; w.up&r.up != 0 || w.down&r.down != 0 {
				t.Errorf("%q stands twice", n)
			}
			seen[n] = withheld{seen[n].up | r.up, seen[n].down | r.down}
		}
	}
}

func TestNoNameStandsBesideItsKind(t *testing.T) {
	for n := range names {
		for _, a := range prefixes[bucket(n)] {
			if strings.HasPrefix(n, a.text) {
				t.Errorf("%s is of the kind %s*: what that says of it would not be read", n, a.text)
			}
		}
		for _, a := range suffixes {
			if strings.HasSuffix(n, a.text) {
				t.Errorf("%s is of the kind *%s: what that says of it would not be read", n, a.text)
			}
		}
	}
}

// browserRequest has what a browser, or an SDK in one, sends beside an MCP call.
func browserRequest() http.Header {
	return http.Header{
		"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}, "Mcp-Session-Id": {"s"}, "Mcp-Protocol-Version": {"2025-06-18"},
		"Authorization": {"Bearer x"}, "User-Agent": {"node"}, "Accept-Language": {"*"}, "Accept-Encoding": {"br, gzip"}, "Sec-Fetch-Mode": {"cors"}, "Connection": {"keep-alive"},
		"X-Custom": {"1"},
	}
}

func TestCopyingAllocatesTheMapOnly(t *testing.T) {
	src := browserRequest()
	up := testing.AllocsPerRun(100, func() { MCP.Up(make(http.Header, 8), src) })
	bare := testing.AllocsPerRun(100, func() {
		dst := make(http.Header, 8)
		for _, k := range []string{"Accept", "Content-Type", "Mcp-Protocol-Version", "User-Agent", "Accept-Language", "X-Custom"} {
			dst[k] = src[k]
		}
	})
	if up > bare {
		t.Errorf("%v allocations, the map alone has %v", up, bare)
	}
}

func BenchmarkUp(b *testing.B) {
	src := browserRequest()
	b.ReportAllocs()
	for b.Loop() {
		sink = make(http.Header, 8)
		MCP.Up(sink, src)
	}
}

var sink http.Header
