package lease

import (
	"context"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
)

// Store keeps holders and counters. Every verb is atomic, acts on store time
// only, and is durable (majority on MongoDB, on disk in the embedded store)
// when it returns without an error, Touch in the embedded store excepted. An
// error leaves open whether the verb was applied: the engine never repeats one
// blindly. Every verb ends at the context's deadline.
//
// Which race each verb closes is said where the engine calls it.
type Store interface {
	HolderStore
	CounterStore
	PodStore
	EventStore
	Records

	// Ping reaches the store; an error says in words what is wrong.
	Ping(ctx context.Context) error
	// SinglePod reports whether the store proves that no other process uses it,
	// so that every other pod that it names is dead.
	SinglePod() bool
	Close(ctx context.Context) error
}

// HolderStore is resource_lease_holders.
type HolderStore interface {
	// CreateHolder creates h as PENDING with h.TTL (the pending TTL) and
	// createdAt = lastSeenAt = now, by upsert on its token.
	CreateHolder(ctx context.Context, h Holder) error
	// PushLevel appends b to a PENDING holder that does not list b.ID yet and was
	// created less than maxAge ago. It reports whether it matched.
	PushLevel(ctx context.Context, t Token, b Booking, maxAge time.Duration) (bool, error)
	// PushLast is PushLevel for the last level: it demands that exactly the
	// counters of others are listed already, and also sets HELD, ttl and
	// lastSeenAt = now.
	PushLast(ctx context.Context, t Token, b Booking, others []CounterID, ttl, maxAge time.Duration) (bool, error)
	// DeleteHolder deletes a PENDING or HELD holder and returns the document
	// that it deleted; ok is false where none matched.
	DeleteHolder(ctx context.Context, t Token) (h Holder, ok bool, err error)
	// Touch sets lastSeenAt = now on a HELD holder and counts the match, not the
	// change. Where it is not podBound, pod becomes its pod.
	Touch(ctx context.Context, t Token, pod PodID) (bool, error)
	// SetPayload replaces the payload of a HELD holder.
	SetPayload(ctx context.Context, t Token, p Payload) (bool, error)
	// MarkHolder turns a PENDING or HELD holder that m matches into REVOKED and
	// returns it as it was before, so state and levels are those that were
	// given up. A PENDING one is marked handled at once: nothing was held.
	MarkHolder(ctx context.Context, t Token, m Mark) (before Holder, ok bool, err error)
	// AdoptHolder moves a HELD, not podBound holder from one pod to another and
	// sets lastSeenAt = now.
	AdoptHolder(ctx context.Context, t Token, from, to PodID) (bool, error)
	// MarkHandled sets handledAt = now on a REVOKED holder without one.
	MarkHandled(ctx context.Context, t Token) (bool, error)
	// PurgeHandled deletes REVOKED holders whose handledAt is older than age.
	PurgeHandled(ctx context.Context, age time.Duration) (int, error)
	// Holder reads one holder in any state.
	Holder(ctx context.Context, t Token) (h Holder, ok bool, err error)
	// Holders lists in token order. Empty States means PENDING and HELD.
	Holders(ctx context.Context, f Filter) ([]Holder, error)
	// HolderPods lists the pods that PENDING and HELD holders name, each once.
	HolderPods(ctx context.Context) ([]PodID, error)
	// Expired lists PENDING and HELD holders past their TTL plus grace, of one
	// resource or, with "", of all.
	Expired(ctx context.Context, resource string, grace time.Duration, limit int) ([]Holder, error)
	// Unhandled lists REVOKED holders without handledAt, oldest mark first.
	Unhandled(ctx context.Context, limit int) ([]Holder, error)
	// OldestBooking returns the age of the oldest PENDING or HELD holder that
	// lists the counter, zero where none does.
	OldestBooking(ctx context.Context, id CounterID) (time.Duration, error)
}

// Mark is what MarkHolder writes and what it demands of the holder at that
// instant.
type Mark struct {
	Cause
	// Expired demands that lastSeenAt + TTL + Grace < now.
	Expired bool
	Grace   time.Duration
}

