package main

import (
	"context"
	"errors"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// directView is the view over a store without a pod. It only looks; forcedView
// acts.
type directView struct{ all view.View }

func newDirectView(s lease.Store, margin time.Duration) (*directView, error) {
	// What bounds a command is its --timeout.
	m, err := lease.New(lease.Options{Store: s, ReconcileSafety: margin, OpTimeout: time.Hour})
	if err != nil {
		return nil, err
	}
	return &directView{all: view.View{Engine: forced{m}}}, nil
}

func (d *directView) Holders(ctx context.Context, q view.HolderQuery) (view.HolderPage, error) {
	return d.all.Holders(ctx, view.Scope{}, q)
}

func (d *directView) Holder(ctx context.Context, token string) (view.Holder, error) {
	return d.all.Holder(ctx, view.Scope{}, token)
}

func (d *directView) Counters(ctx context.Context, q view.CounterQuery) (view.CounterPage, error) {
	return d.all.Counters(ctx, view.Scope{}, q)
}

// forced is an engine that nobody starts, as a view needs it: it takes leases
// away without their handlers.
type forced struct{ *lease.Manager }

func (f forced) Revoke(ctx context.Context, t lease.Token, c lease.Cause) (lease.Holder, error) {
	return f.ForceRevoke(ctx, t, c)
}

func (f forced) RevokePod(ctx context.Context, pod lease.PodID, by string) (int, error) {
	return f.ForceRevokePod(ctx, pod, by)
}

func (f forced) Sweep(context.Context) (lease.Swept, error) {
	return lease.Swept{}, errors.New("a sweep runs handlers, and those need a pod")
}
