package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
)

// documentsTimeout bounds one operation on the documents collection.
const documentsTimeout = 10 * time.Second

// documents are the document sources of gateway.yaml and what is resolved from
// them.
type documents struct {
	log         *slog.Logger
	cascade     *document.Cascade
	definitions *definition.Cascaded
	servers     *server.Cascaded
	settings    *settings.Settings
	secrets     *server.Secrets
	limits      definition.Limits
	vars        *strictyaml.Variables
	dir         *document.Dir
	mongo       *document.Mongo
	client      *mongo.Client
}

// openDocuments opens the sources; close ends them.
func openDocuments(c *config.Gateway, log *slog.Logger) (*documents, error) {
	d := &documents{
		log:     log,
		secrets: server.NewSecrets(c.Documents.Secrets),
		limits:  definition.Limits{MaxTTL: c.Lease.MaxTTL, MaxWait: c.Lease.MaxWait},
		vars:    config.Variables(filepath.Dir(c.Path), os.LookupEnv),
	}
	var sources []document.Source // an earlier one wins
	if m := c.Documents.MongoDB; m.URI != "" {
		client, err := mongo.Connect(options.Client().ApplyURI(m.URI).SetAppName("mcp-lease-gateway").SetTimeout(documentsTimeout))
		if err != nil {
			// The driver's errors can quote the URI, and a password stands in it.
			return nil, fmt.Errorf("documents.mongodb.uri in %s is not a connection string", c.Path)
		}
		d.client = client
		d.mongo = document.NewMongo(client.Database(cmp.Or(m.Database, c.Store.Database)).Collection(m.Collection))
		sources = append(sources, d.mongo)
	}
	if c.Documents.Dir != "" {
		d.dir = document.NewDir(c.Documents.Dir)
		sources = append(sources, d.dir)
	}
	d.cascade = document.NewCascade(sources...)
	d.definitions = definition.NewCascaded(d.cascade, d.limits, d.vars)
	d.servers = server.NewCascaded(d.cascade, d.secrets, d.limits, d.vars)
	d.settings = settings.New(d.cascade, d.vars)
	return d, nil
}

// watch tells the caches, and then note, of changed documents and the key of the
// source that has them, until ctx ends.
// The other pods need not be told: each watches the same collection, and its own
// folder.
func (d *documents) watch(ctx context.Context, note func(source string, c document.Change)) {
	changedIn := func(source string) func(...document.Change) {
		return func(changes ...document.Change) {
			d.cascade.Changed(changes...)
			for _, c := range changes {
				if c.Key.Path != "" { // that anything may have changed is no change
					note(source, c)
				}
			}
		}
	}
	var watches sync.WaitGroup
	if d.mongo != nil {
		watches.Go(func() { d.mongo.Watch(ctx, d.log, changedIn("documents.mongodb")) })
	}
	if d.dir != nil {
		watches.Go(func() { d.dir.Watch(ctx, d.log, changedIn("documents.dir")) })
	}
	watches.Wait()
}

func (d *documents) close(ctx context.Context) {
	if d.client == nil {
		return
	}
	if err := d.client.Disconnect(ctx); err != nil {
		d.log.Warn("closing the documents collection", "err", err)
	}
}
