//go:build external

package document

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	mongotest "github.com/vancetope/mcp-lease-gateway/testservers/mongo"
)

// collection is an empty collection of a database of this test's own.
func collection(t *testing.T) *mongo.Collection {
	t.Helper()
	uri, name := mongotest.Database(t)
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetTimeout(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }) // it has done its work
	return client.Database(name).Collection("documents")
}

func TestMongo(t *testing.T) {
	coll := collection(t)
	m := NewMongo(coll)
	if err := m.EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.EnsureIndex(t.Context()); err != nil {
		t.Fatalf("a second start: %v", err)
	}
	put := func(t *testing.T, project string, content any) Key {
		t.Helper()
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "tenantId", Value: "acme"}, {Key: "projectId", Value: project}, {Key: "path", Value: docPath}, {Key: "content", Value: content}, {Key: "more", Value: "of another program"}}); err != nil {
			t.Fatal(err)
		}
		return Key{"acme", project, docPath}
	}
	t.Run("a document is read", func(t *testing.T) {
		text, err := m.Read(t.Context(), put(t, "thesis", "name: browser"))
		if err != nil || string(text) != "name: browser" {
			t.Errorf("got %s, %v", text, err)
		}
	})
	t.Run("one that is not there is not found", func(t *testing.T) {
		if _, err := m.Read(t.Context(), Key{"acme", "none", docPath}); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
	for name, content := range map[string]any{"a number": 7, "null": nil, "a document": bson.D{{Key: "a", Value: 1}}} {
		t.Run("content that is "+name+" is an error and not a missing document", func(t *testing.T) {
			key := put(t, "odd-"+strings.ReplaceAll(name, " ", "-"), content)
			if _, err := m.Read(t.Context(), key); err == nil || errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
	t.Run("a text over the limit is refused", func(t *testing.T) {
		if _, err := m.Read(t.Context(), put(t, "long", strings.Repeat("#", MaxSize+1))); !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
	})
	t.Run("two documents at one place are an error", func(t *testing.T) {
		put(t, "twice", "a")
		if _, err := m.Read(t.Context(), put(t, "twice", "b")); err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "more than one") {
			t.Error(err)
		}
	})
	t.Run("a place that is none is refused before the collection is asked", func(t *testing.T) {
		if _, err := m.Read(t.Context(), Key{"acme", "..", docPath}); err == nil || errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
	t.Run("the list has the documents that a key can name", func(t *testing.T) {
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "tenantId", Value: "acme"}, {Key: "projectId", Value: "thesis"}, {Key: "path", Value: "chapters/one.md"}, {Key: "content", Value: "x"}}); err != nil {
			t.Fatal(err)
		}
		keys, err := m.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var projects []string
		for _, k := range keys {
			projects = append(projects, k.Project)
		}
		if d := cmp.Diff([]string{"long", "odd-a-document", "odd-a-number", "odd-null", "thesis", "twice", "twice"}, projects); d != "" {
			t.Error(d)
		}
	})
	t.Run("the collection wins over the folder, document by document", func(t *testing.T) {
		root := t.TempDir()
		dir := NewDir(root)
		write(t, dir.Name(Key{"acme", "thesis", docPath}), "from the folder")
		write(t, dir.Name(Key{"acme", "_tenant", docPath}), "tenant, from the folder")
		c := NewCascade(m, dir)
		got, err := c.Layers(t.Context(), "acme", "thesis", docPath)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(map[Layer]string{Project: "name: browser", Tenant: "tenant, from the folder"}, texts(got)); d != "" {
			t.Error(d)
		}
	})
	t.Run("a database that does not answer is an error and not an empty layer", func(t *testing.T) {
		client, err := mongo.Connect(options.Client().ApplyURI("mongodb://127.0.0.1:1/?connectTimeoutMS=200&serverSelectionTimeoutMS=200").SetTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Disconnect(t.Context()) }() // it was never connected
		_, err = NewCascade(NewMongo(client.Database("d").Collection("documents"))).Layers(t.Context(), "acme", "thesis", docPath)
		var re *ReadError
		if !errors.As(err, &re) {
			t.Error(err)
		}
	})
}
