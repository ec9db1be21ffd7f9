package texproxy

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

const (
	watchTick   = 250 * time.Millisecond
	watchAtOnce = 32
	// pollTimeout bounds one poll by the gateway.
	pollTimeout = 15 * time.Second
	// pauseLeast is the shortest pause between two polls of a job by the gateway;
	// while somebody waits for its slot, the longest.
	pauseLeast = time.Second
	// demandLasts is for how long one who was refused counts as waiting: they come
	// back.
	demandLasts = 10 * time.Second
)

// demand knows for which resources somebody waits for a slot in this pod, or has
// been refused one just now.
type demand struct {
	mu        sync.Mutex
	resources map[string]*wanted
}

type wanted struct {
	waiting int
	until   time.Time
}

func newDemand() *demand { return &demand{resources: map[string]*wanted{}} }

// begin counts an acquire in, end counts it out.
func (d *demand) begin(resource string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.resources[resource]
	if w == nil {
		w = &wanted{}
		d.resources[resource] = w
	}
	w.waiting++
}

func (d *demand) end(resource string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.resources[resource]
	w.waiting--
	if _, busy := errors.AsType[*lease.BusyError](err); busy {
		w.until = time.Now().Add(demandLasts)
	}
	d.forget(resource, time.Now())
}

// forget drops a resource that nobody wants.
func (d *demand) forget(resource string, now time.Time) {
	if w := d.resources[resource]; w != nil && w.waiting == 0 && now.After(w.until) {
		delete(d.resources, resource)
	}
}

// has reports whether somebody wants a slot of a resource.
func (d *demand) has(resource string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.resources[resource] != nil
}

// all are the resources that somebody wants a slot of.
func (d *demand) all(now time.Time) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for r := range d.resources {
		if d.forget(r, now); d.resources[r] != nil {
			all = append(all, r)
		}
	}
	return all
}

// Start polls jobs until ctx ends. It returns at once.
//
// A job that its client polls needs none of it. One that nobody polls is polled
// here, with the gateway's own credential, so that its slot is free when the
// compile ends and not when somebody remembers it; after abandoned.max nobody
// looks any more and the lease ends by its TTL. While somebody waits for a slot
// no job's end goes unseen for longer than a second, whoever else polls it and
// wherever it was submitted.
func (p *Proxy) Start(ctx context.Context) {
	if len(p.services) == 0 {
		return
	}
	go newWatcher(ctx, p).run()
}

// watcher polls jobs for those who do not.
type watcher struct {
	p   *Proxy
	ctx context.Context

	mu       sync.Mutex
	underWay map[string]int  // polls, by service: one that hangs does not keep the others' from ending
	what     map[string]bool // jobs and resources that are being asked for
}

func newWatcher(ctx context.Context, p *Proxy) *watcher {
	return &watcher{p: p, ctx: ctx, underWay: map[string]int{}, what: map[string]bool{}}
}

func (w *watcher) run() {
	tick := time.NewTicker(w.every())
	defer tick.Stop()
	var polledForWaiters time.Time
	for {
		var now time.Time
		select {
		case <-w.ctx.Done():
			return
		case now = <-tick.C:
		}
		for _, j := range w.p.jobs.all() {
			if w.p.due(j, now) && w.start(j.s.Name, j.key(), func() { w.p.pollAbandoned(w.ctx, j) }) {
				j.watchedAt(now)
			}
		}
		if now.Sub(polledForWaiters) < pauseLeast {
			continue
		}
		polledForWaiters = now
		for _, resource := range w.p.demand.all(now) {
			w.start("", "resource "+resource, func() { w.pollForWaiters(resource) })
		}
	}
}

func (w *watcher) every() time.Duration {
	every := watchTick
	for _, s := range w.p.services {
		every = min(every, s.Abandoned.Every)
	}
	return every
}

// start runs one poll of something in the background, and reports whether it does:
// it is not being polled already, and fewer than watchAtOnce polls of the service
// are under way. What is not started comes again with a later tick.
func (w *watcher) start(service, what string, poll func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.what[what] || w.underWay[service] >= watchAtOnce {
		return false
	}
	w.what[what] = true
	w.underWay[service]++
	w.p.enter()
	go func() {
		defer func() {
			w.mu.Lock()
			delete(w.what, what)
			w.underWay[service]--
			w.mu.Unlock()
			w.p.leave()
		}()
		poll()
	}()
	return true
}

