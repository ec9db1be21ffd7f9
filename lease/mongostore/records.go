package mongostore

import (
	"context"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// recordDoc is gateway_records. A TTL index removes records some time after
// their end; reads do not wait for it.
type recordDoc struct {
	ID         string            `bson:"_id"`
	Kind       string            `bson:"kind"`
	Key        string            `bson:"key"`
	Value      map[string]string `bson:"value"`
	TTLSeconds float64           `bson:"ttlSeconds"`
	ExpiresAt  time.Time         `bson:"expiresAt"`
}

func (d *recordDoc) view() lease.Record {
	return lease.Record{Kind: d.Kind, Key: d.Key, Value: unescapeFields(d.Value), TTL: fromSeconds(d.TTLSeconds)}
}

// recordID joins kind and key so that no two pairs share an id.
func recordID(kind, key string) bson.E {
	return bson.E{Key: "_id", Value: strings.NewReplacer("%", "%25", "|", "%7C").Replace(kind) + "|" + key}
}

// claimAttempts bounds the repetitions of a claim that collided with another's
// insert. A duplicate key says that nothing was written, so this repeats no
// write whose outcome is open.
const claimAttempts = 3

// ClaimRecord implements lease.Records.
func (s *Store) ClaimRecord(ctx context.Context, r lease.Record) (lease.Record, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return lease.Record{}, err
	}
	// One pipeline decides: a missing or ended record is replaced, a living one
	// keeps its value; either way its TTL begins now.
	ended := bson.D{{Key: "$lte", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$expiresAt", now}}}, now}}}
	choose := func(field string, mine any) bson.E {
		return bson.E{Key: field, Value: bson.D{{Key: "$cond", Value: bson.A{ended, mine, "$" + field}}}}
	}
	claim := mongo.Pipeline{
		{set(bson.D{
			{Key: "kind", Value: literal(r.Kind)},
			{Key: "key", Value: literal(r.Key)},
			choose("value", literal(escapeFields(r.Value))),
			choose("ttlSeconds", literal(seconds(r.TTL))),
		})},
		{set(bson.D{{Key: "expiresAt", Value: bson.D{{Key: "$add", Value: bson.A{now, bson.D{{Key: "$multiply", Value: bson.A{"$ttlSeconds", 1000}}}}}}}})},
	}
	for attempt := 1; ; attempt++ {
		d, _, err := one[recordDoc]("claim record", c.records.FindOneAndUpdate(ctx, bson.D{recordID(r.Kind, r.Key)}, claim,
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)))
		if mongo.IsDuplicateKeyError(err) && attempt < claimAttempts {
			continue
		}
		return d.view(), err
	}
}

// LookupRecord implements lease.Records.
func (s *Store) LookupRecord(ctx context.Context, kind, key string) (lease.Record, bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return lease.Record{}, false, err
	}
	d, ok, err := one[recordDoc]("look up record", c.records.FindOne(ctx, bson.D{recordID(kind, key), where("$gt", "$expiresAt", now)}))
	return d.view(), ok, err
}

// PurgeRecords implements lease.Records. It takes two commands, as PurgeHandled
// does; the second spares a record that was claimed anew in between, whose end
// then lies behind those that were read.
func (s *Store) PurgeRecords(ctx context.Context) (int, error) {
	const verb = "purge records"
	total := 0
	for {
		old, err := list[recordDoc](ctx, s, verb, records, bson.D{where("$lte", "$expiresAt", now)}, defaultLimit,
			options.Find().SetProjection(bson.D{{Key: "expiresAt", Value: 1}}))
		if err != nil || len(old) == 0 {
			return total, err
		}
		ids := make([]string, len(old))
		var last time.Time
		for i, d := range old {
			ids[i] = d.ID
			if d.ExpiresAt.After(last) {
				last = d.ExpiresAt
			}
		}
		c, err := s.collections(ctx)
		if err != nil {
			return total, err
		}
		r, err := c.records.DeleteMany(ctx, bson.D{among("_id", ids), {Key: "expiresAt", Value: bson.D{{Key: "$lte", Value: last}}}})
		if err != nil {
			return total, failed(verb, err)
		}
		total += int(r.DeletedCount)
		if len(old) < defaultLimit {
			return total, nil
		}
	}
}
