package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

func byToken(t lease.Token) bson.E     { return bson.E{Key: "_id", Value: string(t)} }
func inState(state lease.State) bson.E { return bson.E{Key: "state", Value: state} }
func set(fields bson.D) bson.E         { return bson.E{Key: "$set", Value: fields} }
func unset(fields ...string) bson.E {
	d := bson.D{}
	for _, f := range fields {
		d = append(d, bson.E{Key: f, Value: ""})
	}
	return bson.E{Key: "$unset", Value: d}
}
func absent(field string) bson.E {
	return bson.E{Key: field, Value: bson.D{{Key: "$exists", Value: false}}}
}
func among[T any](f string, v []T) bson.E {
	return bson.E{Key: f, Value: bson.D{{Key: "$in", Value: v}}}
}

// living are the states that book counters.
var living = among("state", []lease.State{lease.Pending, lease.Held})

// CreateHolder implements lease.HolderStore. The filter also demands that there
// is no such holder yet: a second one with the same token is a duplicate key
// and leaves the first untouched.
func (s *Store) CreateHolder(ctx context.Context, h lease.Holder) error {
	_, err := s.update(ctx, "create holder", holders,
		bson.D{byToken(h.Token), absent("state")},
		bson.D{
			{Key: "$setOnInsert", Value: bson.D{
				inState(lease.Pending),
				{Key: "type", Value: h.Type},
				{Key: "resource", Value: h.Resource},
				{Key: "lease", Value: h.Lease},
				{Key: "label", Value: h.Label},
				{Key: "tenantId", Value: h.Tenant},
				{Key: "projectId", Value: h.Project},
				{Key: "userId", Value: h.User},
				{Key: "holderRef", Value: h.HolderRef},
				{Key: "pod", Value: string(h.Pod)},
				{Key: "podBound", Value: h.PodBound},
				{Key: "payload", Value: escapeFields(h.Payload)},
				{Key: "levels", Value: bson.A{}},
				{Key: "ttlSeconds", Value: seconds(h.TTL)},
			}},
			touchedNow("createdAt", "lastSeenAt"),
		}, upsert())
	if mongo.IsDuplicateKeyError(err) {
		return failed("create holder", fmt.Errorf("a holder with this token exists already"))
	}
	return err
}

// pushable matches a PENDING holder that does not list b yet and is young
// enough.
func pushable(t lease.Token, b lease.Booking, maxAge time.Duration) bson.D {
	return bson.D{
		byToken(t), inState(lease.Pending),
		{Key: "levels.id", Value: bson.D{{Key: "$ne", Value: string(b.ID)}}},
		where("$lt", age("createdAt"), millis(maxAge)),
	}
}

func push(b lease.Booking) bson.E {
	return bson.E{Key: "$push", Value: bson.D{{Key: "levels", Value: booking(b)}}}
}

// PushLevel implements lease.HolderStore.
func (s *Store) PushLevel(ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
	return s.update(ctx, "push level", holders, pushable(t, b, maxAge), bson.D{push(b)})
}

// PushLast implements lease.HolderStore.
func (s *Store) PushLast(ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error) {
	filter := append(pushable(t, b, maxAge), bson.E{Key: "levels", Value: bson.D{{Key: "$size", Value: len(others)}}})
	if len(others) > 0 { // levels.id is in the filter already
		filter = append(filter, bson.E{Key: "$and", Value: bson.A{bson.D{{Key: "levels.id", Value: bson.D{{Key: "$all", Value: texts(others)}}}}}})
	}
	return s.update(ctx, "push last level", holders, filter, bson.D{
		push(b),
		set(bson.D{inState(lease.Held), {Key: "ttlSeconds", Value: seconds(ttl)}}),
		touchedNow("lastSeenAt"),
	})
}

// DeleteHolder implements lease.HolderStore.
func (s *Store) DeleteHolder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return lease.Holder{}, false, err
	}
	d, ok, err := one[holderDoc]("delete holder", c.holders.FindOneAndDelete(ctx, bson.D{byToken(t), living}))
	return d.view(), ok, err
}

// SetPayload implements lease.HolderStore.
func (s *Store) SetPayload(ctx context.Context, t lease.Token, p lease.Payload) (bool, error) {
	return s.update(ctx, "set payload", holders,
		bson.D{byToken(t), inState(lease.Held)},
		bson.D{set(bson.D{{Key: "payload", Value: escapeFields(p)}})})
}

// MarkHolder implements lease.HolderStore.
func (s *Store) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return lease.Holder{}, false, err
	}
	filter := bson.D{byToken(t), living}
	if m.Tenant != "" {
		filter = append(filter, bson.E{Key: "tenantId", Value: m.Tenant})
	}
	if m.Pod != "" {
		filter = append(filter, bson.E{Key: "pod", Value: string(m.Pod)})
	}
	if m.Expired { // judged by the server, at the instant of the mark
		filter = append(filter, idle(m.Grace))
	}
	mark := bson.D{{Key: "reason", Value: literal(m.Reason)}, {Key: "by", Value: literal(m.By)}, {Key: "at", Value: now}}
	if m.Forced {
		mark = append(mark, bson.E{Key: "forced", Value: literal(true)})
	}
	handled := bson.D{{Key: "$cond", Value: bson.A{ // nothing was held
		bson.D{{Key: "$eq", Value: bson.A{"$state", literal(lease.Pending)}}},
		bson.D{{Key: "handledAt", Value: now}},
		bson.D{},
	}}}
	d, ok, err := one[holderDoc]("mark holder", c.holders.FindOneAndUpdate(ctx, filter, mongo.Pipeline{{set(bson.D{
		{Key: "revoked", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{mark, handled}}}},
		{Key: "state", Value: literal(lease.Revoked)},
	})}}, options.FindOneAndUpdate().SetReturnDocument(options.Before)))
	return d.view(), ok, err
}

