package mongostore

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// The names of the collections (spec §4).
const (
	countersName = "resource_lease_counters"
	holdersName  = "resource_lease_holders"
	podsName     = "gateway_pods"
	eventsName   = "gateway_events"
	recordsName  = "gateway_records"
	markerName   = "gateway_store" // one document that says whose the others are
)

// format is what the marker says.
const format = "mcp-lease-gateway 1"

// errFormat says that a gateway of another version made the database.
var errFormat = errors.New("the database was made by another version of the gateway")

// collections are the prepared collections.
type collections struct {
	counters, holders, pods, events, records *mongo.Collection
}

// prepare refuses another system's database, marks ours and makes the indexes.
// Any number of pods may do it at once, and again at each start.
func prepare(ctx context.Context, client *mongo.Client, name string) (*collections, error) {
	var hello struct {
		SetName string `bson:"setName"`
		Msg     string `bson:"msg"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}},
		options.RunCmd().SetReadPreference(readpref.Primary())).Decode(&hello); err != nil {
		return nil, err
	}
	replicated := hello.SetName != "" || hello.Msg == "isdbgrid"
	db := client.Database(name, options.Database().SetReadConcern(majority(replicated)))
	if err := claim(ctx, db); err != nil {
		return nil, err
	}
	c := &collections{
		counters: db.Collection(countersName),
		holders:  db.Collection(holdersName),
		pods:     db.Collection(podsName),
		events:   db.Collection(eventsName),
		records:  db.Collection(recordsName),
	}
	return c, c.index(ctx)
}

// claim puts our marker into a new database. Two systems in one database would
// have two pod registries and reap each other's holders, so lease collections
// without our marker are refused, also while they are empty.
func claim(ctx context.Context, db *mongo.Database) error {
	marked, err := markedOurs(ctx, db)
	if err != nil || marked {
		return err
	}
	names, err := db.ListCollectionNames(ctx, bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: bson.A{countersName, holdersName}}}}})
	if err != nil {
		return err
	}
	if len(names) > 0 {
		// Another pod may have put the marker and made the collections since we
		// looked; the marker always comes first.
		if marked, err := markedOurs(ctx, db); err != nil || marked {
			return err
		}
		return fmt.Errorf("%w: it has %v and no marker of this gateway in %s; give the gateway a database of its own (store.database)", ErrForeign, names, markerName)
	}
	_, err = db.Collection(markerName).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: "format"}},
		bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "format", Value: format}}}},
		options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) { // another pod was first
		return nil
	}
	return err
}

func markedOurs(ctx context.Context, db *mongo.Database) (bool, error) {
	var marker struct {
		Format string `bson:"format"`
	}
	err := db.Collection(markerName).FindOne(ctx, bson.D{{Key: "_id", Value: "format"}}).Decode(&marker)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return false, nil
	case err != nil:
		return false, err
	case marker.Format != format:
		return false, fmt.Errorf("%w: its marker says %q and this gateway knows %q", errFormat, marker.Format, format)
	}
	return true, nil
}

// index makes the indexes that are missing. There is no TTL index on holders:
// who deletes one must give its counters back (spec §4).
func (c *collections) index(ctx context.Context) error {
	asc := func(keys ...string) (d bson.D) {
		for _, k := range keys {
			d = append(d, bson.E{Key: k, Value: 1})
		}
		return d
	}
	revoked := bson.D{{Key: "state", Value: "REVOKED"}}
	for _, i := range []struct {
		in     *mongo.Collection
		models []mongo.IndexModel
	}{
		{c.holders, []mongo.IndexModel{
			{Keys: asc("resource", "state", "lastSeenAt")}, // Expired
			{Keys: asc("state", "_id")},                    // Holders, Expired of all
			{Keys: asc("levels.id", "state", "createdAt")}, // Booked, OldestBooking
			{Keys: asc("pod", "state", "_id")},             // Holders of a pod
			{Keys: asc("tenantId", "state", "_id")},        // Holders of a tenant
			{Keys: asc("payload." + payloadKey), Options: options.Index().SetSparse(true)},
			{Keys: asc("revoked.at"), Options: options.Index().SetPartialFilterExpression(revoked)},
			{Keys: asc("revoked.handledAt"), Options: options.Index().SetPartialFilterExpression(revoked)},
		}},
		{c.events, []mongo.IndexModel{
			{Keys: asc("at"), Options: options.Index().SetExpireAfterSeconds(int32(eventAge.Seconds()))},
			{Keys: asc("tenantId", "at")},
		}},
		{c.records, []mongo.IndexModel{
			{Keys: asc("expiresAt"), Options: options.Index().SetExpireAfterSeconds(0)},
		}},
	} {
		if _, err := i.in.Indexes().CreateMany(ctx, i.models); err != nil {
			return fmt.Errorf("indexes of %s: %w", i.in.Name(), err)
		}
	}
	return nil
}
