package mongostore

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

func byID(id lease.CounterID) bson.E { return bson.E{Key: "_id", Value: string(id)} }

func add(n int) bson.E {
	return bson.E{Key: "$inc", Value: bson.D{{Key: "count", Value: n}}}
}

// takeOldOff is for a booking that is older than an open audit. Where none is
// open what becomes of old means nothing: the next audit sets it anew.
var (
	takeOff    = add(-1)
	takeOldOff = bson.E{Key: "$inc", Value: bson.D{{Key: "count", Value: -1}, {Key: "old", Value: -1}}}
	positive   = bson.E{Key: "count", Value: bson.D{{Key: "$gt", Value: 0}}}
)

// Increment implements lease.CounterStore. It is never an upsert: with two first
// uses at once the loser would collide with the id and report a full level
// (spec §4).
func (s *Store) Increment(ctx context.Context, id lease.CounterID, limit definition.Cap) (lease.Gen, int, bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return "", 0, false, err
	}
	d, ok, err := one[counterDoc]("increment", c.counters.FindOneAndUpdate(ctx,
		bson.D{byID(id), {Key: "count", Value: bson.D{{Key: "$lt", Value: int(limit)}}}},
		bson.D{add(1), set(bson.D{{Key: "cap", Value: int(limit)}}), touchedNow("updatedAt")},
		options.FindOneAndUpdate().SetReturnDocument(options.After)))
	return lease.Gen(d.Gen), d.Count, ok, err
}

// EnsureCounter implements lease.CounterStore. An existing counter does not
// match, so the insert meets its id; that duplicate key, from a race or not,
// says that the counter is there. A pipeline under the id alone would do on
// MongoDB, but DocumentDB refuses $$NOW when two of those collide.
func (s *Store) EnsureCounter(ctx context.Context, id lease.CounterID, gen lease.Gen) error {
	_, err := s.update(ctx, "ensure counter", counters,
		bson.D{byID(id), absent("gen")},
		bson.D{
			{Key: "$setOnInsert", Value: bson.D{{Key: "count", Value: 0}, {Key: "gen", Value: string(gen)}}},
			touchedNow("updatedAt"),
		}, upsert())
	if mongo.IsDuplicateKeyError(err) {
		return nil
	}
	return err
}

// Decrement implements lease.CounterStore.
func (s *Store) Decrement(ctx context.Context, id lease.CounterID, gen, listed lease.Gen) (bool, error) {
	off := takeOff
	if listed != gen {
		off = takeOldOff
	}
	return s.update(ctx, "decrement", counters,
		bson.D{byID(id), {Key: "gen", Value: string(gen)}, positive}, bson.D{off, touchedNow("updatedAt")})
}

// DecrementPrev implements lease.CounterStore.
func (s *Store) DecrementPrev(ctx context.Context, id lease.CounterID, listed lease.Gen) (bool, error) {
	return s.update(ctx, "decrement after an audit", counters,
		bson.D{byID(id), {Key: "prev", Value: string(listed)}, positive}, bson.D{takeOldOff, touchedNow("updatedAt")})
}

// Counters implements lease.CounterStore.
func (s *Store) Counters(ctx context.Context, ids []lease.CounterID) ([]lease.Counter, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	docs, err := list[counterDoc](ctx, s, "read counters", counters, bson.D{among("_id", texts(ids))}, len(ids), options.Find())
	if err != nil {
		return nil, err
	}
	out := make([]lease.Counter, len(docs))
	for i := range docs {
		out[i] = docs[i].view()
	}
	return out, nil
}

// Booked implements lease.CounterStore.
func (s *Store) Booked(ctx context.Context, ids []lease.CounterID) (map[lease.CounterID]int, error) {
	const verb = "count bookings"
	if len(ids) == 0 {
		return nil, nil
	}
	c, err := s.collections(ctx)
	if err != nil {
		return nil, err
	}
	these := bson.D{among("levels.id", texts(ids))}
	cur, err := c.holders.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: append(bson.D{living}, these...)}},
		{{Key: "$project", Value: bson.D{{Key: "levels.id", Value: 1}}}},
		{{Key: "$unwind", Value: "$levels"}},
		{{Key: "$match", Value: these}}, // the holder's other levels
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$levels.id"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
	}, options.Aggregate().SetBatchSize(int32(len(ids))+1))
	if err != nil {
		return nil, failed(verb, err)
	}
	type booked struct {
		ID string `bson:"_id"`
		N  int    `bson:"n"`
	}
	docs, err := all[booked](ctx, verb, cur)
	if err != nil {
		return nil, err
	}
	out := make(map[lease.CounterID]int, len(docs))
	for _, d := range docs {
		out[lease.CounterID(d.ID)] = d.N
	}
	return out, nil
}

