// Package mongo gives tests a MongoDB, or a server that speaks its protocol.
//
// MONGODB_URI names one; else the script server in this directory starts one,
// from whatever the machine has. A test that needs MongoDB and gets none fails:
// it is never skipped.
package mongo

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// startTimeout bounds the script, whose first run fetches and builds the server.
const startTimeout = 15 * time.Minute

// started is the server that this process's tests share. It stays up for the
// next test binary: starting costs more than all the tests, and
// "server stop" ends it.
var started = sync.OnceValues(func() (string, error) { return run("start") })

// URI gives the connection string of the shared server.
func URI(t testing.TB) string {
	t.Helper()
	if uri := os.Getenv("MONGODB_URI"); uri != "" {
		return uri
	}
	uri, err := started()
	if err != nil {
		t.Fatalf("this test needs MongoDB: %v", err)
	}
	return uri
}

// Database gives the connection string and a database name that nobody else
// uses; the database is dropped when the test ends.
func Database(t testing.TB) (uri, name string) {
	t.Helper()
	uri = URI(t)
	name = "test_" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		client, err := mongo.Connect(options.Client().ApplyURI(uri))
		if err != nil {
			t.Errorf("dropping %s: %v", name, err)
			return
		}
		defer func() { _ = client.Disconnect(ctx) }() // of a client that has done its work
		if err := client.Database(name).Drop(ctx); err != nil {
			t.Errorf("dropping %s: %v", name, err)
		}
	})
	return uri, name
}

// Server is a server of one test's own, which the test may stop and start: for
// what happens when the store goes away. Its data survive a stop.
type Server struct {
	URI string

	dir, port string
}

// Start starts a server with its data in dir, on port of 127.0.0.1. An empty
// dir makes one; t.TempDir's will not do for root, since the server runs as
// nobody, who may not enter it. The server is stopped when the test ends.
// MONGODB_URI has no effect: the test wants a server that it may stop.
func Start(t testing.TB, dir string, port int) *Server {
	t.Helper()
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("/var/tmp", "mcp-lease-gateway-mongo-"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) }) // after the stop below
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{dir: dir, port: fmt.Sprint(port)}
	t.Cleanup(func() {
		if _, err := run("stop", s.dir, s.port); err != nil {
			t.Error(err)
		}
	})
	s.Restart(t)
	return s
}

// Stop stops the server as an operator would.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if _, err := run("stop", s.dir, s.port); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the server as a crash would (kill -9).
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if _, err := run("kill", s.dir, s.port); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the server again after Stop or Kill.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	uri, err := run("start", s.dir, s.port)
	if err != nil {
		t.Fatal(err)
	}
	s.URI = uri
}

// run runs the script and returns the last line that it prints.
func run(args ...string) (string, error) {
	_, here, _, ok := runtime.Caller(0)
	if script, err := locate(here); ok && err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, script, args...)
		if len(args) > 1 {
			cmd.Env = append(os.Environ(), "MONGODB_URI=")
		}
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%s %s: %w\n%s", script, strings.Join(args, " "), err, errs.String())
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		return lines[len(lines)-1], nil
	}
	return locate("")
}

// locate finds the script: beside this file, or in the module above the working
// directory where paths are trimmed.
func locate(here string) (string, error) {
	if filepath.IsAbs(here) {
		if script := filepath.Join(filepath.Dir(here), "server"); isFile(script) {
			return script, nil
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if script := filepath.Join(dir, "testservers", "mongo", "server"); isFile(script) {
			return script, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("testservers/mongo/server is not above %s", dir)
		}
		dir = up
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
