package texproxy

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// The payload of a compile's holder: what any pod needs to go on with it.
const (
	payloadService = "service"
	payloadJob     = "job"
	payloadIssuer  = "issuer"
	payloadValue   = "v." // and a place of the paths
)

// How a job can end besides what its service says.
const (
	outcomeCancelled tex.Outcome = "cancelled" // by its client
	outcomeOverdue   tex.Outcome = "overdue"   // at hold.max
)

// job is a running compile that this pod serves. The store has all of it; this
// copy spares a lookup for each poll, and is what the pod watches.
type job struct {
	s      *service
	id     string
	owner  owner
	values map[string]string // what its paths are filled with
	lease  leased
	since  time.Time

	mu       sync.Mutex
	polled   time.Time // by its client
	watched  time.Time // by the gateway
	unstored bool      // the holder's payload does not name the job yet
	over     bool
}

func newJob(s *service, id string, o owner, values map[string]string, l leased, since time.Time) *job {
	with := maps.Clone(values)
	if with == nil {
		with = map[string]string{}
	}
	with["job"] = id
	now := time.Now()
	return &job{s: s, id: id, owner: o, values: with, lease: l, since: since, polled: now, watched: now}
}

func (j *job) key() string { return j.s.jobKey(j.id) }

func (j *job) token() lease.Token { return j.lease.Ref().Token }

func (j *job) payload() lease.Payload {
	p := lease.Payload{lease.PayloadKey: j.key(), payloadService: j.s.Name, payloadJob: j.id, payloadIssuer: j.owner.issuer}
	for name, v := range j.values {
		p[payloadValue+name] = v
	}
	return p
}

// polledAt notes that the client has asked.
func (j *job) polledAt(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.polled = now
}

// watchedAt notes that the gateway asks.
func (j *job) watchedAt(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.watched = now
}

// check touches the job's lease, and writes its payload where that has failed
// before.
func (j *job) check(ctx context.Context) error {
	if err := j.lease.Check(ctx); err != nil {
		return err
	}
	j.mu.Lock()
	unstored := j.unstored
	j.mu.Unlock()
	if !unstored {
		return nil
	}
	if err := j.lease.UpdatePayload(ctx, j.payload()); err != nil {
		return err
	}
	j.mu.Lock()
	j.unstored = false
	j.mu.Unlock()
	return nil
}

// ends reports whether this is the first who says that the job has ended.
func (j *job) ends() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	first := !j.over
	j.over = true
	return first
}

// jobFrom makes a job from its holder; nil where the holder has none, such as
// one whose submit has not ended, or a sync compile.
func (p *Proxy) jobFrom(h lease.Holder, now time.Time) *job {
	s := p.services[h.Payload[payloadService]]
	id := h.Payload[payloadJob]
	if s == nil || id == "" || s.Mode != tex.Job {
		return nil
	}
	j := newJob(s, id, ownerOfHolder(h), valuesOf(h.Payload), leased{p.leases.Attach(lease.RefOf(h)), h.Resource}, h.CreatedAt)
	j.polled, j.watched = now, now
	return j
}

// valuesOf reads what a compile's paths are filled with.
func valuesOf(p lease.Payload) map[string]string {
	values := map[string]string{}
	for k, v := range p {
		if name, ok := strings.CutPrefix(k, payloadValue); ok {
			values[name] = v
		}
	}
	return values
}

// end gives a job's slot back, since the job has ended. The owner keeps its
// results for an hour more. It is counted unless another pod has seen its end
// before, and has given the slot back.
func (p *Proxy) end(ctx context.Context, j *job, o tex.Outcome) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
	defer cancel()
	p.jobs.drop(j)
	if j.ends() && p.isKnown(ctx, j) {
		p.opt.Observer.Ended(j.s.Name, string(o))
	}
	p.owners.put(recordJob, j.key(), known{owner: j.owner, free: true})
	if !p.giveBack(j.lease.Lease) {
		return // its record of the submit is still there
	}
	if _, err := p.claim(ctx, recordJob, j.key(), j.owner, afterEnd); err != nil {
		p.opt.Log.Warn("the owner of an ended job could not be recorded", "service", j.s.Name, "err", err)
	}
}

// isKnown reports whether the store has the job's holder still, or its mark.
func (p *Proxy) isKnown(ctx context.Context, j *job) bool {
	if j.lease.Noop() {
		return true
	}
	// A count is not worth the client's wait.
	ctx, cancel := context.WithTimeout(ctx, storePatience/4)
	defer cancel()
	holders, err := p.leases.Find(ctx, lease.Filter{Token: j.token(), States: []lease.State{lease.Held, lease.Revoked}})
	return err != nil || len(holders) > 0
}

// overdue ends the hold of a job at hold.max.
func (p *Proxy) overdue(ctx context.Context, j *job) {
	p.opt.Log.Warn("a job has held its slot for hold.max; the slot is given back", "service", j.s.Name)
	p.cancelUpstream(ctx, j.s, j.values)
	p.end(ctx, j, outcomeOverdue)
}

// jobs are the running jobs of this pod by service and job id. Caps bound them.
type jobs struct {
	mu    sync.Mutex
	byKey map[string]*job
}

func newJobs() *jobs { return &jobs{byKey: map[string]*job{}} }

func (t *jobs) get(key string) *job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byKey[key]
}

// put keeps j unless the same lease is there already, and returns what is kept.
func (t *jobs) put(j *job) *job {
	if j == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.byKey[j.key()]; old != nil && old.token() == j.token() {
		return old
	}
	t.byKey[j.key()] = j
	return j
}

// drop forgets j; another lease of the same job stays.
func (t *jobs) drop(j *job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.byKey[j.key()]; old != nil && old.token() == j.token() {
		delete(t.byKey, j.key())
	}
}

// dropToken forgets the job whose lease this is.
func (t *jobs) dropToken(token lease.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byKey, func(_ string, j *job) bool { return j.token() == token })
}

func (t *jobs) all() []*job {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*job, 0, len(t.byKey))
	for _, j := range t.byKey {
		all = append(all, j)
	}
	return all
}
