package boltstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// The buckets. Holders' payloads and last touches have their own, so that a
// push does not rewrite a payload and a touch rewrites eight bytes.
var (
	bucketMeta     = []byte("meta")
	bucketHolders  = []byte("holders")  // token → holderDoc
	bucketPayloads = []byte("payloads") // token → payload
	bucketSeen     = []byte("seen")     // token → last touch
	bucketCounters = []byte("counters") // counter id → counterDoc
	bucketPods     = []byte("pods")     // pod id → podDoc
	bucketEvents   = []byte("events")   // sequence → event
	bucketRecords  = []byte("records")  // kind, key → expiry and value

	// Indexes; each key ends with what it points to, each value is empty.
	indexPod       = []byte("holders by pod")       // pod, token
	indexKey       = []byte("holders by key")       // payload key, token
	indexDue       = []byte("holders by expiry")    // resource, time, token; PENDING and HELD
	indexBooking   = []byte("holders by counter")   // counter id, createdAt, token; PENDING and HELD
	indexUnhandled = []byte("unhandled marks")      // time of the mark, token
	indexHandled   = []byte("handled marks")        // handledAt, token
	indexEvents    = []byte("events by tenant")     // tenant, sequence
	indexRecords   = []byte("records by their end") // time, kind, key

	keyFormat = []byte("format")

	dataBuckets = [][]byte{
		bucketHolders, bucketPayloads, bucketSeen, bucketCounters, bucketPods, bucketEvents, bucketRecords,
		indexPod, indexKey, indexDue, indexBooking, indexUnhandled, indexHandled, indexEvents, indexRecords,
	}
)

// holderDoc is a holder without its token, payload and touches. Times are Unix
// nanoseconds by store time.
type holderDoc struct {
	State     lease.State  `json:"state"`
	Type      string       `json:"type"`
	Resource  string       `json:"resource"`
	Lease     string       `json:"lease,omitempty"`
	Label     string       `json:"label,omitempty"`
	Tenant    string       `json:"tenantId,omitempty"`
	Project   string       `json:"projectId,omitempty"`
	User      string       `json:"userId,omitempty"`
	HolderRef string       `json:"holderRef,omitempty"`
	Pod       lease.PodID  `json:"pod,omitempty"`
	PodBound  bool         `json:"podBound,omitempty"`
	Key       string       `json:"key,omitempty"` // the payload's PayloadKey
	Levels    []bookingDoc `json:"levels,omitempty"`
	TTL       int64        `json:"ttl"`
	CreatedAt int64        `json:"createdAt"`
	SeenAt    int64        `json:"lastSeenAt"` // as of the last change of state
	Due       int64        `json:"due"`        // where the expiry index has it; a lower bound
	Revoked   *revokedDoc  `json:"revoked,omitempty"`
}

type bookingDoc struct {
	ID    lease.CounterID  `json:"id"`
	Level definition.Level `json:"level"`
	Gen   lease.Gen        `json:"gen"`
}

type revokedDoc struct {
	Reason    lease.Reason `json:"reason"`
	By        string       `json:"by,omitempty"`
	Forced    bool         `json:"forced,omitempty"`
	At        int64        `json:"at"`
	HandledAt int64        `json:"handledAt,omitempty"`
}

type counterDoc struct {
	Count     int            `json:"count"`
	Cap       definition.Cap `json:"cap,omitempty"`
	UpdatedAt int64          `json:"updatedAt"`
	Gen       lease.Gen      `json:"gen"`
	Prev      lease.Gen      `json:"prev,omitempty"`     // what an audit's beginning or end has changed to Gen
	Old       int            `json:"old,omitempty"`      // of an open audit
	AuditAt   int64          `json:"auditAt,omitempty"`  // when the open audit began; 0 where none is open
	ClosedAt  int64          `json:"closedAt,omitempty"` // when the last audit ended
}

type podDoc struct {
	Endpoint   string         `json:"endpoint,omitempty"`
	State      lease.PodState `json:"state"`
	HandedOver bool           `json:"handedOver,omitempty"`
	StartedAt  int64          `json:"startedAt"`
	BeatAt     int64          `json:"beatAt"`
}

type recordDoc struct {
	Value map[string]string `json:"value,omitempty"`
	TTL   int64             `json:"ttl"`
	End   int64             `json:"end"`
}

func (h *holderDoc) living() bool { return h.State == lease.Pending || h.State == lease.Held }

// entry is one key in an index.
type entry struct{ index, key string }

// entries are all index keys of a holder. They follow from the document alone,
// so that what a change has to remove is known from what was there before.
func (h *holderDoc) entries(t lease.Token) map[entry]bool {
	out := map[entry]bool{}
	add := func(index []byte, key string) { out[entry{string(index), key}] = true }
	add(indexPod, part(string(h.Pod))+string(t))
	if h.Key != "" {
		add(indexKey, part(h.Key)+string(t))
	}
	switch {
	case h.living():
		add(indexDue, part(h.Resource)+string(be(h.Due))+string(t))
		for _, b := range h.Levels {
			add(indexBooking, part(string(b.ID))+string(be(h.CreatedAt))+string(t))
		}
	case h.Revoked.HandledAt == 0:
		add(indexUnhandled, string(be(h.Revoked.At))+string(t))
	default:
		add(indexHandled, string(be(h.Revoked.HandledAt))+string(t))
	}
	return out
}

// part encodes one part of a key so that no part is the beginning of another
// and parts sort like their texts.
func part(s string) string {
	return strings.ReplaceAll(s, "\x00", "\x00\xff") + "\x00\x01"
}

// behind is the smallest key that lies behind all that begin with part(s).
func behind(s string) string {
	return strings.TrimSuffix(part(s), "\x01") + "\x02"
}

