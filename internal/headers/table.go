package headers

// Proxy is one of the two proxies, or a set of them.
type Proxy uint8

// The proxies. A header that is withheld by both is the rule, by one the exception.
const (
	MCP Proxy = 1 << iota
	TeX

	// peers stands for pods that pass a client's request on among themselves: it
	// stays the client's, so only what belongs to one connection ends.
	peers

	neither Proxy = 0
	both          = MCP | TeX
	all           = both | peers
)

// Headers of the gateway's own.
const (
	// InternalToken carries the internal token.
	InternalToken = "X-Vance-Internal-Token" //nolint:gosec // a header's name
	// Signature signs a pod's call to another pod.
	Signature = "X-Vance-Signature"
	// Operator says who acts with a credential that several people have, such as
	// the internal token. It is a word and no proof: it stands in the record beside
	// the credential and opens nothing.
	Operator = "X-Vance-Operator"
	// Hop marks what a gateway sends to upstream MCP servers, so that it knows a
	// request of its own.
	Hop = "X-Vance-Hop"
)

// rule withholds names, in canonical form. One that ends in "*" stands for all
// that begin so, one that begins with "*" for all that end so.
type rule struct {
	up    Proxy // the proxies that do not send these to an upstream
	down  Proxy // the proxies that do not send these to a client
	names []string
}

// table is the policy. A name stands in it once.
var table = []rule{
	// They speak of one connection (RFC 9110, 7.6.1), and so does whatever
	// Connection names.
	{up: all, down: all, names: []string{
		"Connection", "Keep-Alive", "Proxy-*", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
	}},
	// CGI programs read it as HTTP_PROXY, the address that their own requests go by.
	{up: both, names: []string{"Proxy"}},
	// Who sends a message on says itself how long it is and to whom it goes.
	{up: both, down: both, names: []string{"Content-Length", "Host"}},
	// A client that waits for 100 Continue waits for the gateway.
	{up: both, names: []string{"Expect"}},
	// A session id is the gateway's towards a client, the upstream's towards the
	// upstream. The proxy that needs one sets it.
	{up: both, down: both, names: []string{"Mcp-Session-Id"}},
	// What the gateway says itself: to a client, to other pods and, as the mark
	// of a request that it has passed on, to an upstream.
	{up: both, down: both, names: []string{"X-Vance-*"}},
	// The MCP proxy reads every answer, so none may come compressed. The TeX
	// proxy passes results on as they are.
	{up: MCP, names: []string{"Accept-Encoding"}},

	// Credentials of the client, and proofs of having them, are for the gateway
	// alone; an upstream gets those that its document names.
	{up: both, names: []string{"Authorization", "Cookie", "Cookie2", "X-Api-Key", "Dpop"}},
	// The page that a client runs in is none of the upstream's business, and
	// whether it may call was judged here.
	{up: both, names: []string{"Origin", "Referer", "Access-Control-*", "Sec-*"}},
	// Where a request comes from and what name it came under: an upstream would
	// believe it of the gateway, and the client wrote it.
	{up: both, names: []string{
		"Forwarded", "Via", "X-Forwarded", "X-Forwarded-*", "X-Real-*", "X-Client-*", "Client-Ip", "X-Cluster-*", "True-Client-*",
		"Cf-*", "Fastly-*", "Fly-*", "X-Envoy-*", "X-Azure-*", "X-Appengine-*", "X-Arr-*", "X-Remote-*", "X-Originating-*", "Incap-*", "Cloudfront-*",
		"X-Host", "X-Scheme", "X-Url-Scheme", "Front-End-Https",
	}},
	// Who somebody in front has found the caller to be. Upstreams that live
	// behind such a front take it for proof.
	{up: both, names: []string{
		"Remote-*", "X-Auth-Request-*", "X-Authenticated-*", "X-Authentik-*", "X-Webauth-*", "X-Consumer-*", "X-Credential-*", "X-Anonymous-*", "X-Proxyuser-*",
		"X-Amzn-Oidc-*", "X-Ms-Client-*", "X-Ms-Token-*", "X-Goog-Iap-*", "X-Goog-Authenticated-*", "X-Endpoint-Api-*", "Tailscale-*",
		"Client-Cert", "Client-Cert-*", "Ssl-*", "X-Ssl-*",
	}},
	// What frameworks take for the method or the path. It would undo what was
	// matched here, with the credential of the document beside it.
	{up: both, names: []string{
		"*-Override", "X-Http-*", "X-Original-*", "X-Rewrite-*", "X-Waws-*", "X-Script-Name", "Script-Name",
	}},
	// Read by an upstream they redirect where its files come from; said by an
	// upstream they make a web server in front of the gateway answer with a file
	// or an address of its own, or keep the answer for others.
	{up: both, down: both, names: []string{"X-Accel-*", "X-Sendfile*"}},
	{down: both, names: []string{
		"X-Lighttpd-*", "X-Litespeed-*", "X-Reproxy-*", "Surrogate-*", "Cdn-Cache-Control", "*-Cdn-Cache-Control", "Edge-Control",
	}},

	// How an upstream asks for credentials: the gateway has them. A client that
	// saw it would sign in at a stranger's, or send a password to the gateway.
	{down: both, names: []string{"Www-Authenticate", "Optional-Www-Authenticate", "Authentication-Info", "Authentication-Control"}},
	// State in the browser, for the gateway's whole origin: an upstream may be a
	// project's, and the origin is everybody's.
	{down: both, names: []string{
		"Set-Cookie", "Set-Cookie2", "Set-Login", "Sec-*", "Secure-Session-*", "Activate-Storage-Access", "Clear-Site-Data", "Service-Worker-Allowed", "Use-As-Dictionary",
		"Strict-Transport-Security", "Alt-Svc", "Public-Key-Pins", "Public-Key-Pins-*", "Expect-Ct", "Expect-Staple",
		"Origin-Agent-Cluster", "Origin-Trial", "Accept-Ch", "Accept-Ch-*", "Critical-Ch",
	}},
	// Which pages may read the answer is said by the gateway's own list of origins.
	{down: both, names: []string{"Access-Control-*", "Timing-Allow-Origin", "Cross-Origin-*"}},
	// They make a browser report to, load from or go to an address that the
	// upstream chooses. With Link go also harmless relations such as next: their
	// addresses are the upstream's, and mean nothing to a client of the gateway.
	{down: both, names: []string{"Nel", "Report-To", "Reporting-Endpoints", "Refresh", "Link", "Speculation-Rules", "Attribution-Reporting-*"}},
	// Addresses at the upstream. The TeX proxy rewrites them; an MCP upstream's
	// are followed by nobody.
	{down: MCP, names: []string{"Location", "Content-Location"}},
}
