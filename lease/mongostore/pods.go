package mongostore

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// maxPods bounds the registry that one read returns; dead registrations are
// removed by sweeps.
const maxPods = 10_000

func byPod(id lease.PodID) bson.E { return bson.E{Key: "_id", Value: string(id)} }

// PutPod implements lease.PodStore. StartedAt is the time of the pod's first
// registration.
func (s *Store) PutPod(ctx context.Context, p lease.Pod) error {
	_, err := s.update(ctx, "register pod", pods, bson.D{byPod(p.ID)},
		mongo.Pipeline{{set(bson.D{
			{Key: "endpoint", Value: literal(p.Endpoint)},
			{Key: "state", Value: literal(p.State)},
			{Key: "handedOver", Value: literal(p.HandedOver)},
			{Key: "beatAt", Value: now},
			{Key: "startedAt", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$startedAt", now}}}},
		})}}, upsert())
	return err
}

// BeatPod implements lease.PodStore.
func (s *Store) BeatPod(ctx context.Context, id lease.PodID) (bool, error) {
	return s.update(ctx, "beat", pods,
		bson.D{byPod(id), {Key: "state", Value: bson.D{{Key: "$ne", Value: lease.PodStopped}}}},
		bson.D{touchedNow("beatAt")})
}

// Pods implements lease.PodStore.
func (s *Store) Pods(ctx context.Context) ([]lease.Pod, error) {
	type podDoc struct {
		ID         string         `bson:"_id"`
		Endpoint   string         `bson:"endpoint"`
		State      lease.PodState `bson:"state"`
		HandedOver bool           `bson:"handedOver"`
		StartedAt  time.Time      `bson:"startedAt"`
		BeatAt     time.Time      `bson:"beatAt"`
		Age        float64        `bson:"age"`
	}
	docs, err := list[podDoc](ctx, s, "list pods", pods, bson.D{}, maxPods, sortBy("_id").SetProjection(bson.D{
		{Key: "endpoint", Value: 1}, {Key: "state", Value: 1}, {Key: "handedOver", Value: 1},
		{Key: "startedAt", Value: 1}, {Key: "beatAt", Value: 1}, {Key: "age", Value: age("beatAt")},
	}))
	if err != nil {
		return nil, err
	}
	out := make([]lease.Pod, len(docs))
	for i, d := range docs {
		out[i] = lease.Pod{
			ID: lease.PodID(d.ID), Endpoint: d.Endpoint, State: d.State, HandedOver: d.HandedOver,
			StartedAt: d.StartedAt.UTC(), BeatAt: d.BeatAt.UTC(), BeatAge: fromMillis(d.Age),
		}
	}
	return out, nil
}

// RemovePod implements lease.PodStore.
func (s *Store) RemovePod(ctx context.Context, id lease.PodID) error {
	c, err := s.collections(ctx)
	if err != nil {
		return err
	}
	if _, err := c.pods.DeleteOne(ctx, bson.D{byPod(id)}); err != nil {
		return failed("remove pod", err)
	}
	return nil
}
