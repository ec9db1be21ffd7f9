package insights

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Sizes of the page. More holders are a page further; more bars and events are
// left out with a sentence that says so.
const (
	pageHolders = 100
	pageBars    = 48
	pageEvents  = 50
)

// Filter is what the address selects.
type Filter struct {
	Project, User, Resource, Type, Pod string
	After                              string
}

// Any reports whether anything is selected.
func (f Filter) Any() bool { return f != Filter{After: f.After} }

// Query is the filter and its page as the query of an address.
func (f Filter) Query() string { return f.values().Encode() }

func (f Filter) values() url.Values {
	v := url.Values{}
	for name, s := range map[string]string{"project": f.Project, "user": f.User, "resource": f.Resource, "type": f.Type, "pod": f.Pod, "after": f.After} {
		if s != "" {
			v.Set(name, s)
		}
	}
	return v
}

func readFilter(r *http.Request) (Filter, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Filter{}, &view.Error{Code: view.Invalid, Message: "the query cannot be read"}
	}
	get := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	return Filter{Project: get("project"), User: get("user"), Resource: get("resource"), Type: get("type"), Pod: get("pod"), After: get("after")}, nil
}

// View is what a page shows of a tenant.
type View struct {
	Holders   []view.Holder
	Next      string // address of the next page, or ""
	Resources []Resource
	MoreBars  int // bars left out
	Events    []Event
	Taken     time.Time
	// Version changes when something other than the time has changed.
	Version string
}

// Resource is the occupancy of one resource.
type Resource struct {
	Name string
	Bars []Bar
}

// Bar is one counter of the tenant's own levels.
type Bar struct {
	view.Counter
	Who     string  // the tenant, project or user
	Percent float64 // of the cap, at most 100
	Mark    float64 // where BOOKED stands, in percent of the cap
	Full    bool
	Text    string // for those who do not see the bar
}

// Event is one line of what happened.
type Event struct {
	view.Event
	AgoSeconds int64
	Text       string
}

// views makes views, at most one per tenant and filter in a while, however many
// watch.
type views struct {
	leases *view.View
	fresh  time.Duration
	group  singleflight.Group

	mu    sync.Mutex
	known map[viewKey]*View
	rest  map[string]*rest
}

// rest is what the views of a tenant share, whatever their filters.
type rest struct {
	counters []view.Counter
	events   []view.Event
	until    time.Time
}

type viewKey struct {
	tenant string
	filter Filter
}

func newViews(d *view.View, fresh time.Duration) *views {
	return &views{leases: d, fresh: fresh, known: map[viewKey]*View{}, rest: map[string]*rest{}}
}

// forget lets the next look of a tenant be a new one.
func (vs *views) forget(tenant string) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	delete(vs.rest, tenant)
	for k := range vs.known {
		if k.tenant == tenant {
			delete(vs.known, k)
		}
	}
}

func (vs *views) look(ctx context.Context, tenant string, f Filter) (*View, error) {
	key := viewKey{tenant, f}
	vs.mu.Lock()
	for k, v := range vs.known { // what is stale is of no use to anyone
		if time.Since(v.Taken) > vs.fresh {
			delete(vs.known, k)
		}
	}
	v := vs.known[key]
	vs.mu.Unlock()
	if v != nil {
		return v, nil
	}
	name, err := json.Marshal([]string{tenant, f.Project, f.User, f.Resource, f.Type, f.Pod, f.After})
	if err != nil {
		return nil, err
	}
	made, err, _ := vs.group.Do(string(name), func() (any, error) {
		// Whoever asked first may leave; the others still want the answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		defer cancel()
		v, err := vs.make(ctx, tenant, f)
		if err == nil {
			vs.mu.Lock()
			vs.known[key] = v
			vs.mu.Unlock()
		}
		return v, err
	})
	if err != nil {
		return nil, err
	}
	return made.(*View), nil
}

func (vs *views) make(ctx context.Context, tenant string, f Filter) (*View, error) {
	scope := view.Scope{Tenant: tenant}
	taken := time.Now()
	page, err := vs.leases.Holders(ctx, scope, view.HolderQuery{Project: f.Project, User: f.User, Resource: f.Resource,
		Type: f.Type, Pod: f.Pod, After: f.After, Limit: pageHolders})
	if err != nil {
		return nil, err
	}
	rest, err := vs.shared(ctx, tenant)
	if err != nil {
		return nil, err
	}
	v := &View{Holders: page.Holders, Taken: taken}
	if page.Next != "" {
		next := f
		next.After = page.Next
		v.Next = base(tenant) + "?" + next.Query()
	}
	v.Resources, v.MoreBars = bars(slices.Clone(rest.counters), f)
	for _, e := range rest.events {
		v.Events = append(v.Events, Event{Event: e, AgoSeconds: max(0, int64(taken.Sub(e.At)/time.Second)), Text: sentence(e)})
	}
	v.Version = version(v)
	return v, nil
}

// countersASecond is how many counters of a tenant are counted for each second
// that the result is kept: a tenant with very many must not keep the store busy.
const countersASecond = 1000

