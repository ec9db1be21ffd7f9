package document

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Mongo is a collection {tenantId, projectId, path, content}. It is not ours
// alone: other programs and people write it, and keep other documents in it.
type Mongo struct{ coll *mongo.Collection }

// NewMongo reads from coll, at its primary.
func NewMongo(coll *mongo.Collection) *Mongo {
	return &Mongo{coll.Database().Collection(coll.Name(), options.Collection().SetReadPreference(readpref.Primary()))}
}

// EnsureIndex makes the index that a read and a poll of Watch need: the path
// stands first, so that a look passes over what is not below _vance/. It is not
// unique, since the collection is not ours alone: two documents at one key are
// an error of Read.
func (m *Mongo) EnsureIndex(ctx context.Context) error {
	_, err := m.coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "path", Value: 1}, {Key: "tenantId", Value: 1}, {Key: "projectId", Value: 1}}})
	return err
}

// Name says where key stands, for people.
func (m *Mongo) Name(key Key) string {
	return "mongodb:" + m.coll.Name() + "/" + key.Tenant + "/" + key.Project + "/" + key.Path
}

// Read finds the one document at key.
func (m *Mongo) Read(ctx context.Context, key Key) ([]byte, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	filter := bson.D{{Key: "tenantId", Value: key.Tenant}, {Key: "projectId", Value: key.Project}, {Key: "path", Value: key.Path}}
	cursor, err := m.coll.Find(ctx, filter, options.Find().SetLimit(2).SetProjection(bson.D{{Key: "content", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var rows []struct {
		Content bson.RawValue `bson:"content"`
	}
	if err := cursor.All(ctx, &rows); err != nil {
		return nil, err
	}
	switch len(rows) {
	case 0:
		return nil, ErrNotFound
	case 1:
	default:
		return nil, errors.New("the collection has more than one document at this place; remove all but one")
	}
	text, ok := rows[0].Content.StringValueOK()
	if !ok {
		return nil, errors.New("the field content is not a text")
	}
	if len(text) > MaxSize {
		return nil, ErrTooLong
	}
	return []byte(text), nil
}

// belowVance are the documents that a gateway reads; the collection may have
// many more.
var belowVance = bson.D{{Key: "path", Value: bson.D{{Key: "$regex", Value: "^_vance/"}}}}

// List returns the keys of all documents below _vance/ whose names may stand in
// a key.
func (m *Mongo) List(ctx context.Context) ([]Key, error) {
	cursor, err := m.coll.Find(ctx, belowVance,
		options.Find().SetLimit(maxFiles).SetProjection(bson.D{{Key: "tenantId", Value: 1}, {Key: "projectId", Value: 1}, {Key: "path", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var rows []bson.Raw
	if err := cursor.All(ctx, &rows); err != nil {
		return nil, err
	}
	var keys []Key
	for _, row := range rows {
		if key, ok := keyOf(row); ok {
			keys = append(keys, key)
		}
	}
	sortKeys(keys)
	return keys, nil
}

// keyOf is the key of a row, where its fields make one: a document of another
// form is none of ours, and must not hide those that are.
func keyOf(row bson.Raw) (Key, bool) {
	tenant, ok1 := row.Lookup("tenantId").StringValueOK()
	project, ok2 := row.Lookup("projectId").StringValueOK()
	path, ok3 := row.Lookup("path").StringValueOK()
	key := Key{tenant, project, path}
	return key, ok1 && ok2 && ok3 && key.Validate() == nil
}