// unpart takes the first part off a key.
func unpart(key string) (first, rest string) {
	for i := 0; i+1 < len(key); i++ {
		if key[i] == 0 {
			if key[i+1] == 1 {
				return strings.ReplaceAll(key[:i], "\x00\xff", "\x00"), key[i+2:]
			}
			i++
		}
	}
	return key, ""
}

// encode never fails: documents hold texts, numbers and maps of texts.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("boltstore: %T: %v", v, err))
	}
	return b
}

func decode[T any](b []byte) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(b, v); err != nil {
		return nil, err
	}
	return v, nil
}

// put writes a key and remembers that the transaction has changed something.
func (x *txn) put(bucket, key, value []byte) error {
	x.wrote = true
	return x.Bucket(bucket).Put(key, value)
}

func (x *txn) del(bucket, key []byte) error {
	x.wrote = true
	return x.Bucket(bucket).Delete(key)
}

// holder reads a document; nil where there is none.
func (x *txn) holder(t lease.Token) (*holderDoc, error) {
	v := x.Bucket(bucketHolders).Get([]byte(t))
	if v == nil {
		return nil, nil
	}
	return decodeHolder(v)
}

func decodeHolder(v []byte) (*holderDoc, error) {
	h, err := decode[holderDoc](v)
	if err == nil && !h.living() && h.Revoked == nil {
		err = fmt.Errorf("a holder with state %q and no revocation", h.State)
	}
	if err != nil {
		return nil, fmt.Errorf("holder: %w", err)
	}
	return h, nil
}

func (x *txn) eachHolder(f func(lease.Token, *holderDoc) error) error {
	return x.Bucket(bucketHolders).ForEach(func(k, v []byte) error {
		h, err := decodeHolder(v)
		if err != nil {
			return err
		}
		return f(lease.Token(k), h)
	})
}

// putHolder writes next in before's place, with its indexes. Nil before makes
// it, nil next deletes it with all that belongs to it.
func (x *txn) putHolder(t lease.Token, before, next *holderDoc) error {
	var was, is map[entry]bool
	if before != nil {
		was = before.entries(t)
	}
	if next != nil {
		is = next.entries(t)
	}
	for e := range was {
		if !is[e] {
			if err := x.del([]byte(e.index), []byte(e.key)); err != nil {
				return err
			}
		}
	}
	for e := range is {
		if !was[e] {
			if err := x.put([]byte(e.index), []byte(e.key), nil); err != nil {
				return err
			}
		}
	}
	if next != nil {
		return x.put(bucketHolders, []byte(t), encode(next))
	}
	for _, b := range [][]byte{bucketHolders, bucketPayloads, bucketSeen} {
		if err := x.del(b, []byte(t)); err != nil {
			return err
		}
	}
	return nil
}

// storedSeen is the last touch that is on disk.
func (x *txn) storedSeen(t lease.Token, h *holderDoc) int64 {
	return max(h.SeenAt, fromBE(x.Bucket(bucketSeen).Get([]byte(t))))
}

// expiry is when the holder's TTL ends.
func (x *txn) expiry(t lease.Token, h *holderDoc) int64 {
	return x.lastSeen(t, h) + h.TTL
}

// lastSeen is the last touch: memory's for a HELD holder.
func (x *txn) lastSeen(t lease.Token, h *holderDoc) int64 {
	if h.State != lease.Held {
		return h.SeenAt
	}
	return x.store.seats.seen(t, x.storedSeen(t, h))
}

// view is the holder as callers see it.
func (x *txn) view(t lease.Token, h *holderDoc, seen int64) (lease.Holder, error) {
	out := lease.Holder{
		Token: t, State: h.State, Type: h.Type, Resource: h.Resource, Lease: h.Lease, Label: h.Label,
		Tenant: h.Tenant, Project: h.Project, User: h.User, HolderRef: h.HolderRef, Pod: h.Pod, PodBound: h.PodBound,
		TTL: time.Duration(h.TTL), CreatedAt: at(h.CreatedAt), LastSeenAt: at(seen),
	}
	for _, b := range h.Levels {
		out.Levels = append(out.Levels, lease.Booking(b))
	}
	if v := x.Bucket(bucketPayloads).Get([]byte(t)); v != nil {
		p, err := decode[lease.Payload](v)
		if err != nil {
			return lease.Holder{}, fmt.Errorf("payload: %w", err)
		}
		out.Payload = *p
	}
	if r := h.Revoked; r != nil {
		out.Revocation = &lease.Revocation{Reason: r.Reason, By: r.By, Forced: r.Forced, At: at(r.At), HandledAt: at(r.HandledAt)}
	}
	return out, nil
}

// at is the time of a stored number; zero stays the zero time.
func at(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// eachDue calls f for PENDING and HELD holders whose entry in the expiry index
// lies before limit, of one resource or, with "", of all.
func (x *txn) eachDue(resource string, limit int64, f func(lease.Token, *holderDoc) (more bool, err error)) error {
	b := x.Bucket(indexDue)
	c := b.Cursor()
	var prefix string
	if resource != "" {
		prefix = part(resource)
	}
	k, _ := c.Seek([]byte(prefix))
	for k != nil && strings.HasPrefix(string(k), prefix) {
		name, rest := unpart(string(k))
		if len(rest) < 8 {
			return fmt.Errorf("expiry index: key %q is too short", k)
		}
		if fromBE([]byte(rest[:8])) >= limit { // on to the next resource
			k, _ = c.Seek([]byte(behind(name)))
			continue
		}
		t := lease.Token(rest[8:])
		h, err := x.holder(t)
		if err != nil {
			return err
		}
		if h != nil {
			if more, err := f(t, h); err != nil || !more {
				return err
			}
		}
		k, _ = c.Next()
	}
	return nil
}
