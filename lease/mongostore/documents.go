package mongostore

import (
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// defaultLimit is what a limit of zero means.
const defaultLimit = 1000

// now is server time at the beginning of the command.
const now = "$$NOW"

// payloadKey is the payload's member that is indexed.
var payloadKey = escapeField(lease.PayloadKey)

// holderDoc is resource_lease_holders.
type holderDoc struct {
	Token      string            `bson:"_id"`
	State      lease.State       `bson:"state"`
	Type       string            `bson:"type"`
	Resource   string            `bson:"resource"`
	Lease      string            `bson:"lease"`
	Label      string            `bson:"label"`
	Tenant     string            `bson:"tenantId"`
	Project    string            `bson:"projectId"`
	User       string            `bson:"userId"`
	HolderRef  string            `bson:"holderRef"`
	Pod        string            `bson:"pod"`
	PodBound   bool              `bson:"podBound"`
	Payload    map[string]string `bson:"payload"`
	Levels     []bookingDoc      `bson:"levels"`
	TTLSeconds float64           `bson:"ttlSeconds"`
	CreatedAt  time.Time         `bson:"createdAt"`
	LastSeenAt time.Time         `bson:"lastSeenAt"`
	Revoked    *revokedDoc       `bson:"revoked"`
}

type bookingDoc struct {
	ID    string           `bson:"id"`
	Level definition.Level `bson:"level"`
	Gen   string           `bson:"gen"`
}

type revokedDoc struct {
	Reason    lease.Reason `bson:"reason"`
	By        string       `bson:"by"`
	At        time.Time    `bson:"at"`
	Forced    bool         `bson:"forced"`
	HandledAt time.Time    `bson:"handledAt"`
}

func (d *holderDoc) view() lease.Holder {
	h := lease.Holder{
		Token: lease.Token(d.Token), State: d.State, Type: d.Type, Resource: d.Resource, Lease: d.Lease, Label: d.Label,
		Tenant: d.Tenant, Project: d.Project, User: d.User, HolderRef: d.HolderRef,
		Pod: lease.PodID(d.Pod), PodBound: d.PodBound, Payload: unescapeFields(d.Payload),
		TTL: fromSeconds(d.TTLSeconds), CreatedAt: d.CreatedAt.UTC(), LastSeenAt: d.LastSeenAt.UTC(),
	}
	for _, b := range d.Levels {
		h.Levels = append(h.Levels, lease.Booking{ID: lease.CounterID(b.ID), Level: b.Level, Gen: lease.Gen(b.Gen)})
	}
	if r := d.Revoked; r != nil {
		h.Revocation = &lease.Revocation{Reason: r.Reason, By: r.By, Forced: r.Forced, At: r.At.UTC(), HandledAt: r.HandledAt.UTC()}
	}
	return h
}

func views(docs []holderDoc) []lease.Holder {
	out := make([]lease.Holder, len(docs))
	for i := range docs {
		out[i] = docs[i].view()
	}
	return out
}

func booking(b lease.Booking) bookingDoc {
	return bookingDoc{ID: string(b.ID), Level: b.Level, Gen: string(b.Gen)}
}

// counterDoc is resource_lease_counters; ages are computed by reads that want
// them. Besides these it has prev, the gen that an audit's beginning or end has
// changed to gen, and closedAt, when the last audit ended.
type counterDoc struct {
	ID        string         `bson:"_id"`
	Count     int            `bson:"count"`
	Cap       definition.Cap `bson:"cap"`
	UpdatedAt time.Time      `bson:"updatedAt"`
	Gen       string         `bson:"gen"`
	Old       int            `bson:"old"`      // means nothing where no audit is open
	AuditAt   *time.Time     `bson:"auditAt"`  // nil where no audit is open
	Age       float64        `bson:"age"`      // milliseconds
	AuditAge  *float64       `bson:"auditAge"` // milliseconds
}

func (d *counterDoc) view() lease.Counter {
	c := lease.Counter{ID: lease.CounterID(d.ID), Count: d.Count, Cap: d.Cap, UpdatedAt: d.UpdatedAt.UTC(), Gen: lease.Gen(d.Gen)}
	if d.AuditAt != nil {
		c.Audit = &lease.Audit{Old: d.Old, OpenedAt: d.AuditAt.UTC()}
	}
	return c
}

// seconds is how ttlSeconds is written: a whole number where it is one.
func seconds(d time.Duration) any {
	if d%time.Second == 0 {
		return int64(d / time.Second)
	}
	return d.Seconds()
}

func fromSeconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

// millis is a duration in BSON's unit of dates.
func millis(d time.Duration) int64 { return d.Milliseconds() }

func fromMillis(ms float64) time.Duration {
	return max(time.Duration(ms*float64(time.Millisecond)), 0)
}

// literal keeps a text that begins with $ from being read as an expression.
func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

// where is a condition on two expressions, for a filter. The $cond around the
// comparison changes nothing in its meaning: it keeps DocumentDB from looking
// for an index that could answer the comparison, where it refuses $$NOW.
func where(op string, a, b any) bson.E {
	compare := bson.D{{Key: op, Value: bson.A{a, b}}}
	return bson.E{Key: "$expr", Value: bson.D{{Key: "$cond", Value: bson.A{compare, true, false}}}}
}

// age is the age of a date field in milliseconds by server time.
func age(field string) bson.D {
	return bson.D{{Key: "$subtract", Value: bson.A{now, "$" + field}}}
}

// idle matches a holder whose TTL has passed, and grace more.
func idle(grace time.Duration) bson.E {
	ttl := bson.D{{Key: "$multiply", Value: bson.A{"$ttlSeconds", 1000}}}
	return where("$gt", age("lastSeenAt"), bson.D{{Key: "$add", Value: bson.A{ttl, millis(grace)}}})
}

// touchedNow sets date fields to server time.
func touchedNow(fields ...string) bson.E {
	d := bson.D{}
	for _, f := range fields {
		d = append(d, bson.E{Key: f, Value: true})
	}
	return bson.E{Key: "$currentDate", Value: d}
}

// fieldEscapes keeps names that are data out of MongoDB's syntax for paths and
// operators.
var (
	fieldEscapes   = strings.NewReplacer("%", "%25", ".", "%2E", "$", "%24", "\x00", "%00")
	fieldUnescapes = strings.NewReplacer("%25", "%", "%2E", ".", "%24", "$", "%00", "\x00")
)

func escapeField(name string) string { return fieldEscapes.Replace(name) }

func escapeFields(m map[string]string) bson.M {
	out := bson.M{}
	for k, v := range m {
		out[escapeField(k)] = v
	}
	return out
}

func unescapeFields(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[fieldUnescapes.Replace(k)] = v
	}
	return out
}

func limitOf(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return limit
}
