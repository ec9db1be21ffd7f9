package boltstore

import (
	"context"
	"fmt"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

func (x *txn) pod(id lease.PodID) (*podDoc, error) {
	v := x.Bucket(bucketPods).Get([]byte(id))
	if v == nil {
		return nil, nil
	}
	return decodePod(v)
}

func decodePod(v []byte) (*podDoc, error) {
	p, err := decode[podDoc](v)
	if err != nil {
		return nil, fmt.Errorf("pod: %w", err)
	}
	return p, nil
}

// PutPod implements lease.PodStore. StartedAt is the time of the pod's first
// registration.
func (s *Store) PutPod(ctx context.Context, p lease.Pod) error {
	_, err := update(ctx, s, func(x *txn) (struct{}, error) {
		was, err := x.pod(p.ID)
		if err != nil {
			return struct{}{}, err
		}
		next := podDoc{Endpoint: p.Endpoint, State: p.State, HandedOver: p.HandedOver, StartedAt: x.now, BeatAt: x.now}
		if was != nil {
			next.StartedAt = was.StartedAt
		}
		return struct{}{}, x.put(bucketPods, []byte(p.ID), encode(next))
	})
	return err
}

// BeatPod implements lease.PodStore.
func (s *Store) BeatPod(ctx context.Context, id lease.PodID) (bool, error) {
	return update(ctx, s, func(x *txn) (bool, error) {
		p, err := x.pod(id)
		if err != nil || p == nil || p.State == lease.PodStopped {
			return false, err
		}
		p.BeatAt = x.now
		return true, x.put(bucketPods, []byte(id), encode(p))
	})
}

// Pods implements lease.PodStore.
func (s *Store) Pods(ctx context.Context) ([]lease.Pod, error) {
	return read(ctx, s, func(x *txn) ([]lease.Pod, error) {
		var out []lease.Pod
		err := x.Bucket(bucketPods).ForEach(func(k, v []byte) error {
			p, err := decodePod(v)
			if err != nil {
				return err
			}
			out = append(out, lease.Pod{
				ID: lease.PodID(k), Endpoint: p.Endpoint, State: p.State, HandedOver: p.HandedOver,
				StartedAt: at(p.StartedAt), BeatAt: at(p.BeatAt), BeatAge: max(time.Duration(x.now-p.BeatAt), 0),
			})
			return nil
		})
		return out, err
	})
}

// RemovePod implements lease.PodStore.
func (s *Store) RemovePod(ctx context.Context, id lease.PodID) error {
	_, err := update(ctx, s, func(x *txn) (struct{}, error) {
		if x.Bucket(bucketPods).Get([]byte(id)) == nil {
			return struct{}{}, nil
		}
		return struct{}{}, x.del(bucketPods, []byte(id))
	})
	return err
}
