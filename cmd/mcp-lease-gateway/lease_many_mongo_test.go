//go:build external

package main

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
)

// holdManyInMongo holds one lease a user as a gateway does, and copies those
// documents: sixty thousand operations would take minutes.
func holdManyInMongo(t *testing.T, uri, database string, s lease.Store, pod lease.PodID) {
	t.Helper()
	const users = 100
	hold(t, s, pod, users)
	client, err := driver.Connect(options.Client().ApplyURI(uri).SetTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(t.Context()) }()
	holders := client.Database(database).Collection("resource_lease_holders")
	cur, err := holders.Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var first []bson.M
	if err := cur.All(t.Context(), &first); err != nil || len(first) != users {
		t.Fatal(err, len(first))
	}
	for from := users; from < many; from += users {
		for i, h := range first {
			h["_id"] = string(manyToken(from + i))
		}
		if _, err := holders.InsertMany(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	counters := client.Database(database).Collection("resource_lease_counters")
	for filter, count := range map[string]int{"^browser[|]user[|]": many / users, "^browser[|]tenant[|]": many} {
		if _, err := counters.UpdateMany(t.Context(), bson.M{"_id": bson.M{"$regex": filter}}, bson.M{"$set": bson.M{"count": count}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTenThousandLeasesOfAPodAreTakenFromMongoDB(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	b.conf.Store.URI, b.conf.Store.Database = mongo.Database(t)
	revokeMany(t, b, func() lease.Store { return opened(t, b.conf) }, func(s lease.Store, pod lease.PodID) {
		holdManyInMongo(t, b.conf.Store.URI, b.conf.Store.Database, s, pod)
	})
}
