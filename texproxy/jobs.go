package texproxy

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// The payload of a job's holder: what any pod needs to go on with it.
const (
	payloadService = "service"
	payloadJob     = "job"
	payloadRetaken = "retaken"
	payloadValue   = "v." // and a place of the paths
)

// job is a running compile that this pod serves. The store has all of it; this
// copy spares a lookup for each poll, and is what the pod watches.
type job struct {
	s       *service
	id      string
	owner   owner
	values  map[string]string // what its paths are filled with
	slot    slot
	since   time.Time
	retaken bool // its slot is not its first one

	mu       sync.Mutex
	polled   time.Time // by its client
	looked   time.Time // by the gateway
	looking  bool
	unstored bool // the holder's payload does not name the job yet
}

func (j *job) key() string { return j.s.jobKey(j.id) }

func (j *job) token() lease.Token { return j.slot.Ref().Token }

func (j *job) payload() lease.Payload {
	p := lease.Payload{lease.PayloadKey: j.key(), payloadService: j.s.Name, payloadJob: j.id}
	for name, v := range j.values {
		p[payloadValue+name] = v
	}
	if j.retaken {
		p[payloadRetaken] = "1"
	}
	return p
}

// touchedBy notes that the client has asked.
func (j *job) touchedBy(now time.Time) {
	j.mu.Lock()
	j.polled = now
	j.mu.Unlock()
}

// jobFrom makes a job from its holder; nil where the holder has none, such as
// one whose submit has not ended.
func (p *Proxy) jobFrom(h lease.Holder, now time.Time) *job {
	s := p.services[h.Payload[payloadService]]
	id := h.Payload[payloadJob]
	if s == nil || id == "" || s.Mode != "job" {
		return nil
	}
	return &job{
		s: s, id: id, owner: owner{h.Tenant, h.Project, h.User}, values: valuesOf(h.Payload),
		slot:  p.engine.attach(lease.Ref{Token: h.Token, Type: h.Type, Label: h.Label, TTL: h.TTL, PodBound: h.PodBound}),
		since: h.CreatedAt, retaken: h.Payload[payloadRetaken] != "", polled: now, looked: now,
	}
}

// valuesOf reads what a job's paths are filled with.
func valuesOf(p lease.Payload) map[string]string {
	values := map[string]string{}
	for k, v := range p {
		if name, ok := strings.CutPrefix(k, payloadValue); ok {
			values[name] = v
		}
	}
	return values
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
	if t.byKey[j.key()] == j {
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

// runs are the requests that use a lease at this moment, so that a revocation
// can end them. A revocation after the end finds nothing and leaves nothing.
type runs struct {
	mu      sync.Mutex
	byToken map[lease.Token]map[*run]struct{}
}

// run is one request's use of a lease. A nil run is one without a lease.
type run struct {
	t     *runs
	token lease.Token
	abort context.CancelCauseFunc
	stop  func() // the checks
}

func newRuns() *runs { return &runs{byToken: map[lease.Token]map[*run]struct{}{}} }

// begin registers a use of a lease. Its context ends with a *lease.LostError
// when the lease is revoked here or a check finds it gone.
func (t *runs) begin(ctx context.Context, s slot) (context.Context, *run) {
	if s == nil {
		return ctx, nil
	}
	ctx, abort := context.WithCancelCause(ctx)
	r := &run{t: t, token: s.Ref().Token, abort: abort}
	t.mu.Lock()
	if t.byToken[r.token] == nil {
		t.byToken[r.token] = map[*run]struct{}{}
	}
	t.byToken[r.token][r] = struct{}{}
	t.mu.Unlock()
	r.stop = keep(ctx, s, abort)
	return ctx, r
}

// settle unregisters the use: the lease is about to be released, and whatever
// is still to be sent to the client does not need it.
func (r *run) settle() {
	if r == nil {
		return
	}
	r.stop()
	r.t.mu.Lock()
	delete(r.t.byToken[r.token], r)
	if len(r.t.byToken[r.token]) == 0 {
		delete(r.t.byToken, r.token)
	}
	r.t.mu.Unlock()
}

// end settles and ends the context.
func (r *run) end() {
	if r != nil {
		r.settle()
		r.abort(nil)
	}
}

// abort ends every use of a lease in this pod.
func (t *runs) abort(token lease.Token, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.byToken[token] {
		r.abort(cause)
	}
}

func (t *runs) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byToken)
}
