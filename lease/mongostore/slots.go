package mongostore

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/internal/groups"
)

// counterGroups is how changes of one counter go together. The server makes one
// after the other in any case, and two at once would only be in each other's way.
var counterGroups = groups.Options{AtOnce: 1, Most: 1000, Timeout: opTimeout}

// slotOf is a counter, and the cap up to which slots of it are taken.
type slotOf struct {
	id    lease.CounterID
	limit definition.Cap
}

// slot is what an increment is answered with.
type slot struct {
	gen   lease.Gen
	count int // after this increment
	ok    bool
}

// Increment implements lease.CounterStore. Those of one counter and cap that come
// at the same time go to the server in one command, in the order of their arrival;
// see incrementGroup.
func (s *Store) Increment(ctx context.Context, id lease.CounterID, limit definition.Cap) (lease.Gen, int, bool, error) {
	got, err := s.increments.Do(ctx, slotOf{id, limit}, struct{}{})
	return got.gen, got.count, got.ok, err
}

// incrementGroup takes as many slots as are wanted and as there are. It is what so
// many increments one after the other do. It is never an upsert: with two first
// uses at once the loser would collide with the id and report a full level
// (spec §4).
func (s *Store) incrementGroup(ctx context.Context, of slotOf, all []struct{}) ([]slot, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return nil, err
	}
	room := bson.D{byID(of.id), {Key: "count", Value: bson.D{{Key: "$lt", Value: int(of.limit)}}}}
	answers := make([]slot, len(all))
	if len(all) == 1 {
		d, ok, err := one[counterDoc]("increment", c.counters.FindOneAndUpdate(ctx, room,
			bson.D{add(1), set(bson.D{{Key: "cap", Value: int(of.limit)}}), touchedNow("updatedAt")},
			options.FindOneAndUpdate().SetReturnDocument(options.After)))
		answers[0] = slot{lease.Gen(d.Gen), d.Count, ok}
		return answers, err
	}
	filled := bson.D{{Key: "$min", Value: bson.A{bson.D{{Key: "$add", Value: bson.A{"$count", len(all)}}}, int(of.limit)}}}
	before, ok, err := one[counterDoc]("increment", c.counters.FindOneAndUpdate(ctx, room,
		mongo.Pipeline{{set(bson.D{{Key: "count", Value: filled}, {Key: "cap", Value: int(of.limit)}, {Key: "updatedAt", Value: now}})}},
		options.FindOneAndUpdate().SetReturnDocument(options.Before)))
	if err != nil || !ok {
		return answers, err
	}
	for i := range min(len(all), int(of.limit)-before.Count) {
		answers[i] = slot{lease.Gen(before.Gen), before.Count + i + 1, true}
	}
	return answers, nil
}

// giveBack is a counter, the gen for which a slot of it is given back, and the gen
// that the booking lists.
type giveBack struct {
	id          lease.CounterID
	gen, listed lease.Gen
}

// Decrement implements lease.CounterStore. Those of one counter and gen that come at
// the same time go to the server in one command; see decrementGroup.
func (s *Store) Decrement(ctx context.Context, id lease.CounterID, gen, listed lease.Gen) (bool, error) {
	return s.decrements.Do(ctx, giveBack{id, gen, listed}, struct{}{})
}

// decrementGroup gives as many slots back as are wanted and as are counted. It is
// what so many decrements one after the other do.
func (s *Store) decrementGroup(ctx context.Context, of giveBack, all []struct{}) ([]bool, error) {
	counted := bson.D{byID(of.id), {Key: "gen", Value: string(of.gen)}, positive}
	answers := make([]bool, len(all))
	if len(all) == 1 {
		off := takeOff
		if of.listed != of.gen {
			off = takeOldOff
		}
		ok, err := s.update(ctx, "decrement", counters, counted, bson.D{off, touchedNow("updatedAt")})
		answers[0] = ok
		return answers, err
	}
	c, err := s.collections(ctx)
	if err != nil {
		return nil, err
	}
	taken := bson.D{{Key: "$min", Value: bson.A{"$count", len(all)}}}
	less := bson.D{{Key: "count", Value: bson.D{{Key: "$subtract", Value: bson.A{"$count", taken}}}}, {Key: "updatedAt", Value: now}}
	if of.listed != of.gen {
		old := bson.D{{Key: "$ifNull", Value: bson.A{"$old", 0}}}
		less = append(less, bson.E{Key: "old", Value: bson.D{{Key: "$subtract", Value: bson.A{old, taken}}}})
	}
	before, ok, err := one[counterDoc]("decrement", c.counters.FindOneAndUpdate(ctx, counted, mongo.Pipeline{{set(less)}},
		options.FindOneAndUpdate().SetReturnDocument(options.Before)))
	if err != nil || !ok {
		return answers, err
	}
	for i := range min(len(all), before.Count) {
		answers[i] = true
	}
	return answers, nil
}
