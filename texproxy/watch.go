package texproxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

const (
	watchTick   = time.Second
	watchAtOnce = 16
)

// Start watches abandoned jobs until ctx ends. It returns at once.
//
// A job that its client polls needs no watching. One that nobody polls is
// polled here, with the gateway's own credential, so that its slot is free when
// the compile ends and not when somebody remembers it; after abandoned.max
// nobody looks any more and the lease ends by its TTL.
func (p *Proxy) Start(ctx context.Context) {
	if len(p.services) == 0 {
		return
	}
	go func() {
		tick := time.NewTicker(p.watchEvery())
		defer tick.Stop()
		slots := make(chan struct{}, watchAtOnce)
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, j := range p.jobs.all() {
				if !p.due(j, time.Now()) {
					continue
				}
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					return
				}
				p.enter()
				go func() {
					defer func() { <-slots; p.leave() }()
					p.look(ctx, j)
				}()
			}
		}
	}()
}

func (p *Proxy) watchEvery() time.Duration {
	every := watchTick
	for _, s := range p.services {
		every = min(every, s.Abandoned.Every)
	}
	return every
}

// due reports whether the gateway has to look after a job now, and drops those
// that it no longer looks after. A job in due is being looked at until look
// returns.
func (p *Proxy) due(j *job, now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.looking {
		return false
	}
	ttl := j.slot.Ref().TTL
	idle := now.Sub(j.polled)
	if j.s.Abandoned.Mode == "expire" {
		if idle > ttl {
			p.jobs.drop(j)
		}
		return false
	}
	if idle > j.s.Abandoned.Max {
		p.jobs.drop(j)
		p.opt.Log.Warn("nobody polls a job and it does not end; its lease is left to its TTL", "service", j.s.Name)
		return false
	}
	every := j.s.Abandoned.Every
	if ttl > 0 {
		every = min(every, ttl/3) // the TTL runs from the last check
	}
	if now.Sub(j.polled) < every || now.Sub(j.looked) < every {
		return false
	}
	j.looked, j.looking = now, true
	return true
}

// look polls an abandoned job once.
func (p *Proxy) look(ctx context.Context, j *job) {
	defer func() {
		j.mu.Lock()
		j.looking = false
		j.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, max(j.s.Abandoned.Every, 15*time.Second))
	defer cancel()
	if p.servedElsewhere(ctx, j) {
		p.jobs.drop(j)
		return
	}
	err := j.slot.Check(ctx)
	if err == nil && j.isUnstored() {
		if j.slot.UpdatePayload(ctx, j.payload()) == nil {
			j.stored()
		}
	}
	var lost *lease.LostError
	if errors.As(err, &lost) {
		p.jobs.drop(j)
		return
	}
	if err != nil {
		return // the store will be back; the lease is judged then
	}
	if time.Since(j.since) > j.s.HoldMax {
		p.opt.Log.Warn("a job has held its slot for hold.max; the slot is given back", "service", j.s.Name)
		p.cancelUpstream(ctx, j.s, j.values, "")
		p.end(ctx, j)
		return
	}
	path, err := j.s.poll.path.Fill(j.values)
	if err != nil {
		return
	}
	resp, _, err := p.exchange(ctx, j.s, call{method: http.MethodGet, path: path, header: http.Header{"Accept": {"application/json"}}, inspect: true})
	if err != nil {
		return
	}
	defer resp.Body.Close()
	a, err := inspect(resp)
	if err != nil {
		return
	}
	if _, over := a.ended(j.s.poll.Terminal); over {
		p.end(ctx, j)
	}
}

// servedElsewhere reports whether another pod has checked the lease since this
// one did: a holder names the pod that serves it now, and that pod watches it.
func (p *Proxy) servedElsewhere(ctx context.Context, j *job) bool {
	if p.opt.Pod == "" {
		return false
	}
	holders, err := p.engine.find(ctx, lease.Filter{Token: j.token()})
	return err == nil && len(holders) == 1 && holders[0].Pod != p.opt.Pod
}

// Adopt goes on watching a dead pod's job; see lease.Adopter. A holder without a
// job is a submit that died with its pod: nobody can ask for it, and its TTL
// ends it.
func (p *Proxy) Adopt(_ context.Context, h lease.Holder) error {
	if j := p.jobFrom(h, time.Now()); j != nil {
		p.jobs.put(j)
	}
	return nil
}

// OnRevoked is the handler "tex"; see lease.Handler. Requests that use the lease
// here end, nobody watches its job any more, and a service that can cancel is
// told to. Where it cannot, the job's next poll tells the client, by the mark
// in the store: nothing is kept here for it.
func (p *Proxy) OnRevoked(ctx context.Context, h lease.Holder) error {
	reason := reasonOf(h)
	if reason == "" {
		// A handler that runs at once gets the holder as it was before its mark.
		reason = p.engine.lostReason(ctx, h.Token)
	}
	p.runs.abort(h.Token, &lease.LostError{Reason: reason})
	p.jobs.dropToken(h.Token)
	s := p.services[h.Payload[payloadService]]
	if s == nil || s.cancel == nil {
		return nil
	}
	if h.Revocation != nil && !h.Revocation.At.IsZero() && time.Since(h.Revocation.At) > s.HoldMax {
		return nil // no compile is that old
	}
	if !p.cancelUpstream(ctx, s, valuesOf(h.Payload), "") {
		return errors.New("texproxy: the service could not be told to cancel the compile")
	}
	return nil
}

var (
	_ lease.Handler = (*Proxy)(nil)
	_ lease.Adopter = (*Proxy)(nil)
)
