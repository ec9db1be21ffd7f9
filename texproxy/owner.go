package texproxy

import (
	"container/list"
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Upstreams know one key, the gateway's, and give any job to whoever names it.
// So the gateway remembers whose a job is: in a record beside the leases that
// outlives the job by an hour, and in a bounded memory that spares most reads
// of it. A record's owner never changes while it lives.

const (
	recordJob    = "tex-job"    // service/job → owner
	recordName   = "tex-name"   // service/name=value → owner
	recordRetake = "tex-retake" // token of a lost lease → who tries to replace it
	recordEnded  = "tex-ended"  // service/job, where a lease of it was lost and it has ended since

	afterEnd    = time.Hour
	namesLive   = 7 * 24 * time.Hour
	rememberAll = 10000
)

// owner is who a job belongs to.
type owner struct{ tenant, project, user string }

func (o owner) sharer() quota.Key { return quota.Of(o.tenant, o.project, o.user) }

func ownerOf(c principal.Caller) owner { return owner{c.Tenant, c.Project, c.User} }

func (o owner) values() map[string]string {
	return map[string]string{"tenant": o.tenant, "project": o.project, "user": o.user}
}

func ownerFrom(v map[string]string) owner { return owner{v["tenant"], v["project"], v["user"]} }

// owners are the owners that this pod has seen, least recently used out first.
type owners struct {
	mu    sync.Mutex
	known map[string]*list.Element
	order list.List
	now   func() time.Time
}

type remembered struct {
	key   string
	owner owner
	free  bool // its scope has no lease, so there is nothing to look for in the store
	until time.Time
}

func newOwners() *owners { return &owners{known: map[string]*list.Element{}, now: time.Now} }

func (o *owners) put(key string, who owner, free bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	entry := remembered{key, who, free, o.now().Add(afterEnd)}
	if e, ok := o.known[key]; ok {
		e.Value = entry
		o.order.MoveToFront(e)
		return
	}
	o.known[key] = o.order.PushFront(entry)
	if o.order.Len() > rememberAll {
		last := o.order.Back()
		delete(o.known, last.Value.(remembered).key)
		o.order.Remove(last)
	}
}

func (o *owners) get(key string) (remembered, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e, ok := o.known[key]
	if !ok {
		return remembered{}, false
	}
	entry := e.Value.(remembered)
	if o.now().After(entry.until) {
		delete(o.known, key)
		o.order.Remove(e)
		return remembered{}, false
	}
	o.order.MoveToFront(e)
	return entry, true
}

// claimed is what a claim found.
type claimed struct {
	owner owner
	fresh bool      // nobody had it
	at    time.Time // when it was first claimed, by the clock of the pod that did
}

// claim binds a key to an owner for ttl, or finds whose it is already.
func (p *Proxy) claim(ctx context.Context, kind, key string, who owner, ttl time.Duration) (claimed, error) {
	values := who.values()
	values["claim"], values["at"] = rand.Text(), time.Now().UTC().Format(time.RFC3339Nano)
	var r lease.Record
	err := patiently(ctx, func(ctx context.Context) (err error) {
		r, err = p.opt.Records.ClaimRecord(ctx, lease.Record{Kind: kind, Key: key, Value: values, TTL: ttl})
		return err
	})
	if err != nil {
		return claimed{}, err
	}
	c := claimed{owner: ownerFrom(r.Value), fresh: r.Value["claim"] == values["claim"]}
	c.at, _ = time.Parse(time.RFC3339Nano, r.Value["at"]) // ours, or an older one's zero
	p.owners.put(kind+" "+key, c.owner, false)
	return c, nil
}

// lookup reads whose a key is.
func (p *Proxy) lookup(ctx context.Context, kind, key string) (who owner, ok bool, err error) {
	var r lease.Record
	err = patiently(ctx, func(ctx context.Context) (err error) {
		r, ok, err = p.opt.Records.LookupRecord(ctx, kind, key)
		return err
	})
	if err != nil || !ok {
		return owner{}, false, err
	}
	who = ownerFrom(r.Value)
	p.owners.put(kind+" "+key, who, false)
	return who, true, nil
}

// mayUseName reports whether a caller may use a named thing, and binds one that
// nobody has used. A scope without a lease makes no store call for a name that
// this pod knows.
func (p *Proxy) mayUseName(ctx context.Context, key string, who owner) (bool, error) {
	if known, ok := p.owners.get(recordName + " " + key); ok {
		return known.owner == who, nil
	}
	got, err := p.claim(ctx, recordName, key, who, namesLive)
	return got.owner == who, err
}
