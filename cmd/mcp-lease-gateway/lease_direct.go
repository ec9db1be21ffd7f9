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
type directView struct {
	all  view.View
	view lease.View
}

func newDirectView(s lease.Store, margin time.Duration) *directView {
	v := lease.View{Store: s}
	return &directView{view: v, all: view.View{Engine: forced{v, margin}, History: v}}
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

// forced is a view of the store as the view's engine: it takes leases away
// without their handlers.
type forced struct {
	view   lease.View
	margin time.Duration
}

func (f forced) Find(ctx context.Context, q lease.Filter) ([]lease.Holder, error) {
	return f.view.Holders(ctx, q)
}

func (f forced) Revoke(ctx context.Context, t lease.Token, c lease.Cause) (lease.Holder, error) {
	return f.view.ForceRevoke(ctx, t, c)
}

func (f forced) RevokePod(ctx context.Context, pod lease.PodID, by string) (int, error) {
	return f.view.ForceRevokePod(ctx, pod, by)
}

func (f forced) Sweep(context.Context) (lease.Swept, error) {
	return lease.Swept{}, errors.New("a sweep runs handlers, and those need a pod")
}

func (f forced) Reconcile(ctx context.Context) (lease.Reconciled, error) {
	return f.view.Reconcile(ctx, f.margin)
}

func (f forced) Occupancies(ctx context.Context, q lease.OccupancyFilter) ([]lease.Occupancy, error) {
	return f.view.Occupancies(ctx, q)
}
