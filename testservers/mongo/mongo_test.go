//go:build external

package mongo

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A server of the test's own stops, crashes and comes back with its data.
func TestOwnServerStopsAndComesBack(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := Start(t, "", port)
	insert(t, s.URI, "first")
	s.Stop(t)
	unreachable(t, s.URI)
	s.Restart(t)
	insert(t, s.URI, "second")
	s.Kill(t)
	unreachable(t, s.URI)
	s.Restart(t)
	if n := insert(t, s.URI, "third"); n != 3 {
		t.Fatalf("%d documents after a stop and a crash, want 3", n)
	}
}

func collection(t *testing.T, uri string) (context.Context, *mongo.Collection) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Disconnect(context.WithoutCancel(ctx))
		cancel()
	})
	return ctx, client.Database("own").Collection("c")
}

func insert(t *testing.T, uri, id string) int64 {
	t.Helper()
	ctx, c := collection(t, uri)
	if _, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
		t.Fatal(err)
	}
	n, err := c.CountDocuments(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func unreachable(t *testing.T, uri string) {
	t.Helper()
	ctx, c := collection(t, uri)
	if _, err := c.CountDocuments(ctx, bson.D{}); err == nil {
		t.Fatal("a server that was stopped answers")
	}
}

// The script of the tests' own run stops what it has started, although it gives
// the server's address to them as somebody else's.
func TestTheRunsOwnServerIsStopped(t *testing.T) {
	script, err := filepath.Abs("../../.ci/with-mongo")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script, "sh", "-c", "echo $MONGODB_URI")
	cmd.Env = append(os.Environ(), "MONGODB_URI=")
	out, err := cmd.Output()
	uri := strings.TrimSpace(string(out))
	if err != nil || !strings.HasPrefix(uri, "mongodb://127.0.0.1:") {
		t.Fatalf("%v %q", err, uri)
	}
	// Not its answers: without its data it has none.
	address := strings.TrimSuffix(strings.TrimPrefix(uri, "mongodb://"), "/")
	if c, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
		c.Close()
		t.Errorf("something still listens at %s", address)
	}
}
