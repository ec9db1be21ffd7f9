//go:build external

package document

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	mongotest "github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// line is a way to the server that a test can cut.
type line struct {
	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func (l *line) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = conn.Close() // nothing was sent on it
		return nil, errors.New("the line is cut")
	}
	l.conns[conn] = true
	return conn, nil
}

// set cuts the line, and what goes over it, or mends it.
func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for conn := range l.conns {
			_ = conn.Close() // it may have ended already
		}
		clear(l.conns)
	}
}

// watchedMost is more than what a server sends at first, so that a look goes on.
const watchedMost = 300

// watchedMongo is a watched collection.
type watchedMongo struct {
	coll    *mongo.Collection // of a client of its own
	line    *line             // the watch's
	log     *output.Buffer
	changes chan Change
}

// watchMongo watches a new collection that has one document, with short pauses
// and the server's operator hash, and returns when the first look has been.
func watchMongo(t *testing.T, hash string) *watchedMongo {
	t.Helper()
	uri, name := mongotest.Database(t)
	connect := func(o *options.ClientOptions) *mongo.Collection {
		client, err := mongo.Connect(o.ApplyURI(uri).SetTimeout(10 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }) // it has done its work
		return client.Database(name).Collection("documents")
	}
	w := &watchedMongo{coll: connect(options.Client()), line: &line{conns: map[net.Conn]bool{}}, log: &output.Buffer{}, changes: make(chan Change, 1000)}
	// A server may not look at an operator before it has something to compute.
	w.insert(t, Key{"acme", "first", docPath}, "a")
	m := NewMongo(connect(options.Client().SetDialer(w.line).SetServerSelectionTimeout(time.Second)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.watch(ctx, slog.New(slog.NewTextHandler(w.log, nil)), func(cs ...Change) {
			for _, c := range cs {
				w.changes <- c
			}
		}, &poller{coll: m.coll, hash: hash, most: watchedMost}, 20*time.Millisecond)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	w.await(t, Key{})
	return w
}

// await wants exactly these changes next, in this order or spread over looks.
func (w *watchedMongo) await(t *testing.T, keys ...Key) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	want := map[Key]bool{}
	for _, k := range keys {
		want[k] = true
	}
	for len(want) > 0 {
		select {
		case c := <-w.changes:
			if !want[c.Key] {
				t.Fatalf("told of %v, want %v", c.Key, keys)
			}
			delete(want, c.Key)
		case <-deadline:
			t.Fatalf("not told of %v\n%s", want, w.log)
		}
	}
}

// logged waits for a text in the log, before which no change may be told.
func (w *watchedMongo) logged(t *testing.T, text string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !strings.Contains(w.log.String(), text) {
		select {
		case c := <-w.changes:
			t.Fatalf("told of %v", c)
		case <-deadline:
			t.Fatalf("not logged: %s\n%s", text, w.log)
		case <-tick.C:
		}
	}
}

// at selects the documents at key.
func at(k Key) bson.D {
	return bson.D{{Key: "tenantId", Value: k.Tenant}, {Key: "projectId", Value: k.Project}, {Key: "path", Value: k.Path}}
}

func (w *watchedMongo) insert(t *testing.T, k Key, content any) {
	t.Helper()
	if _, err := w.coll.InsertOne(t.Context(), append(at(k), bson.E{Key: "content", Value: content})); err != nil {
		t.Fatal(err)
	}
}

func (w *watchedMongo) set(t *testing.T, k Key, field string, value any) {
	t.Helper()
	r, err := w.coll.UpdateOne(t.Context(), at(k), bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: value}}}})
	if err != nil || r.ModifiedCount != 1 {
		t.Fatal(r, err)
	}
}

func (w *watchedMongo) remove(t *testing.T, k Key) {
	t.Helper()
	if r, err := w.coll.DeleteOne(t.Context(), at(k)); err != nil || r.DeletedCount != 1 {
		t.Fatal(r, err)
	}
}

