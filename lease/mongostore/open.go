package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Options says which database.
type Options struct {
	// URI is a MongoDB connection string. Options in it that would weaken what
	// this package promises (write concern, read preference, retries) are
	// overruled.
	URI string
	// Database is used by this gateway's pods and nobody else.
	Database string
	// Monitor is told of each command; for tests that count them.
	Monitor *event.CommandMonitor
}

// opTimeout ends an operation whose caller has set no deadline.
const opTimeout = 10 * time.Second

// firstContact is how long Open waits for an answer before it goes on without.
const firstContact = 2 * time.Second

// ErrForeign says that another system made the lease collections.
var ErrForeign = errors.New("the database's lease collections were made by another system")

// Store is the lease.Store on MongoDB. It is safe for concurrent use.
type Store struct {
	client *mongo.Client
	name   string

	groups sync.Map // by lease.PodID; see touches

	mu    sync.Mutex // held while the database is prepared
	ready atomic.Pointer[collections]
}

var _ lease.Store = (*Store)(nil)

// Open makes a store. A server that does not answer is no error: verbs fail
// until it does, and the first one that reaches it prepares the database. A URI
// that cannot be used and a database of another system (ErrForeign) are errors.
// No error shows the URI's password.
func Open(ctx context.Context, o Options) (*Store, error) {
	opt, err := clientOptions(o)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(opt)
	if err != nil {
		return nil, uriError(o.URI, err)
	}
	s := &Store{client: client, name: o.Database}
	wait := firstContact
	if end, bounded := ctx.Deadline(); bounded {
		wait = min(wait, time.Until(end)/2) // whoever has little time wants to use the store as well
	}
	first, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if _, err := s.collections(first); errors.Is(err, ErrForeign) || errors.Is(err, errFormat) {
		return nil, errors.Join(err, client.Disconnect(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// clientOptions overrules what the URI may say of how commands are sent.
func clientOptions(o Options) (*options.ClientOptions, error) {
	if o.URI == "" || o.Database == "" {
		return nil, errors.New("lease store: MongoDB needs store.uri and store.database")
	}
	opt := options.Client().ApplyURI(o.URI)
	if err := opt.Validate(); err != nil {
		return nil, uriError(o.URI, err)
	}
	opt.SetAppName("mcp-lease-gateway").
		SetTimeout(opTimeout).
		SetWriteConcern(writeconcern.Majority()).
		SetReadPreference(readpref.Primary()).
		SetRetryWrites(false).    // an increment must not be applied twice
		SetMaxAdaptiveRetries(0). // nor when the server says that it is overloaded: refusing is the answer then
		SetRetryReads(true)       // a read has no effect
	if o.Monitor != nil {
		opt.SetMonitor(o.Monitor)
	}
	return opt, nil
}

// collections gives the prepared collections; the first call that reaches the
// server prepares them.
func (s *Store) collections(ctx context.Context) (*collections, error) {
	if c := s.ready.Load(); c != nil {
		return c, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.ready.Load(); c != nil {
		return c, nil
	}
	if err := ctx.Err(); err != nil { // it has passed in the line
		return nil, err
	}
	c, err := prepare(ctx, s.client, s.name)
	if err != nil {
		return nil, fmt.Errorf("lease store in MongoDB database %s: %w", s.name, reached(err))
	}
	s.ready.Store(c)
	return c, nil
}

// Ping reaches the server and looks whether it takes writes.
func (s *Store) Ping(ctx context.Context) error {
	if _, err := s.collections(ctx); err != nil {
		return err
	}
	if err := s.client.Ping(ctx, readpref.Primary()); err != nil {
		return fmt.Errorf("lease store in MongoDB database %s: %w", s.name, reached(err))
	}
	return nil
}

// SinglePod is false: any number of pods share the database.
func (s *Store) SinglePod() bool { return false }

// Close ends the connections.
func (s *Store) Close(ctx context.Context) error {
	if err := s.client.Disconnect(ctx); err != nil && !errors.Is(err, mongo.ErrClientDisconnected) {
		return fmt.Errorf("lease store in MongoDB database %s: %w", s.name, err)
	}
	return nil
}

// majority is the read concern for replica sets and sharded clusters. A
// standalone server has no majority to ask.
func majority(replicated bool) *readconcern.ReadConcern {
	if replicated {
		return readconcern.Majority()
	}
	return readconcern.Local()
}
