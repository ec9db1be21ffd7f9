package config

import (
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
)

// Gateway is a checked gateway.yaml with its defaults filled in. Secrets in it
// are plain values: never log it. Paths in it are as the process can open them:
// Load has put the folder of gateway.yaml before relative ones.
type Gateway struct {
	// The file that it was read from.
	Path string `yaml:"-"`
	// What is right and probably not meant.
	Warnings Problems `yaml:"-"`
	// Address for clients.
	Listen string `yaml:"listen" default:"127.0.0.1:8080"`
	// Certificate of both listeners.
	TLS TLS `yaml:"tls"`
	// Address under which clients reach the gateway, such as
	// https://gateway.example.com, for what tells OAuth clients where to get a
	// token. The default is that of identity.jwt.audience where it is a URL.
	PublicURL string `yaml:"publicURL"`
	// The listener for pods, operators and monitoring.
	Internal Internal `yaml:"internal"`
	// How other pods see this one.
	Pod Pod `yaml:"pod"`
	// Where lease state lives.
	Store Store `yaml:"store"`
	// Where documents and their secrets live.
	Documents Documents `yaml:"documents"`
	// The lease engine's periods and ceilings.
	Lease Lease `yaml:"lease"`
	// How MCP sessions behave.
	Session Session `yaml:"session"`
	// Bounds of what callers can make a pod hold. Each refusal says which.
	Limits Limits `yaml:"limits"`
	// Where documents of tenants and projects may lead.
	Egress Egress `yaml:"egress"`
	// Browser origins that may call, such as https://app.example.com, besides
	// loopback where listen is loopback.
	Origins []string `yaml:"origins"`
	// Who may call.
	Identity Identity `yaml:"identity"`
	// TeX services, presets or described in full.
	Tex []tex.Service `yaml:"tex"`
	// Audit log and traces.
	Telemetry Telemetry `yaml:"telemetry"`
}

// TLS names the certificate of both listeners; empty means plain, behind an
// ingress. The files are read anew when they change.
type TLS struct {
	// PEM file with the certificate chain.
	Cert string `yaml:"cert"`
	// PEM file with the private key.
	Key string `yaml:"key"`
}

// Internal is the listener for /internal, /metrics, /healthz and /readyz.
type Internal struct {
	// Its address. Keep it away from clients.
	Listen string `yaml:"listen" default:"127.0.0.1:8081"`
	// Shared secrets for /internal, in the header X-Vance-Internal-Token, all of
	// which are taken; none means that everyone is refused. Pods do not send them to
	// each other: they sign their calls with the first. On the embedded store one is
	// made at the first start.
	Tokens []string `yaml:"tokens" secret:"true"`
	// Send the first token to other pods as well, while pods of a version that knows
	// no signatures run beside this one. Whoever can write an address into the store
	// is sent it then; set it for one upgrade only.
	SendToken bool `yaml:"sendToken"`
}

// Pod is how other pods see this one.
type Pod struct {
	// host:port where other pods reach this one's internal listener. The
	// default is internal.listen; where that is every address of the host and
	// the store is shared, it must be set.
	Endpoint string `yaml:"endpoint"`
	// How often the pod says that it lives.
	Heartbeat time.Duration `yaml:"heartbeat" default:"15s" min:"100ms" max:"10m"`
	// How old the last heartbeat of a pod may be before it counts as dead.
	StaleAfter time.Duration `yaml:"staleAfter" default:"45s" min:"200ms" max:"1h"`
}

// Store says where lease state lives.
type Store struct {
	// embedded: one pod and a file. mongodb: any number of pods.
	Kind StoreKind `yaml:"kind" default:"embedded" enum:"embedded,mongodb"`
	// The file of the embedded store.
	Path string `yaml:"path" default:"data/leases.db"`
	// Connection string of MongoDB.
	URI string `yaml:"uri" secret:"true"`
	// Database of MongoDB. No other system may keep leases in it.
	Database string `yaml:"database" default:"mcp_lease_gateway"`
}

// StoreKind is where lease state lives.
type StoreKind string

// The kinds of store.
const (
	EmbeddedStore StoreKind = "embedded" // a file of this one pod
	MongoDBStore  StoreKind = "mongodb"  // a database of all pods
)

