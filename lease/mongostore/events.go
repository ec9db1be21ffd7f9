package mongostore

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// eventAge is how long events are kept; a TTL index removes them.
const eventAge = time.Hour

// eventDoc is gateway_events.
type eventDoc struct {
	At       time.Time        `bson:"at,omitempty"`
	Kind     lease.EventKind  `bson:"kind"`
	Reason   string           `bson:"reason"`
	By       string           `bson:"by"`
	Type     string           `bson:"type"`
	Resource string           `bson:"resource"`
	Lease    string           `bson:"lease"`
	Level    definition.Level `bson:"level"`
	Tenant   string           `bson:"tenantId"`
	Project  string           `bson:"projectId"`
	User     string           `bson:"userId"`
	Pod      string           `bson:"pod"`
	Token    string           `bson:"token"`
}

// AddEvent implements lease.EventStore. At is the server's time, whatever e says.
func (s *Store) AddEvent(ctx context.Context, e lease.Event) error {
	_, err := s.update(ctx, "add event", events,
		bson.D{{Key: "_id", Value: bson.NewObjectID()}},
		bson.D{{Key: "$setOnInsert", Value: eventDoc{
			Kind: e.Kind, Reason: e.Reason, By: e.By, Type: e.Type, Resource: e.Resource, Lease: e.Lease, Level: e.Level,
			Tenant: e.Tenant, Project: e.Project, User: e.User, Pod: string(e.Pod), Token: e.Token,
		}}, touchedNow("at")}, upsert())
	return err
}

// Events implements lease.EventStore. The TTL index runs once a minute, so the
// hour is in the filter too.
func (s *Store) Events(ctx context.Context, tenant string, limit int) ([]lease.Event, error) {
	filter := bson.D{where("$lt", age("at"), millis(eventAge))}
	if tenant != "" {
		filter = append(filter, bson.E{Key: "tenantId", Value: tenant})
	}
	docs, err := list[eventDoc](ctx, s, "list events", events, filter, limitOf(limit),
		options.Find().SetSort(bson.D{{Key: "at", Value: -1}, {Key: "_id", Value: -1}}))
	if err != nil {
		return nil, err
	}
	out := make([]lease.Event, len(docs))
	for i, d := range docs {
		out[i] = lease.Event{
			At: d.At.UTC(), Kind: d.Kind, Reason: d.Reason, By: d.By, Type: d.Type, Resource: d.Resource, Lease: d.Lease, Level: d.Level,
			Tenant: d.Tenant, Project: d.Project, User: d.User, Pod: lease.PodID(d.Pod), Token: d.Token,
		}
	}
	return out, nil
}