// ListCounters implements lease.CounterStore.
func (s *Store) ListCounters(ctx context.Context, resource string, after lease.CounterID, limit int) ([]lease.CounterAge, error) {
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: string(after)}}}}
	if resource != "" {
		// } is the character behind |, so this is everything that begins with the
		// resource and |.
		filter = append(filter, bson.E{Key: "$and", Value: bson.A{bson.D{{Key: "_id", Value: bson.D{
			{Key: "$gte", Value: resource + "|"}, {Key: "$lt", Value: resource + "}"},
		}}}}})
	}
	docs, err := list[counterDoc](ctx, s, "list counters", counters, filter, limitOf(limit), sortBy("_id").SetProjection(bson.D{
		{Key: "count", Value: 1}, {Key: "cap", Value: 1}, {Key: "updatedAt", Value: 1}, {Key: "gen", Value: 1},
		{Key: "old", Value: 1}, {Key: "auditAt", Value: 1}, {Key: "age", Value: age("updatedAt")}, {Key: "auditAge", Value: age("auditAt")},
	}))
	if err != nil {
		return nil, err
	}
	out := make([]lease.CounterAge, len(docs))
	for i := range docs {
		out[i] = lease.CounterAge{Counter: docs[i].view(), Age: fromMillis(docs[i].Age)}
		if a := docs[i].AuditAge; a != nil {
			out[i].AuditAge = fromMillis(*a)
		}
	}
	return out, nil
}

// unchanged matches the counter where it still is what was says, and has been
// for longer than margin.
func unchanged(was lease.Counter, margin time.Duration) bson.D {
	return bson.D{
		byID(was.ID),
		{Key: "count", Value: was.Count},
		{Key: "gen", Value: string(was.Gen)},
		{Key: "updatedAt", Value: was.UpdatedAt},
		where("$gt", age("updatedAt"), millis(margin)),
	}
}

// CorrectCounter implements lease.CounterStore.
func (s *Store) CorrectCounter(ctx context.Context, was lease.Counter, count int, gen lease.Gen, margin time.Duration) (bool, error) {
	return s.update(ctx, "correct counter", counters, unchanged(was, margin),
		bson.D{
			set(bson.D{{Key: "count", Value: count}, {Key: "gen", Value: string(gen)}}),
			unset("prev", "old", "auditAt", "closedAt"), touchedNow("updatedAt"),
		})
}

// RemoveCounter implements lease.CounterStore.
func (s *Store) RemoveCounter(ctx context.Context, was lease.Counter, margin time.Duration) (bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return false, err
	}
	_, ok, err := one[counterDoc]("remove counter", c.counters.FindOneAndDelete(ctx, unchanged(was, margin)))
	return ok, err
}

// OpenAudit implements lease.CounterStore. The count to keep as the old one is
// the one in the filter: reading it within the update would need a pipeline,
// where DocumentDB refuses $$NOW when two collide.
func (s *Store) OpenAudit(ctx context.Context, was lease.Counter, gen lease.Gen, margin time.Duration) (bool, error) {
	closed := bson.D{{Key: "$ifNull", Value: bson.A{"$closedAt", time.UnixMilli(0)}}}
	return s.update(ctx, "open audit", counters,
		bson.D{
			byID(was.ID), {Key: "count", Value: was.Count}, {Key: "gen", Value: string(was.Gen)}, absent("auditAt"),
			where("$gt", bson.D{{Key: "$subtract", Value: bson.A{now, closed}}}, millis(margin)),
		},
		bson.D{
			set(bson.D{{Key: "gen", Value: string(gen)}, {Key: "prev", Value: string(was.Gen)}, {Key: "old", Value: was.Count}}),
			touchedNow("auditAt"),
		})
}

// BookedBefore implements lease.CounterStore. It is no snapshot, but it misses
// no booking that stays: the keys of the indexes that can serve it change with
// the state alone, and a holder that is older than half a margin does not become
// HELD any more.
func (s *Store) BookedBefore(ctx context.Context, id lease.CounterID, gen lease.Gen) (int, error) {
	const verb = "count old bookings"
	c, err := s.collections(ctx)
	if err != nil {
		return 0, err
	}
	n, err := c.holders.CountDocuments(ctx, bson.D{
		living, {Key: "levels.id", Value: string(id)},
		{Key: "levels", Value: bson.D{{Key: "$elemMatch", Value: bson.D{
			{Key: "id", Value: string(id)}, {Key: "gen", Value: bson.D{{Key: "$ne", Value: string(gen)}}},
		}}}},
	})
	if err != nil {
		return 0, failed(verb, err)
	}
	return int(n), nil
}

// CloseAudit implements lease.CounterStore.
func (s *Store) CloseAudit(ctx context.Context, was lease.Counter, booked int, gen lease.Gen, margin time.Duration) (bool, error) {
	if was.Audit == nil {
		return false, nil
	}
	off := was.Audit.Old - booked
	return s.update(ctx, "close audit", counters,
		bson.D{
			byID(was.ID), {Key: "gen", Value: string(was.Gen)}, {Key: "old", Value: was.Audit.Old},
			{Key: "count", Value: bson.D{{Key: "$gte", Value: off}}},
			where("$gt", age("auditAt"), millis(margin)),
		},
		bson.D{
			add(-off), set(bson.D{{Key: "gen", Value: string(gen)}, {Key: "prev", Value: string(was.Gen)}}),
			unset("old", "auditAt"), touchedNow("updatedAt", "closedAt"),
		})
}
