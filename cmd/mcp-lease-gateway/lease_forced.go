package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// forcedView acts in the store without a pod, and keeps the record that a pod
// would keep: before it acts what is asked for, and then what was done, in the
// audit log and in the store's events. What cannot be recorded before is not done.
type forcedView struct {
	*directView
	record *record
}

// noteTime is how long the note of a reconcile in the store's events may take.
const noteTime = 3 * time.Second

func newForcedView(s lease.Store, margin time.Duration, r *record) (*forcedView, error) {
	direct, err := newDirectView(recorded{s, r}, margin)
	if err != nil {
		return nil, err
	}
	d := &forcedView{directView: direct, record: r}
	d.all.Happened = func(e lease.Event) {
		ctx, cancel := context.WithTimeout(context.Background(), noteTime)
		defer cancel()
		// What was done is done, whether or not the store could note it; that the
		// audit log did not is kept in record.
		_ = recorded{s, r}.AddEvent(ctx, e)
	}
	return d, nil
}

func (d *forcedView) revoke(ctx context.Context, h view.Holder) (view.Holder, error) {
	asked := lease.Event{Reason: "lease revoke", Type: h.Type, Resource: h.Resource, Lease: h.Lease,
		Tenant: h.Tenant, Project: h.Project, User: h.User, Pod: lease.PodID(h.Pod), Token: h.Token}
	if err := d.record.intend(ctx, asked); err != nil {
		return view.Holder{}, err
	}
	return d.all.Revoke(ctx, view.Scope{}, h.Token, d.record.by)
}

func (d *forcedView) revokePod(ctx context.Context, pod string) (view.PodRevoked, error) {
	if err := d.record.intend(ctx, lease.Event{Reason: "lease revoke-pod", Pod: lease.PodID(pod)}); err != nil {
		return view.PodRevoked{}, err
	}
	return d.all.RevokePod(ctx, pod, d.record.by)
}

func (d *forcedView) reconcile(ctx context.Context) (view.Reconciled, error) {
	if err := d.record.intend(ctx, lease.Event{Reason: "lease reconcile"}); err != nil {
		return view.Reconciled{}, err
	}
	done, err := d.all.Reconcile(ctx, d.record.by)
	if missing := d.record.missing(); err == nil && missing != nil {
		err = fmt.Errorf("the pass was made (corrected %d, removed %d), but %w", done.Corrected, done.Removed, missing)
	}
	return done, err
}

// recorded is a store whose events are on record in the audit log as well.
type recorded struct {
	lease.Store
	record *record
}

// AddEvent writes both. An error of the audit log is what an act must not go on
// after, so it comes first.
func (s recorded) AddEvent(ctx context.Context, e lease.Event) error {
	unrecorded := s.record.add(ctx, e)
	err := s.Store.AddEvent(ctx, e)
	if unrecorded != nil {
		return unrecorded
	}
	if err != nil {
		return fmt.Errorf("what was done stands and is in the audit log; the store's events lack it: %w", err)
	}
	return nil
}