// due reports whether the gateway has to poll a job now, and drops those that it
// no longer polls.
func (p *Proxy) due(j *job, now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	ttl := j.lease.Ref().TTL
	unpolled := now.Sub(j.polled)
	switch {
	case j.s.Abandoned.Mode == tex.Expire:
		if unpolled > ttl {
			p.jobs.drop(j)
		}
		return false // where its slot is wanted, pollForWaiters finds it
	case unpolled > j.s.Abandoned.Max:
		p.jobs.drop(j)
		p.opt.Log.Warn("nobody polls a job and it does not end; its lease is left to its TTL", "service", j.s.Name)
		return false
	}
	pause := min(pauseOf(now.Sub(j.since), j.s.Abandoned.Every, p.demand.has(j.lease.resource)), ttl/3) // the TTL runs from the last check
	overdue := now.Sub(j.since) > j.s.HoldMax
	return (overdue || unpolled >= pause) && now.Sub(j.watched) >= pause
}

// pauseOf is how long a job of an age may go unpolled. Most compiles are short,
// and a young job is more likely to end in the next second than an old one.
func pauseOf(age, every time.Duration, wanted bool) time.Duration {
	if wanted {
		return min(max(age/2, watchTick), pauseLeast, every)
	}
	return min(max(age/4, pauseLeast), every)
}

// pollAbandoned polls a job of this pod once, and keeps its lease.
func (p *Proxy) pollAbandoned(ctx context.Context, j *job) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if p.servedElsewhere(ctx, j) {
		p.jobs.drop(j)
		return
	}
	err := j.check(ctx)
	if _, lost := lease.Lost(err); lost {
		p.jobs.drop(j)
		return
	}
	if err != nil {
		return // the store will be back; the lease is judged then
	}
	if time.Since(j.since) > j.s.HoldMax {
		p.overdue(ctx, j)
		return
	}
	p.pollOnce(ctx, j)
}

// pollOnce polls a job and, where it has ended, gives its slot back.
func (p *Proxy) pollOnce(ctx context.Context, j *job) {
	path, err := j.s.poll.path.Fill(j.values)
	if err != nil {
		return
	}
	a, _, err := p.ask(ctx, j.s, call{method: http.MethodGet, base: j.s.poll.base, path: path, header: http.Header{"Accept": {"application/json"}}})
	if err != nil {
		return
	}
	defer a.Body.Close()
	if outcome, over := a.ended(j.s.poll.Terminal); over {
		p.end(ctx, j, outcome)
	}
}

// pollForWaiters polls the jobs of a resource that this pod does not watch, since
// somebody waits here for a slot of it. It touches no lease: who holds it goes on
// doing that, or its TTL runs.
func (w *watcher) pollForWaiters(resource string) {
	ctx, cancel := context.WithTimeout(w.ctx, pollTimeout)
	defer cancel()
	holders, err := w.p.leases.Find(ctx, lease.Filter{Type: HandlerType, Resource: resource, States: []lease.State{lease.Held}})
	if err != nil {
		return // the waiter will hear of it
	}
	for _, h := range holders {
		j := w.p.jobFrom(h, time.Now())
		if j == nil || w.p.watches(j) {
			continue
		}
		w.start(j.s.Name, j.key(), func() {
			ctx, cancel := context.WithTimeout(w.ctx, pollTimeout)
			defer cancel()
			w.p.pollOnce(ctx, j)
		})
	}
}

// watches reports whether the job is polled from this pod by itself.
func (p *Proxy) watches(j *job) bool {
	mine := p.jobs.get(j.key())
	return mine != nil && mine.token() == j.token() && j.s.Abandoned.Mode == tex.Watch
}

// servedElsewhere reports whether another pod has checked the lease since this
// one did: a holder names the pod that serves it now, and that pod watches it.
func (p *Proxy) servedElsewhere(ctx context.Context, j *job) bool {
	if p.opt.Pod == "" {
		return false
	}
	holders, err := p.leases.Find(ctx, lease.Filter{Token: j.token()})
	return err == nil && len(holders) == 1 && holders[0].Pod != p.opt.Pod
}
