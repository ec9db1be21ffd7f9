// Package config reads gateway.yaml: strictly, with file, line and key in every
// complaint. Documents of tenants and projects are in config/document,
// config/definition and config/server.
package config

import (
	"net/netip"
	"time"
)

// Gateway is a checked gateway.yaml with its defaults filled in. Secrets in it
// are plain values: never log it.
type Gateway struct {
	Path      string // the file it was read from
	Listen    string
	TLS       TLS
	Internal  Internal
	Pod       Pod
	Store     Store
	Documents Documents
	Lease     Lease
	Session   Session
	Limits    Limits
	Egress    Egress
	Origins   []string
	Identity  Identity
	Tex       []TexService
	Telemetry Telemetry
}

// TLS names the certificate of both listeners; empty means plain.
type TLS struct{ Cert, Key string }

// Internal is the listener for /internal, /metrics, /healthz and /readyz.
type Internal struct {
	Listen string
	Tokens []string // the first is sent, all are taken; none means everyone is refused
}

// Pod is how other pods see this one.
type Pod struct {
	Endpoint   string
	Heartbeat  time.Duration
	StaleAfter time.Duration
}

// Store says where lease state lives.
type Store struct {
	Kind     string // embedded | mongodb
	Path     string
	URI      string
	Database string
}

// Documents says where documents and their secrets live.
type Documents struct {
	Dir     string
	MongoDB DocumentDB
	Secrets string
}

// DocumentDB is a collection {tenantId, projectId, path, content}. It wins over
// the directory where URI is set.
type DocumentDB struct{ URI, Database, Collection string }

// Lease holds the engine's periods and the ceilings for what documents may say.
type Lease struct {
	ReapInterval    time.Duration
	ReconcileSafety time.Duration
	PendingTTL      time.Duration
	MaxTTL          time.Duration
	MaxWait         time.Duration
}

// Session is how MCP sessions behave.
type Session struct {
	Keys       [][]byte
	OpenWait   time.Duration
	Idle       time.Duration
	OnShutdown string // close | handover
}

// Limits bound what callers can make the pod hold. Sizes are bytes.
type Limits struct {
	RequestBody    int64
	PerPod         int
	PerPrincipal   int
	StdioPerTenant int
	Waiters        int
	Spool          int64
}

// Egress is what tenant and project documents may lead to besides public
// addresses: hosts, *.suffixes, CIDRs.
type Egress struct{ Allow []string }

// Identity is who may call.
type Identity struct {
	Anonymous *Anonymous
	APIKeys   []APIKey
	JWT       *JWT
}

// Anonymous is the scope of callers without a credential on a loopback listener.
type Anonymous struct {
	Tenant   string
	Projects []string
	User     string
}

// APIKey is one key: its SHA-256 and what it opens.
type APIKey struct {
	Name       string
	SHA256     [32]byte
	Tenants    map[string][]string // tenant or "*" → projects or "*"
	User       string
	UserHeader string
	Roles      []string // operator | tenantAdmin
	OnLost     string   // notFound | reopen
}

// JWT is how bearer tokens of an identity provider are judged.
type JWT struct {
	Issuer   string
	Audience string
	JWKSURL  string
	Claims   Claims
}

// Claims names the token's claims that carry a scope.
type Claims struct{ Tenant, Projects, User, Roles string }

// Telemetry configures traces; off unless an endpoint is set.
type Telemetry struct {
	OTLPEndpoint string
	SampleRatio  float64
}

// Loopback reports whether the client listener can be reached from this machine
// only.
func (g *Gateway) Loopback() bool {
	ap, err := netip.ParseAddrPort(g.Listen)
	return err == nil && ap.Addr().IsLoopback()
}
