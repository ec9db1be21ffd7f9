package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// failed names the verb in an error.
func failed(verb string, err error) error {
	return fmt.Errorf("lease store in MongoDB: %s: %w", verb, reached(err))
}

// pick chooses a collection.
type pick func(*collections) *mongo.Collection

func counters(c *collections) *mongo.Collection { return c.counters }
func holders(c *collections) *mongo.Collection  { return c.holders }
func pods(c *collections) *mongo.Collection     { return c.pods }
func events(c *collections) *mongo.Collection   { return c.events }
func records(c *collections) *mongo.Collection  { return c.records }

// update runs one update and reports whether the filter matched, whatever the
// update changed: two touches in one millisecond write the same value.
func (s *Store) update(ctx context.Context, verb string, in pick, filter, change any, opts ...options.Lister[options.UpdateOneOptions]) (bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return false, err
	}
	r, err := in(c).UpdateOne(ctx, filter, change, opts...)
	if err != nil {
		return false, failed(verb, err)
	}
	return r.MatchedCount > 0, nil
}

// deleteMany runs one delete and returns how many it took.
func (s *Store) deleteMany(ctx context.Context, verb string, in pick, filter any) (int, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return 0, err
	}
	r, err := in(c).DeleteMany(ctx, filter)
	if err != nil {
		return 0, failed(verb, err)
	}
	return int(r.DeletedCount), nil
}

func upsert() *options.UpdateOneOptionsBuilder { return options.UpdateOne().SetUpsert(true) }

// one decodes what a command found; false where that was nothing.
func one[T any](verb string, r *mongo.SingleResult) (v T, ok bool, err error) {
	switch err := r.Decode(&v); {
	case errors.Is(err, mongo.ErrNoDocuments):
		return v, false, nil
	case err != nil:
		return v, false, failed(verb, err)
	}
	return v, true, nil
}

// list runs one find whose result is at most limit documents in one batch.
func list[T any](ctx context.Context, s *Store, verb string, in pick, filter any, limit int, o *options.FindOptionsBuilder) ([]T, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return nil, err
	}
	cur, err := in(c).Find(ctx, filter, o.SetLimit(int64(limit)).SetBatchSize(int32(limit)+1))
	if err != nil {
		return nil, failed(verb, err)
	}
	return all[T](ctx, verb, cur)
}

func all[T any](ctx context.Context, verb string, cur *mongo.Cursor) ([]T, error) {
	var out []T
	if err := cur.All(ctx, &out); err != nil {
		return nil, failed(verb, err)
	}
	return out, nil
}

// sortBy sorts by fields in rising order.
func sortBy(fields ...string) *options.FindOptionsBuilder {
	d := bson.D{}
	for _, f := range fields {
		d = append(d, bson.E{Key: f, Value: 1})
	}
	return options.Find().SetSort(d)
}