// AdoptHolder implements lease.HolderStore.
func (s *Store) AdoptHolder(ctx context.Context, t lease.Token, from, to lease.PodID) (bool, error) {
	return s.update(ctx, "adopt holder", holders,
		bson.D{byToken(t), inState(lease.Held), {Key: "podBound", Value: bson.D{{Key: "$ne", Value: true}}}, {Key: "pod", Value: string(from)}},
		bson.D{set(bson.D{{Key: "pod", Value: string(to)}}), touchedNow("lastSeenAt")})
}

// MarkHandled implements lease.HolderStore.
func (s *Store) MarkHandled(ctx context.Context, t lease.Token) (bool, error) {
	return s.update(ctx, "mark handled", holders,
		bson.D{byToken(t), inState(lease.Revoked), absent("revoked.handledAt")},
		bson.D{touchedNow("revoked.handledAt")})
}

// PurgeHandled implements lease.HolderStore.
func (s *Store) PurgeHandled(ctx context.Context, old time.Duration) (int, error) {
	return s.deleteMany(ctx, "purge handled marks", holders, bson.D{
		inState(lease.Revoked),
		{Key: "revoked.handledAt", Value: bson.D{{Key: "$exists", Value: true}}},
		where("$gt", age("revoked.handledAt"), millis(old)),
	})
}

// Holder implements lease.HolderStore.
func (s *Store) Holder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return lease.Holder{}, false, err
	}
	d, ok, err := one[holderDoc]("read holder", c.holders.FindOne(ctx, bson.D{byToken(t)}))
	return d.view(), ok, err
}

// Holders implements lease.HolderStore.
func (s *Store) Holders(ctx context.Context, f lease.Filter) ([]lease.Holder, error) {
	filter := bson.D{living}
	if len(f.States) > 0 {
		filter = bson.D{among("state", f.States)}
	}
	for _, want := range []struct{ field, value string }{
		{"_id", string(f.Token)},
		{"tenantId", f.Tenant},
		{"projectId", f.Project},
		{"userId", f.User},
		{"resource", f.Resource},
		{"type", f.Type},
		{"pod", string(f.Pod)},
		{"payload." + payloadKey, f.Key},
	} {
		if want.value != "" {
			filter = append(filter, bson.E{Key: want.field, Value: want.value})
		}
	}
	if f.After != "" { // _id may be in the filter already
		filter = append(filter, bson.E{Key: "$and", Value: bson.A{bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: string(f.After)}}}}}})
	}
	docs, err := list[holderDoc](ctx, s, "list holders", holders, filter, limitOf(f.Limit), sortBy("_id"))
	return views(docs), err
}

// HolderPods implements lease.HolderStore.
func (s *Store) HolderPods(ctx context.Context) ([]lease.PodID, error) {
	const verb = "list the pods of holders"
	c, err := s.collections(ctx)
	if err != nil {
		return nil, err
	}
	var out []lease.PodID
	if err := c.holders.Distinct(ctx, "pod", bson.D{living}).Decode(&out); err != nil {
		return nil, failed(verb, err)
	}
	return out, nil
}

// Expired implements lease.HolderStore.
func (s *Store) Expired(ctx context.Context, resource string, grace time.Duration, limit int) ([]lease.Holder, error) {
	filter := bson.D{living, idle(grace)}
	if resource != "" {
		filter = append(filter, bson.E{Key: "resource", Value: resource})
	}
	docs, err := list[holderDoc](ctx, s, "list expired holders", holders, filter, limitOf(limit), options.Find())
	return views(docs), err
}

// Unhandled implements lease.HolderStore.
func (s *Store) Unhandled(ctx context.Context, limit int) ([]lease.Holder, error) {
	docs, err := list[holderDoc](ctx, s, "list unhandled marks", holders,
		bson.D{inState(lease.Revoked), absent("revoked.handledAt")}, limitOf(limit), sortBy("revoked.at", "_id"))
	return views(docs), err
}

// OldestBooking implements lease.HolderStore.
func (s *Store) OldestBooking(ctx context.Context, id lease.CounterID) (time.Duration, error) {
	type booked struct {
		Age float64 `bson:"age"`
	}
	docs, err := list[booked](ctx, s, "find oldest booking", holders,
		bson.D{{Key: "levels.id", Value: string(id)}, living}, 1,
		sortBy("createdAt").SetProjection(bson.D{{Key: "age", Value: age("createdAt")}}))
	if err != nil || len(docs) == 0 {
		return 0, err
	}
	return fromMillis(docs[0].Age), nil
}

func texts[T ~string](ids []T) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}
