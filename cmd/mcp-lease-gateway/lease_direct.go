package main

import (
	"context"
	"errors"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/desk"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// directDesk is the desk over a store without a pod. It only looks; forcedDesk
// acts.
type directDesk struct {
	desk desk.Desk
	view lease.View
}

func newDirectDesk(s lease.Store, margin time.Duration) *directDesk {
	v := lease.View{Store: s}
	return &directDesk{view: v, desk: desk.Desk{Engine: forced{v, margin}, History: v}}
}

func (d *directDesk) Holders(ctx context.Context, q desk.HolderQuery) (desk.HolderPage, error) {
	return d.desk.Holders(ctx, desk.Scope{}, q)
}

func (d *directDesk) Holder(ctx context.Context, token string) (desk.Holder, error) {
	return d.desk.Holder(ctx, desk.Scope{}, token)
}

func (d *directDesk) Counters(ctx context.Context, q desk.CounterQuery) (desk.CounterPage, error) {
	return d.desk.Counters(ctx, desk.Scope{}, q)
}

// forced is a view of the store as the desk's engine: it takes leases away
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
