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
	watchAtOnce = 16
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
	w := &watcher{p: p, ctx: ctx, underWay: make(chan struct{}, watchAtOnce)}
	go w.run()
}

// watcher polls jobs for those who do not.
type watcher struct {
	p        *Proxy
	ctx      context.Context
	underWay chan struct{} // one for each poll
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
			if w.p.due(j, now) {
				w.start(func() { w.p.pollAbandoned(w.ctx, j) })
			}
		}
		if now.Sub(polledForWaiters) < pauseLeast {
			continue
		}
		polledForWaiters = now
		for _, resource := range w.p.demand.all(now) {
			w.start(func() { w.p.pollForWaiters(w.ctx, resource) })
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

// start runs one poll, when fewer than watchAtOnce are under way.
func (w *watcher) start(poll func()) {
	select {
	case w.underWay <- struct{}{}:
	case <-w.ctx.Done():
		return
	}
	w.p.enter()
	go func() {
		defer func() { <-w.underWay; w.p.leave() }()
		poll()
	}()
}

// due reports whether the gateway has to poll a job now, and drops those that it
// no longer polls. A job that is due counts as being polled until pollAbandoned
// returns.
func (p *Proxy) due(j *job, now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.underWay {
		return false
	}
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
	if !overdue && unpolled < pause || now.Sub(j.watched) < pause {
		return false
	}
	j.watched, j.underWay = now, true
	return true
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
	defer func() {
		j.mu.Lock()
		j.underWay = false
		j.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, max(j.s.Abandoned.Every, 15*time.Second))
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
func (p *Proxy) pollForWaiters(ctx context.Context, resource string) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	holders, err := p.leases.Find(ctx, lease.Filter{Type: HandlerType, Resource: resource, States: []lease.State{lease.Held}})
	if err != nil {
		return // the waiter will hear of it
	}
	for _, h := range holders {
		j := p.jobFrom(h, time.Now())
		if j == nil || p.watches(j) {
			continue
		}
		p.pollOnce(ctx, j)
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