// Documents says where documents and their secrets live.
type Documents struct {
	// Folder with <tenant>/<project>/_vance/… in it, watched for changes. It
	// must exist, since a missing layer could be the one that holds a cap;
	// empty means none. The default does not count where mongodb.uri is set.
	Dir string `yaml:"dir" default:"documents"`
	// A collection of documents besides the folder; it wins over it.
	MongoDB DocumentDB `yaml:"mongodb"`
	// Folder with <tenant>/<project>/<name> in it: what {{secret:name}} means.
	Secrets string `yaml:"secrets" default:"secrets"`
}

// DocumentDB is a collection {tenantId, projectId, path, content}, looked at every
// two seconds for changes. It wins over the directory where URI is set.
type DocumentDB struct {
	// Connection string of MongoDB; empty means that there is no collection. A
	// user that may read is enough: an index is made where it may be.
	URI string `yaml:"uri" secret:"true"`
	// Database; the default is store.database.
	Database string `yaml:"database"`
	// Collection.
	Collection string `yaml:"collection" default:"documents"`
}

// Lease holds the engine's periods and the ceilings for what documents may say.
type Lease struct {
	// Time between two rounds of the reaper.
	ReapInterval time.Duration `yaml:"reapInterval" default:"30s" min:"100ms" max:"1h"`
	// Age below which a counter is not corrected, for its holder may be on the way.
	// One that is never so old is audited for that long, and corrected then.
	ReconcileSafety time.Duration `yaml:"reconcileSafety" default:"60s" min:"1s" max:"24h"`
	// Life of a holder whose levels are still being booked.
	PendingTTL time.Duration `yaml:"pendingTTL" default:"30s" min:"1s" max:"1h"`
	// Largest ttlSeconds that a document may name.
	MaxTTL time.Duration `yaml:"maxTTL" default:"24h" min:"1s" max:"8760h"`
	// Largest waitMs that a document may name.
	MaxWait time.Duration `yaml:"maxWait" default:"60s" min:"0s" max:"1h"`
}

// Session is how MCP sessions behave.
type Session struct {
	// Keys that seal session ids, each 32 bytes in base64: the first seals, all
	// open. To rotate, add the new one last on every pod, then move it to the
	// front. On the embedded store one is made at the first start.
	Keys [][]byte `yaml:"keys" form:"base64" secret:"true"`
	// Longest wait for a slot at initialize, whatever waitMs says: MCP clients
	// give up after 3 s or 5 s, and then nobody reads that the lease is busy.
	OpenWait time.Duration `yaml:"openWait" default:"2s" min:"0s" max:"10m"`
	// How long a lost session can be opened again under its id (onLost: reopen).
	ReopenFor time.Duration `yaml:"reopenFor" default:"24h" min:"1m" max:"720h"`
	// Sessions without a lease end after this time without a request.
	Idle time.Duration `yaml:"idle" default:"30m" min:"1s" max:"720h"`
	// close ends every session at shutdown; handover leaves HTTP sessions to the
	// other pods.
	OnShutdown Shutdown `yaml:"onShutdown" default:"close" enum:"close,handover"`
}

// Shutdown is what becomes of sessions when a pod stops.
type Shutdown string

// The ways of a shutdown.
const (
	CloseSessions Shutdown = "close"    // every session ends
	Handover      Shutdown = "handover" // HTTP sessions go on at the other pods
)

// Limits bound what callers can make the pod hold. Sizes are bytes.
type Limits struct {
	// Longest request body.
	RequestBody int64 `yaml:"requestBody" form:"size" default:"32MiB" min:"1024"`
	// Streams, calls, requests to TeX services and child processes of this pod at
	// once, all together. One user has a third of
	// them at most and one tenant less than a half, so that others find room.
	PerPod int `yaml:"perPod" default:"10000" min:"1"`
	// Sessions that one principal may hold.
	PerPrincipal int `yaml:"perPrincipal" default:"1000" min:"1"`
	// Child processes of one tenant on this pod.
	StdioPerTenant int `yaml:"stdioPerTenant" default:"50" min:"1"`
	// Acquires that may wait for a slot on this pod.
	Waiters int `yaml:"waiters" default:"1000" min:"1"`
	// Disk for uploads on their way to TeX services; one caller gets at most a third of it.
	Spool int64 `yaml:"spool" form:"size" default:"2GiB" min:"1048576"`
}