func TestMongoWatch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ hash, by string }{
		"by the server's hashes":             {serverHash, "by=hash"},
		"by texts where the server has none": {"$noSuchOperator", "by=text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watchMongo(t, tc.hash)
			if !strings.Contains(w.log.String(), tc.by) {
				t.Errorf("the log does not say %s: %s", tc.by, w.log)
			}
			key := Key{"acme", "thesis", docPath}
			other := Key{"acme", "other", docPath}
			long := strings.Repeat("# a comment\n", 5000)

			w.insert(t, key, "levels: {user: 1}")
			w.await(t, key)
			w.set(t, key, "content", "levels: {user: 2}") // as long, and nothing else is touched
			w.await(t, key)
			w.set(t, key, "content", long+"1")
			w.await(t, key)
			w.set(t, key, "content", long+"2") // different at its very end
			w.await(t, key)

			// What is not a document of ours tells nothing, and stops nothing. That
			// these are the next changes shows it.
			w.set(t, key, "more", "of another program")
			w.insert(t, Key{"acme", "thesis", "chapters/one.md"}, "x")
			w.insert(t, Key{"acme", "..", docPath}, "x")
			if _, err := w.coll.InsertOne(t.Context(), bson.D{{Key: "tenantId", Value: 7}, {Key: "projectId", Value: nil}, {Key: "path", Value: docPath}}); err != nil {
				t.Fatal(err)
			}
			w.insert(t, other, "a")
			w.await(t, other)

			moved := Key{"acme", "moved", docPath}
			w.set(t, other, "projectId", moved.Project)
			w.await(t, other, moved)
			w.insert(t, moved, "the second there")
			w.await(t, moved)
			w.remove(t, moved)
			w.await(t, moved)
			w.set(t, moved, "content", 7)
			w.await(t, moved)
			w.set(t, moved, "content", strings.Repeat("#", MaxSize+1))
			w.await(t, moved)
			w.set(t, moved, "content", strings.Repeat("ä", MaxSize/2))
			w.await(t, moved)
			w.remove(t, moved)
			w.await(t, moved)
			w.remove(t, key)
			w.await(t, key)
		})
	}
	t.Run("what changed while the server could not be reached is told when it can be again", func(t *testing.T) {
		t.Parallel()
		w := watchMongo(t, serverHash)
		changed, gone, added, same := Key{"acme", "changed", docPath}, Key{"acme", "gone", docPath}, Key{"acme", "new", docPath}, Key{"acme", "same", docPath}
		for _, k := range []Key{changed, gone, same} {
			w.insert(t, k, "a")
		}
		w.await(t, changed, gone, same)
		w.line.set(true)
		w.logged(t, "level=ERROR")
		w.set(t, changed, "content", "b")
		w.remove(t, gone)
		w.insert(t, added, "a")
		w.line.set(false)
		w.await(t, changed, gone, added)
		w.set(t, same, "content", "b")
		w.await(t, same)
		if n := strings.Count(w.log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d lines complain:\n%s", n, w.log)
		}
		if log := w.log.String(); !strings.Contains(log, "watched again") {
			t.Errorf("nothing says that it is over:\n%s", log)
		}
	})
	t.Run("a collection of more documents than are watched is complained of, and watched again when they are fewer", func(t *testing.T) {
		t.Parallel()
		w := watchMongo(t, serverHash)
		project := func(n int) Key { return Key{"acme", fmt.Sprint("p", n), docPath} }
		var rows []any
		var keys []Key
		for n := range watchedMost - 1 { // and the one of the start
			keys = append(keys, project(n))
			rows = append(rows, append(at(project(n)), bson.E{Key: "content", Value: "a"}))
		}
		if _, err := w.coll.InsertMany(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		w.await(t, keys...)
		w.insert(t, project(watchedMost), "a")
		w.logged(t, "more than 300 documents")
		w.set(t, project(7), "content", "b")
		w.remove(t, project(8))
		w.await(t, project(7), project(8), project(watchedMost))
	})
	t.Run("a look's index serves a read too", func(t *testing.T) {
		t.Parallel()
		w := watchMongo(t, serverHash)
		specs, err := w.coll.Indexes().ListSpecifications(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range specs {
			if strings.HasPrefix(s.Name, "path_1") {
				return
			}
		}
		t.Errorf("no index begins with the path: %+v", specs)
	})
}