// CounterStore is resource_lease_counters.
type CounterStore interface {
	// Increment adds one where the counter exists and count < cap. It returns
	// the counter's gen and count after the increment; ok is false where nothing
	// matched. It never creates a counter.
	Increment(ctx context.Context, id CounterID, cap definition.Cap) (gen Gen, count int, ok bool, err error)
	// EnsureCounter creates the counter with count 0, updatedAt = now and gen
	// where it does not exist; an existing one stays untouched. Racing calls all
	// succeed.
	EnsureCounter(ctx context.Context, id CounterID, gen Gen) error
	// Decrement takes one off where gen is the counter's and count > 0. Where
	// the booking that is given back lists another gen it is older than an audit
	// that is open, and one is taken off the audit's old ones, too. It never
	// creates a counter.
	Decrement(ctx context.Context, id CounterID, gen, listed Gen) (bool, error)
	// DecrementPrev takes one off where listed is the gen that an audit's
	// beginning or end has changed to the counter's, and count > 0; where the
	// audit is open one off its old ones, too. It never creates a counter.
	DecrementPrev(ctx context.Context, id CounterID, listed Gen) (bool, error)
	// Counters reads these counters in one call; missing ones are left out.
	Counters(ctx context.Context, ids []CounterID) ([]Counter, error)
	// Booked counts the PENDING and HELD holders that list each counter, in one
	// call; a counter that none lists may be left out.
	Booked(ctx context.Context, ids []CounterID) (map[CounterID]int, error)
	// ListCounters lists counters in id order after id, at most limit, of one
	// resource or, with "", of all. The resource is given as EncodeResource
	// spells it: it is the first part of the ids.
	ListCounters(ctx context.Context, resource string, after CounterID, limit int) ([]CounterAge, error)
	// CorrectCounter sets count, gen and updatedAt = now where the counter still
	// has was's count, updatedAt and gen and is older than margin. Nothing is
	// left of an audit that is open or was before, nor of the gen before.
	CorrectCounter(ctx context.Context, was Counter, count int, gen Gen, margin time.Duration) (bool, error)
	// RemoveCounter deletes the counter under the same condition.
	RemoveCounter(ctx context.Context, was Counter, margin time.Duration) (bool, error)
	// OpenAudit begins an audit where the counter still has was's count and gen,
	// none is open, and the last one ended longer than margin ago or never was:
	// gen becomes the counter's and was's its prev, all of count is old, and the
	// audit is opened now. updatedAt stays.
	OpenAudit(ctx context.Context, was Counter, gen Gen, margin time.Duration) (bool, error)
	// BookedBefore counts the PENDING and HELD holders that list the counter with
	// another gen than this one. Of bookings that only ever end it may count one
	// that ends meanwhile, and never misses one that goes on.
	BookedBefore(ctx context.Context, id CounterID, gen Gen) (int, error)
	// CloseAudit ends the audit that was shows where the counter still has its
	// gen and its number of old ones, and the audit was opened longer than margin
	// ago. What of the old ones nobody books, Old less booked, is taken off count
	// unless count would become negative; gen becomes the counter's and was's its
	// prev; updatedAt = now.
	CloseAudit(ctx context.Context, was Counter, booked int, gen Gen, margin time.Duration) (bool, error)
}

// CounterAge is a counter with its ages by store time when it was read.
type CounterAge struct {
	Counter
	Age      time.Duration // since its last change
	AuditAge time.Duration // since its open audit began; zero where none is open
}

// PodStore is gateway_pods. Times are the store's.
type PodStore interface {
	// PutPod writes a registration and its beat.
	PutPod(ctx context.Context, p Pod) error
	// BeatPod sets the beat of a registered pod that is not STOPPED.
	BeatPod(ctx context.Context, id PodID) (bool, error)
	// Pods lists all registrations with the age of their beat.
	Pods(ctx context.Context) ([]Pod, error)
	// RemovePod deletes a registration.
	RemovePod(ctx context.Context, id PodID) error
}

// EventStore is gateway_events: what happened in the last hour.
type EventStore interface {
	AddEvent(ctx context.Context, e Event) error
	// Events lists newest first, of one tenant or, with "", of all.
	Events(ctx context.Context, tenant string, limit int) ([]Event, error)
}

// Record is a small fact that a consumer keeps beside its leases, such as who
// owns a TeX job. Kind and Key name it.
type Record struct {
	Kind  string
	Key   string
	Value map[string]string
	TTL   time.Duration
}

// Records keeps small expiring facts.
type Records interface {
	// ClaimRecord stores r where its kind and key have no living record, and
	// returns the record that stands now: r itself or the earlier one, whose
	// TTL is then counted anew.
	ClaimRecord(ctx context.Context, r Record) (Record, error)
	// LookupRecord reads a living record.
	LookupRecord(ctx context.Context, kind, key string) (r Record, ok bool, err error)
	// PurgeRecords deletes expired records.
	PurgeRecords(ctx context.Context) (int, error)
}