// shared reads all counters and the events of a tenant.
func (vs *views) shared(ctx context.Context, tenant string) (*rest, error) {
	vs.mu.Lock()
	for t, r := range vs.rest {
		if !time.Now().Before(r.until) {
			delete(vs.rest, t)
		}
	}
	r := vs.rest[tenant]
	vs.mu.Unlock()
	if r != nil {
		return r, nil
	}
	made, err, _ := vs.group.Do(tenant, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		defer cancel()
		scope, q := view.Scope{Tenant: tenant}, view.CounterQuery{Limit: view.MaxLimit}
		began := time.Now()
		r := &rest{}
		for {
			page, err := vs.leases.Counters(ctx, scope, q)
			if err != nil {
				return nil, err
			}
			r.counters = append(r.counters, page.Counters...)
			if q.After = page.Next; q.After == "" {
				break
			}
		}
		var err error
		if r.events, err = vs.leases.Events(ctx, scope, pageEvents); err != nil {
			return nil, err
		}
		// Much shorter than a tick: who watches alone sees bars as new as holders.
		r.until = began.Add(vs.fresh/4 + time.Duration(len(r.counters)/countersASecond)*time.Second)
		vs.mu.Lock()
		vs.rest[tenant] = r
		vs.mu.Unlock()
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	return made.(*rest), nil
}

// bars shows drifted and full counters first, and only what somebody holds.
func bars(counters []view.Counter, f Filter) ([]Resource, int) {
	counters = slices.DeleteFunc(counters, func(c view.Counter) bool {
		return c.Count == 0 && c.Booked == 0 || f.Resource != "" && c.Resource != f.Resource || f.Project != "" && c.Level == "project" && c.Project != f.Project ||
			f.User != "" && c.Level == "user" && c.User != f.User
	})
	slices.SortStableFunc(counters, func(a, b view.Counter) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), -cmp.Compare(share(a), share(b)), cmp.Compare(a.ID, b.ID))
	})
	more := max(0, len(counters)-pageBars)
	var out []Resource
	for _, c := range counters[:len(counters)-more] {
		i := slices.IndexFunc(out, func(r Resource) bool { return r.Name == c.Resource })
		if i < 0 {
			i = len(out)
			out = append(out, Resource{Name: c.Resource})
		}
		out[i].Bars = append(out[i].Bars, bar(c))
	}
	slices.SortFunc(out, func(a, b Resource) int { return cmp.Compare(a.Name, b.Name) })
	order := map[string]int{"tenant": 0, "project": 1, "user": 2}
	for _, r := range out {
		slices.SortStableFunc(r.Bars, func(a, b Bar) int { return cmp.Compare(order[a.Level], order[b.Level]) })
	}
	return out, more
}

func rank(c view.Counter) int {
	switch {
	case c.Drift != 0:
		return 0
	case c.Level == "tenant":
		return 1
	case c.Level == "project":
		return 2
	}
	return 3
}

func share(c view.Counter) float64 { return float64(c.Count) / float64(max(1, c.Cap)) }

func bar(c view.Counter) Bar {
	b := Bar{Counter: c, Percent: min(100, 100*share(c)), Mark: min(100, 100*float64(c.Booked)/float64(max(1, c.Cap))), Full: c.Count >= c.Cap}
	switch c.Level {
	case "tenant":
		b.Who = c.Tenant
	case "project":
		b.Who = c.Project
	default:
		b.Who = c.User
	}
	return b
}

// sentence says an event as a person would, behind its kind.
func sentence(e view.Event) string {
	what := cmp.Or(e.Resource, e.Lease, "a lease")
	if e.Kind == lease.EventRefused {
		switch {
		case e.Level != "":
			return "the " + e.Level + " limit of " + what + " was reached"
		case e.Reason == "" || e.Reason == lease.CodeBusy:
			return "all slots of " + what + " were in use"
		case e.Reason == lease.CodeUnavailable:
			return what + ": its definition is not valid, or it or the lease store could not be read"
		}
		return what + ": " + e.Reason
	}
	why := map[string]string{
		string(lease.ReasonIdle):   "not used for longer than its TTL",
		string(lease.ReasonPod):    "its gateway process had ended",
		string(lease.ReasonRevoke): "by decision",
		string(lease.ReasonClose):  "the end of its session is not confirmed yet",
	}[e.Reason]
	if e.Kind == lease.EventForced {
		why = "without its handler"
	}
	if why = cmp.Or(why, e.Reason); why != "" {
		return what + ": " + why
	}
	return what
}

// version is a hash of everything that is shown but the passing of time.
func version(v *View) string {
	w := *v
	w.Taken = time.Time{}
	w.Holders = slices.Clone(v.Holders)
	for i := range w.Holders {
		h := &w.Holders[i]
		h.AgeSeconds, h.IdleSeconds, h.TTLLeftSeconds = 0, 0, 0
	}
	w.Resources = nil
	for _, r := range v.Resources {
		r.Bars = slices.Clone(r.Bars)
		for i := range r.Bars {
			r.Bars[i].AgeSeconds = 0
		}
		w.Resources = append(w.Resources, r)
	}
	w.Events = slices.Clone(v.Events)
	for i := range w.Events {
		w.Events[i].AgoSeconds = 0
	}
	text, err := json.Marshal(w)
	if err != nil {
		panic(err) // texts, numbers and times
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