// Egress is what tenant and project documents may lead to besides public
// addresses.
type Egress struct {
	// Hosts, *.suffixes and CIDRs.
	Allow []string `yaml:"allow"`
}

// Identity is who may call. Without any of its members nobody may.
type Identity struct {
	// Callers without a credential, on a loopback listener only.
	Anonymous *Anonymous `yaml:"anonymous"`
	// Keys, by their hash.
	APIKeys []APIKey `yaml:"apiKeys"`
	// Bearer tokens of an identity provider.
	JWT *JWT `yaml:"jwt"`
}

// Anonymous is the scope of callers without a credential on a loopback listener.
type Anonymous struct {
	// Their tenant.
	Tenant string `yaml:"tenant" required:"true"`
	// Projects that they may name; * is all but _tenant.
	Projects []string `yaml:"projects" required:"true"`
	// The user of their leases.
	User string `yaml:"user"`
}

// APIKey is one key: its SHA-256 and what it opens.
type APIKey struct {
	// Name for logs and the audit, unique.
	Name string `yaml:"name" required:"true"`
	// SHA-256 of the key, in hexadecimal.
	SHA256 [32]byte `yaml:"sha256" form:"hex" required:"true" secret:"true"`
	// Tenant or * → projects or *. * is never _vance or _tenant.
	Tenants map[string][]string `yaml:"tenants"`
	// The user that the key stands for.
	User string `yaml:"user"`
	// Header in which a key that may speak for users names one.
	UserHeader string `yaml:"userHeader"`
	// operator: all tenants' leases; tenantAdmin: those of its tenants.
	Roles []string `yaml:"roles" enum:"operator,tenantAdmin"`
	// What a lost session answers: reopen (one tools/call says so, and the next
	// goes on under the client's session id) or notFound (404, and the client opens
	// anew).
	OnLost principal.OnLost `yaml:"onLost" default:"reopen" enum:"reopen,notFound"`
}

// The roles of a key or token besides its scope.
const (
	RoleOperator    = "operator"    // all tenants' leases
	RoleTenantAdmin = "tenantAdmin" // those of its tenants
)

// JWT is how bearer tokens of an identity provider are judged: asymmetric
// algorithms only, exp required; an absent claim grants nothing.
type JWT struct {
	// The iss that tokens must have.
	Issuer string `yaml:"issuer" required:"true"`
	// The aud that tokens must have.
	Audience string `yaml:"audience" required:"true"`
	// Where the provider's public keys are.
	JWKSURL string `yaml:"jwksURL" required:"true"`
	// Names of the claims that carry a scope.
	Claims Claims `yaml:"claims"`
}

// Claims names the token's claims that carry a scope.
type Claims struct {
	Tenant   string `yaml:"tenant" default:"tenant"`
	Projects string `yaml:"projects" default:"projects"`
	User     string `yaml:"user" default:"sub"`
	Roles    string `yaml:"roles" default:"roles"`
}

// Telemetry configures the audit log and traces. Traces are off unless an
// endpoint is set.
type Telemetry struct {
	// File of the audit log, JSON lines, opened anew when it was moved away.
	// Empty means the standard output, which carries nothing else; the log goes
	// to standard error.
	Audit string `yaml:"audit"`
	// URL of an OTLP/HTTP collector, such as http://collector:4318.
	OTLPEndpoint string `yaml:"otlpEndpoint"`
	// Share of the traces that begin here and are kept, 0 to 1.
	SampleRatio float64 `yaml:"sampleRatio" default:"1" min:"0" max:"1"`
}

// Loopback reports whether the client listener can be reached from this machine
// only.
func (g *Gateway) Loopback() bool { return loopback.Host(g.Listen) }

// Embedded reports whether the store is a file of this one pod.
func (g *Gateway) Embedded() bool { return g.Store.Kind == EmbeddedStore }
