package texproxy

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Upstreams know one key, the gateway's, and give any job to whoever names it.
// So the gateway remembers whose a job is, and whose a name that its service has
// accepted: in a record beside the leases, and in a bounded memory that spares
// most reads of it. A record's owner never changes while it lives, and what has
// none is nobody's.

const (
	recordJob      = "tex-job"      // service/job → owner
	recordName     = "tex-name"     // service/name=value → owner
	recordReserved = "tex-reserved" // the same, while nobody knows whether the service takes it

	afterEnd    = time.Hour
	namesLive   = 7 * 24 * time.Hour
	resultsLive = 24 * time.Hour // of names that a service gives its results
	rememberAll = 10000

	// namesOfOne is how many names one user may bind in namesLive, on one pod.
	namesOfOne = 1000
)

// owner is who a job belongs to. Two credentials that say the same user are two
// owners.
type owner struct{ tenant, project, user, issuer string }

// is reports whether what belongs to o is who's. What an earlier version has
// recorded names no issuer.
func (o owner) is(who owner) bool {
	if o.issuer == "" {
		who.issuer = ""
	}
	return o == who
}

func (o owner) sharer() quota.Key { return quota.Of(o.tenant, o.project, o.user) }

func ownerOf(c principal.Caller) owner { return owner{c.Tenant, c.Project, c.User, c.Issuer} }

func ownerOfHolder(h lease.Holder) owner {
	return owner{h.Tenant, h.Project, h.User, h.Payload[payloadIssuer]}
}

// known is what this pod knows of a job or a name.
type known struct {
	owner owner
	free  bool // it has no lease any more, or never had one: the store has nothing of it
	until time.Time
}

// owners are the owners that this pod has seen, least recently used out first.
type owners struct {
	seen *lru.Cache[string, known]

	mu    sync.Mutex
	bound map[owner]int // names, since
	since time.Time
}

func newOwners() *owners {
	seen, err := lru.New[string, known](rememberAll)
	if err != nil {
		panic(err) // the size is a constant
	}
	return &owners{seen: seen, bound: map[owner]int{}, since: time.Now()}
}

func (o *owners) put(kind, key string, k known) {
	k.until = time.Now().Add(afterEnd)
	o.seen.Add(kind+" "+key, k)
}

func (o *owners) get(kind, key string) (known, bool) {
	k, ok := o.seen.Get(kind + " " + key)
	return k, ok && time.Now().Before(k.until)
}

// mayBind counts a name that an owner is about to bind, and reports whether there
// is room for it.
func (o *owners) mayBind(who owner) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.since) > namesLive {
		o.bound, o.since = map[owner]int{}, time.Now()
	}
	if o.bound[who] >= namesOfOne {
		return false
	}
	o.bound[who]++
	return true
}

// claimed is what a claim found.
type claimed struct {
	owner owner
	fresh bool // nobody had it
}

// claim binds a key to an owner for ttl, or finds whose it is already.
func (p *Proxy) claim(ctx context.Context, kind, key string, who owner, ttl time.Duration) (claimed, error) {
	claim := rand.Text()
	record := lease.Record{Kind: kind, Key: key, TTL: ttl, Value: map[string]string{
		"tenant": who.tenant, "project": who.project, "user": who.user, "issuer": who.issuer, "claim": claim}}
	var r lease.Record
	err := patiently(ctx, func(ctx context.Context) (err error) {
		r, err = p.opt.Records.ClaimRecord(ctx, record)
		return err
	})
	if err != nil {
		return claimed{}, unavailable(err)
	}
	return claimed{owner: ownerOfRecord(r), fresh: r.Value["claim"] == claim}, nil
}

func ownerOfRecord(r lease.Record) owner {
	return owner{r.Value["tenant"], r.Value["project"], r.Value["user"], r.Value["issuer"]}
}

// lookup reads whose a key is.
func (p *Proxy) lookup(ctx context.Context, kind, key string) (who owner, ok bool, err error) {
	if k, ok := p.owners.get(kind, key); ok {
		return k.owner, true, nil
	}
	var r lease.Record
	err = patiently(ctx, func(ctx context.Context) (err error) {
		r, ok, err = p.opt.Records.LookupRecord(ctx, kind, key)
		return err
	})
	if err != nil || !ok {
		return owner{}, false, unavailable(err)
	}
	who = ownerOfRecord(r)
	p.owners.put(kind, key, known{owner: who})
	return who, true, nil
}

// binds reports whether the request makes what it names its caller's, once the
// service has accepted it.
func (q *request) binds() bool {
	switch q.kind() {
	case kindSubmit:
		return true
	case kindOther:
		return q.r.Method == http.MethodPost || q.r.Method == http.MethodPut || q.r.Method == http.MethodPatch
	}
	return false
}

// mayUseName refuses a request under a name that is another's, or that is
// nobody's where the request does not begin anything. A name that is nobody's is
// reserved before the service hears of it, so that of two who begin under it at
// once only one does.
func (q *request) mayUseName() error {
	for _, key := range q.s.owned(q.m) {
		who, ok, err := q.p.lookup(q.r.Context(), recordName, key)
		switch {
		case err != nil:
			return err
		case ok && who.is(q.owner):
			continue
		case ok || !q.binds():
			return errNotFound
		case !q.p.owners.mayBind(q.owner):
			return errTooManyNames
		}
		got, err := q.p.claim(q.r.Context(), recordReserved, key, q.owner, q.s.HoldMax+time.Minute)
		if err != nil {
			return err
		}
		if !got.owner.is(q.owner) {
			return errNotFound
		}
	}
	return nil
}

// bound binds to the caller what an accepted request names and what an answer
// leads to, before the client and anybody else can ask for it. What cannot be
// bound is not offered.
func (q *request) bound(a *answer) (*answer, error) {
	if !q.binds() {
		return a, nil
	}
	var err error
	if q.accepted(a) {
		err = q.bind(q.s.owned(q.m), namesLive)
	}
	if err == nil && q.kind() == kindSubmit {
		err = q.bind(q.namesIn(a), resultsLive)
	}
	if err != nil {
		a.Body.Close()
		return nil, err
	}
	return a, nil
}

// bind binds names to the caller. One that is another's is not found.
func (q *request) bind(keys []string, ttl time.Duration) error {
	ctx := context.WithoutCancel(q.r.Context())
	for _, key := range keys {
		if k, ok := q.p.owners.get(recordName, key); ok && k.owner.is(q.owner) {
			continue
		}
		got, err := q.p.claim(ctx, recordName, key, q.owner, ttl)
		if err != nil {
			return err
		}
		if !got.owner.is(q.owner) {
			return errNotFound
		}
		q.p.owners.put(recordName, key, known{owner: q.owner})
	}
	return nil
}

func (q *request) accepted(a *answer) bool {
	if q.kind() == kindSubmit {
		return q.m.route.accepts(a.StatusCode)
	}
	return a.StatusCode >= 200 && a.StatusCode <= 299
}
