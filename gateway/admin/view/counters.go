package view

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// CounterQuery selects counters; empty fields select all.
type CounterQuery struct {
	Resource, Level, Tenant, Project, User string
	// Drifted leaves only counters whose count differs from what books them.
	Drifted bool
	// After is CounterPage.Next of the page before.
	After string
	// Limit is at most MaxLimit; 0 means DefaultLimit.
	Limit int
}

// CounterPage is one page of counters in the order of their ids.
type CounterPage struct {
	Counters []Counter `json:"counters"`
	Next     string    `json:"next,omitempty"`
}

// Counter is how a counter is shown. Booked is the number of holders that book
// it and the value to which reconcile corrects; Drift is Count − Booked. A
// difference is drift from a crash window or a booking under way, not an error
// of the view (spec §9).
type Counter struct {
	ID         string    `json:"id"`
	Resource   string    `json:"resource"`
	Level      string    `json:"level"`
	Scope      string    `json:"scope"`
	Tenant     string    `json:"tenant,omitempty"` // of the scope; none at the global level
	Project    string    `json:"project,omitempty"`
	User       string    `json:"user,omitempty"`
	Count      int       `json:"count"`
	Booked     int       `json:"booked"`
	Cap        int       `json:"cap"` // as of the last increment
	Drift      int       `json:"drift"`
	UpdatedAt  time.Time `json:"updatedAt"`
	AgeSeconds int64     `json:"ageSeconds"` // since the last change
}

// Counters lists counters of the scope: all, or those of a tenant's tenant,
// project and user levels. The global level belongs to no tenant.
func (d *View) Counters(ctx context.Context, s Scope, q CounterQuery) (CounterPage, error) {
	for _, f := range [][2]string{{"resource", q.Resource}, {"level", q.Level}, {"tenant", q.Tenant}, {"project", q.Project}, {"user", q.User}} {
		if err := checkText(f[0], f[1]); err != nil {
			return CounterPage{}, err
		}
	}
	if len(q.After) > 4*maxText {
		return CounterPage{}, &Error{Code: Invalid, Message: "after is no counter's id"}
	}
	if q.Level != "" && !slices.Contains(definition.Levels[:], definition.Level(q.Level)) {
		return CounterPage{}, &Error{Code: Invalid, Message: "level is none of user, project, tenant, global"}
	}
	limit, err := checkLimit(q.Limit)
	if err != nil {
		return CounterPage{}, err
	}
	page := CounterPage{Counters: []Counter{}}
	f := lease.OccupancyFilter{Resource: q.Resource, Tenant: cmp.Or(s.Tenant, q.Tenant), After: lease.CounterID(q.After), Limit: MaxLimit}
	for {
		found, err := d.Engine.Occupancies(ctx, f)
		if err != nil {
			return CounterPage{}, Unreachable(err)
		}
		for _, o := range found {
			c := counterView(o)
			if !q.selects(s, c) {
				continue
			}
			if len(page.Counters) == limit {
				page.Next = page.Counters[limit-1].ID
				return page, nil
			}
			page.Counters = append(page.Counters, c)
		}
		if len(found) < f.Limit {
			return page, nil
		}
		f.After = found[len(found)-1].ID
	}
}

func (q CounterQuery) selects(s Scope, c Counter) bool {
	if s.Tenant != "" && (c.Level == string(definition.Global) || c.Tenant != s.Tenant) {
		return false
	}
	return (q.Resource == "" || c.Resource == q.Resource) &&
		(q.Level == "" || c.Level == q.Level) &&
		(q.Tenant == "" || c.Tenant == q.Tenant) &&
		(q.Project == "" || c.Project == q.Project) &&
		(q.User == "" || c.User == q.User) &&
		(!q.Drifted || c.Drift != 0)
}

func counterView(o lease.Occupancy) Counter {
	c := Counter{ID: string(o.ID), Resource: o.Resource, Level: string(o.Level), Scope: o.Scope, Count: o.Count,
		Booked: o.Booked, Cap: int(o.Cap), Drift: o.Count - o.Booked, UpdatedAt: o.UpdatedAt, AgeSeconds: seconds(o.Age)}
	first, second, _ := strings.Cut(o.Scope, "/")
	switch o.Level {
	case definition.Tenant:
		c.Tenant = decoded(o.Scope)
	case definition.Project:
		c.Tenant, c.Project = decoded(first), decoded(second)
	case definition.User:
		c.Tenant, c.User = decoded(first), decoded(second)
	}
	return c
}

// decoded undoes the percent-encoding of a scope's part; what is not encoded
// stays as it is.
func decoded(s string) string {
	if d, err := url.PathUnescape(s); err == nil {
		return d
	}
	return s
}

// Reconciled is what one reconcile pass did.
type Reconciled struct {
	Corrected int     `json:"corrected"`
	Removed   int     `json:"removed"`
	Left      []Drift `json:"left"` // drift that is too fresh to be corrected
}

// Drift is a counter that reconcile saw and left.
type Drift struct {
	ID         string `json:"id"`
	Count      int    `json:"count"`
	Booked     int    `json:"booked"`
	AgeSeconds int64  `json:"ageSeconds"`
	Audited    bool   `json:"audited"` // an audit is open: it is corrected a margin after its beginning
}

func reconciledView(r lease.Reconciled) Reconciled {
	v := Reconciled{Corrected: r.Corrected, Removed: r.Removed, Left: []Drift{}}
	for _, d := range r.Drift {
		v.Left = append(v.Left, Drift{ID: string(d.ID), Count: d.Count, Booked: d.Booked, AgeSeconds: seconds(d.Age), Audited: d.Audited})
	}
	return v
}
