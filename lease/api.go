package lease

import (
	"context"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Token identifies one holder. It is a random text, never used twice. It is a
// capability within the gateway: show it shortened.
type Token string

// PodID identifies one start of a gateway process; a restart has a new one.
type PodID string

// CounterID is "<resource>|<level>|<scope>" with every part encoded (see
// NewCounterID).
type CounterID string

// Gen is the generation of a counter document. It changes whenever the
// document is made anew or corrected, so that a decrement meant for an earlier
// one finds nothing, and whenever an audit of it begins, so that bookings from
// before and after can be told apart.
type Gen string

// State is a holder's place in its life.
type State string

// A holder is PENDING while its levels are booked, HELD while its lease lives,
// REVOKED from a reap or revocation until Options.MarkLife after its handler has run.
const (
	Pending State = "PENDING"
	Held    State = "HELD"
	Revoked State = "REVOKED"
)

// Reason says why a holder was marked REVOKED.
type Reason string

// The reasons. Close is a session whose upstream end is unconfirmed: the slot
// is back, and sweeps go on trying to end the session.
const (
	ReasonIdle   Reason = "idle"
	ReasonPod    Reason = "pod"
	ReasonRevoke Reason = "revoke"
	ReasonClose  Reason = "close"
	// The holder gave the slot back by itself, and says why to whoever comes later.
	ReasonReplaced Reason = "replaced"
	ReasonShutdown Reason = "shutdown"
	ReasonCrashed  Reason = "crashed"
	ReasonMoved    Reason = "moved"
)

// Payload is what a handler needs to clean up, such as endpoint and session id
// (spec §6). The value of PayloadKey can be searched for. At most MaxPayload
// bytes in all. It can hold secrets (session ids): views redact it.
type Payload map[string]string

// PayloadKey is the payload member by which Manager.Find finds a holder.
const PayloadKey = "key"

// MaxPayload bounds a payload's keys and values together, in bytes.
const MaxPayload = 256 << 10

// Booking is one entry of a holder's levels: a counter that it has incremented.
type Booking struct {
	ID    CounterID
	Level definition.Level
	Gen   Gen
}

// Holder is one holder document (spec §4). Times are the store's.
type Holder struct {
	Token      Token
	State      State
	Type       string
	Resource   string
	Lease      string // the definition's name
	Label      string // what metrics may call it
	Tenant     string
	Project    string
	User       string
	HolderRef  string
	Pod        PodID
	PodBound   bool
	Payload    Payload
	Levels     []Booking
	TTL        time.Duration
	CreatedAt  time.Time
	LastSeenAt time.Time
	Revocation *Revocation // set where State is Revoked
}

// Revocation is why and when a holder was marked, and whether its handler has
// run.
type Revocation struct {
	Reason    Reason
	By        string // who asked, for ReasonRevoke
	Forced    bool   // without a pod: nobody has counted it
	At        time.Time
	HandledAt time.Time // zero while the handler has not run
}

// Counter is one counter document (spec §4).
type Counter struct {
	ID        CounterID
	Count     int
	Cap       definition.Cap // as of the last increment; for views
	UpdatedAt time.Time
	Gen       Gen
	Audit     *Audit // set while an audit is open
}

// Audit is an open audit of a counter that is never quiet. The counter's gen
// began with it, so a booking that lists another one is older than the audit.
type Audit struct {
	// Old is how much of the count stems from before the audit: the old
	// bookings, and what has leaked.
	Old      int
	OpenedAt time.Time
}

// Handler cleans up what a revoked lease of its type stood for (spec §6). It
// runs at least once for every revocation that the matrix does not exempt, and
// never for a release, so it is idempotent by token. An error means not done:
// the mark stays and a sweep runs the handler again.
type Handler interface {
	OnRevoked(ctx context.Context, h Holder) error
}

// Adopter is a Handler whose podBound=false holders go on living when their
// pod dies: the sweep moves them to its own pod instead of revoking them.
type Adopter interface {
	// Adopt is called after the holder has been moved to this pod.
	Adopt(ctx context.Context, h Holder) error
}

// Request asks for a lease (spec §3).
type Request struct {
	Type       string                 // handler type, set by the consumer's code
	Definition *definition.Definition // resolved by name or inline; nil or without caps is a NOOP lease
	Tenant     string
	Project    string
	User       string // may be empty where the definition has no user level
	HolderRef  string // consumer-specific, for people
	PodBound   bool   // the resource dies with this pod
	Payload    Payload
	// MaxWait cuts the definition's wait where it is shorter (session.openWait).
	// Zero leaves it; NoWait does not wait at all.
	MaxWait time.Duration
	// Retried is a request of a caller that asks again when a level is full: that
	// refusal is neither counted nor recorded.
	Retried bool
}

// NoWait as Request.MaxWait refuses at once where a level is full.
const NoWait = time.Duration(-1)

// Ref names a lease that was acquired elsewhere or earlier, so that any pod can
// check it without a lookup. Consumers keep it sealed with their session.
type Ref struct {
	Token    Token
	Type     string
	Label    string
	TTL      time.Duration
	PodBound bool
}

// Filter selects holders; empty fields select all.
type Filter struct {
	Token    Token
	Tenant   string
	Project  string
	User     string
	Resource string
	Type     string
	Pod      PodID
	Key      string // the payload's PayloadKey
	States   []State
	After    Token // page: tokens greater than this, in token order
	Limit    int   // zero means 1000
}

// Cause is why somebody takes a lease away (spec §9). It is repeated in the
// store's filter, so a lease that has changed in between lives.
type Cause struct {
	Reason Reason
	By     string // who, for the record
	Forced bool   // without a pod; the pod that sees to the mark counts it
	Tenant string // where set, only a holder of this tenant matches
	Pod    PodID  // where set, only a holder of this pod matches
}

// Swept is what one reaper round did.
type Swept struct {
	Idle      int `json:"idle"`
	Pod       int `json:"pod"`
	Adopted   int `json:"adopted"`
	Handled   int `json:"handled"`
	Unhandled int `json:"unhandled"` // marks whose handler still has to run
	Purged    int `json:"purged"`
}

// Reconciled is what one reconcile pass did.
type Reconciled struct {
	Corrected int     `json:"corrected"`
	Removed   int     `json:"removed"`
	Drift     []Drift `json:"drift"` // seen and not corrected yet
}

// Drift is a counter whose count differs from the holders that book it.
type Drift struct {
	ID     CounterID     `json:"id"`
	Count  int           `json:"count"`
	Booked int           `json:"booked"`
	Age    time.Duration `json:"ageNs"` // since the counter's last change
	// Audited says that an audit of the counter is open: a pass that comes a
	// margin after its beginning corrects it, however busy it is.
	Audited bool `json:"audited"`
}

// Occupancy is a counter with the number of holders that book it.
type Occupancy struct {
	Counter
	Resource string
	Level    definition.Level
	Scope    string
	Booked   int
	Age      time.Duration // since UpdatedAt, by the store's clock
}

// OccupancyFilter selects counters; empty fields select all.
type OccupancyFilter struct {
	Resource string
	// Tenant leaves the tenant, project and user counters of one tenant, and
	// passes over the others' without reading them all.
	Tenant string
	After  CounterID // page: ids greater than this, in id order
	Limit  int       // zero means all
}

// PodState is what a pod says of itself in its registration.
type PodState string

// The states of a pod. Only STARTING, RUNNING and STOPPING pods with a fresh
// heartbeat and an endpoint are alive.
const (
	PodStarting PodState = "STARTING"
	PodRunning  PodState = "RUNNING"
	PodStopping PodState = "STOPPING"
	PodStopped  PodState = "STOPPED"
)

// Pod is one pod's registration (gateway_pods).
type Pod struct {
	ID         PodID
	Endpoint   string // host:port of its internal listener
	State      PodState
	HandedOver bool // stopped with handover: HELD holders that are not podBound stay
	StartedAt  time.Time
	BeatAt     time.Time     // store time
	BeatAge    time.Duration // store's now − BeatAt when it was read
}

// Peers reaches other pods (spec §6, second row of the matrix).
type Peers interface {
	// Revoked asks pod to run the handler of a mark. An error means
	// unreachable, or that another process answers there.
	Revoked(ctx context.Context, pod Pod, token Token) error
}

// EventKind is what an event is about.
type EventKind string

// The kinds. The engine records the first five, whoever acts the others.
const (
	EventRefused    EventKind = "refused"    // an acquire: LEASE_BUSY or LEASE_UNAVAILABLE
	EventRevoked    EventKind = "revoked"    // by decision
	EventForced     EventKind = "forced"     // by decision, without a pod
	EventSwept      EventKind = "swept"      // by the reaper, or a sweep that somebody asked for
	EventClosed     EventKind = "closed"     // released while the end of its resource was not confirmed
	EventReconciled EventKind = "reconciled" // a pass that somebody asked for; from whom it was asked
	EventForcing    EventKind = "forcing"    // what is about to be forced; from the command line
	EventDefinition EventKind = "definition" // a document has changed; from whom it was seen
)

// Event is something an operator wants to read about later (gateway_events, an
// hour) and an auditor for good.
type Event struct {
	At       time.Time        `json:"at"`
	Kind     EventKind        `json:"kind"`
	Reason   string           `json:"reason,omitempty"`
	By       string           `json:"by,omitempty"`
	Type     string           `json:"type,omitempty"`
	Resource string           `json:"resource,omitempty"`
	Lease    string           `json:"lease,omitempty"`
	Level    definition.Level `json:"level,omitempty"`
	Tenant   string           `json:"tenant,omitempty"`
	Project  string           `json:"project,omitempty"`
	User     string           `json:"user,omitempty"`
	Pod      PodID            `json:"pod,omitempty"`
	Token    string           `json:"token,omitempty"` // shortened
}

// Outcome is how an operation ended, as metrics call it.
type Outcome string

// The outcomes of an acquire, a check, a release and a correction.
const (
	AcquireSuccess     Outcome = "success"
	AcquireBusy        Outcome = "busy"
	AcquireNoop        Outcome = "noop"
	AcquireUnavailable Outcome = "unavailable"

	CheckOK          Outcome = "ok"
	CheckLost        Outcome = "lost"
	CheckUnavailable Outcome = "unavailable"

	ReleaseOK      Outcome = "ok"
	ReleaseAlready Outcome = "already-released"
	ReleaseError   Outcome = "error"

	ReconcileCorrected Outcome = "corrected"
)

// Observer is told what happens. It feeds metrics and audit alike, must not
// block and may be called from many goroutines. Labels are Definition.Label.
type Observer interface {
	Acquired(label string, outcome Outcome, took time.Duration)
	Checked(label string, outcome Outcome)
	Released(label string, outcome Outcome)
	Reaped(reason Reason) // not of a close, which nobody took away
	Reconciled(outcome Outcome)
	// EventLost is told of an event that found no room on its way to the store.
	EventLost()
	StoreCalled(op string, took time.Duration, err error)
	// Drifted is told by each reconcile pass: the drift, and for how long passes
	// have seen some without a pause.
	Drifted(label string, level definition.Level, drift int, age time.Duration)
	Happened(Event)
}
