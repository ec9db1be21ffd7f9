package mongostore

import (
	"context"
	"errors"
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
	ID         string            `bson:"_id,omitempty"`
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

// claimAttempts bounds how often a claim begins anew because the TTL index took
// the record away in between.
const claimAttempts = 3

// ClaimRecord implements lease.Records. A record that is there takes one
// command. A new one takes three: none, then a record that has ended long ago,
// then again the first. So one filter and one pipeline decide who owns it, and
// two claims that meet never depend on how the server runs a colliding upsert.
func (s *Store) ClaimRecord(ctx context.Context, r lease.Record) (lease.Record, error) {
	const verb = "claim record"
	c, err := s.collections(ctx)
	if err != nil {
		return lease.Record{}, err
	}
	ended := bson.D{{Key: "$lte", Value: bson.A{"$expiresAt", now}}}
	choose := func(field string, mine any) bson.E {
		return bson.E{Key: field, Value: bson.D{{Key: "$cond", Value: bson.A{ended, literal(mine), "$" + field}}}}
	}
	claim := mongo.Pipeline{
		{set(bson.D{choose("value", escapeFields(r.Value)), choose("ttlSeconds", seconds(r.TTL))})},
		{set(bson.D{{Key: "expiresAt", Value: bson.D{{Key: "$add", Value: bson.A{now, bson.D{{Key: "$multiply", Value: bson.A{"$ttlSeconds", 1000}}}}}}}})},
	}
	for range claimAttempts {
		d, ok, err := one[recordDoc](verb, c.records.FindOneAndUpdate(ctx, bson.D{recordID(r.Kind, r.Key)}, claim,
			options.FindOneAndUpdate().SetReturnDocument(options.After)))
		if err != nil || ok {
			return d.view(), err
		}
		_, err = s.update(ctx, verb, records,
			bson.D{recordID(r.Kind, r.Key), absent("kind")},
			bson.D{{Key: "$setOnInsert", Value: recordDoc{Kind: r.Kind, Key: r.Key, ExpiresAt: time.UnixMilli(0)}}}, upsert())
		if err != nil && !mongo.IsDuplicateKeyError(err) { // a duplicate: another claim was first
			return lease.Record{}, err
		}
	}
	return lease.Record{}, failed(verb, errors.New("the record vanished each time that it was made"))
}

// LookupRecord implements lease.Records.
func (s *Store) LookupRecord(ctx context.Context, kind, key string) (lease.Record, bool, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return lease.Record{}, false, err
	}
	d, ok, err := one[recordDoc]("look up record", c.records.FindOne(ctx, bson.D{recordID(kind, key), where("$lt", age("expiresAt"), 0)}))
	return d.view(), ok, err
}

// PurgeRecords implements lease.Records.
func (s *Store) PurgeRecords(ctx context.Context) (int, error) {
	return s.deleteMany(ctx, "purge records", records, bson.D{where("$gte", age("expiresAt"), 0)})
}
