package mongostore

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/internal/groups"
)

// touchGroups is how checks go together: two operations under way keep the server
// busy while the calls of a third one gather.
var touchGroups = groups.Options{AtOnce: 2, Most: 1000, Timeout: opTimeout}

// Touch implements lease.HolderStore. What is touched at the same time goes to the
// server in one command; see touchAll.
func (s *Store) Touch(ctx context.Context, t lease.Token, pod lease.PodID) (bool, error) {
	return s.touches(pod).Do(ctx, t)
}

// touches are the groups of a pod. A process is one pod, so there is one of them.
func (s *Store) touches(pod lease.PodID) *groups.Groups[lease.Token] {
	if g, ok := s.groups.Load(pod); ok {
		return g.(*groups.Groups[lease.Token])
	}
	g, _ := s.groups.LoadOrStore(pod, groups.New(touchGroups, func(ctx context.Context, all []lease.Token) (map[lease.Token]bool, error) {
		return groups.Matched(ctx, all,
			func(ctx context.Context, all []lease.Token) (int, error) { return s.touchAll(ctx, all, pod) }, s.held)
	}))
	return g.(*groups.Groups[lease.Token])
}

// touchAll touches what is HELD of these and counts the match, not the change. A
// pipeline is needed because the pod depends on podBound; $$NOW is the server's
// time as well.
func (s *Store) touchAll(ctx context.Context, all []lease.Token, pod lease.PodID) (int, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return 0, err
	}
	moved := bson.D{{Key: "$cond", Value: bson.A{"$podBound", "$pod", literal(string(pod))}}}
	r, err := c.holders.UpdateMany(ctx,
		bson.D{among("_id", all), inState(lease.Held)},
		mongo.Pipeline{{set(bson.D{{Key: "lastSeenAt", Value: now}, {Key: "pod", Value: moved}})}})
	if err != nil {
		return 0, failed("touch", err)
	}
	return int(r.MatchedCount), nil
}

// held lists which of these are HELD. With read concern majority it could read an
// older state than the update before it has seen, in which more are; so it reads
// what the primary has.
func (s *Store) held(ctx context.Context, all []lease.Token) ([]lease.Token, error) {
	c, err := s.collections(ctx)
	if err != nil {
		return nil, err
	}
	latest := c.holders.Clone(options.Collection().SetReadConcern(readconcern.Local()))
	cur, err := latest.Find(ctx, bson.D{among("_id", all), inState(lease.Held)}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, failed("touch", err)
	}
	var docs []struct {
		Token lease.Token `bson:"_id"`
	}
	if err := cur.All(ctx, &docs); err != nil {
		return nil, failed("touch", err)
	}
	tokens := make([]lease.Token, len(docs))
	for i, d := range docs {
		tokens[i] = d.Token
	}
	return tokens, nil
}
