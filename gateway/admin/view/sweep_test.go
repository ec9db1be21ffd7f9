package view_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/viewtest"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// patient is an engine whose rounds wait for the store again and again.
type patient struct {
	*viewtest.Engine
	t *testing.T
}

func (p patient) Sweep(context.Context) (lease.Swept, error) {
	p.t.Error("a round was begun")
	return lease.Swept{}, errors.New("the store is away")
}

func TestASweepIsNotBegunWhereTheStoreIsAway(t *testing.T) {
	e := viewtest.New(t, time.Now)
	e.Fail(errors.New("the store is away"))
	d := &view.View{Engine: patient{e, t}, Happened: func(e lease.Event) { t.Errorf("%+v is on record", e) }}
	_, err := d.Sweep(t.Context(), "operator ops")
	if view.CodeOf(err) != view.Unavailable {
		t.Errorf("%v", err)
	}
}
