//go:build external

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/flaky"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	"github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// The caps of the browser lease, and what the engine is configured with. The
// TTL is longer than staleAfter, so that pods die before their leases idle.
const (
	capUser, capProject, capTenant, capGlobal = 2, 5, 9, 16

	ttl        = 8 * time.Second
	staleAfter = 4 * time.Second
	margin     = 4 * time.Second
	sweep      = time.Second
	pods       = 4
	clients    = 200
)

const leaseText = "name: browser\nlevels: {user: 2, project: 5, tenant: 9, global: 16}\nttlSeconds: 8\nwaitMs: 500\n"

// world is the whole arrangement: a store, an upstream server that counts, pods
// that come and go, and clients.
type world struct {
	t        *testing.T
	upstream *browser.Server
	store    *mongo.Server
	database string
	flaky    []*flaky.Proxy // one for each pod, or none

	mu   sync.Mutex
	pods []*pod.Process // nil while one is down

	opened, refused, lost, unavailable, calls, ended, abandoned, cut atomic.Int64
	kills                                                            atomic.Int64

	// lostFor counts LEASE_LOST answers by reason since the last reset.
	lostMu  sync.Mutex
	lostFor map[string]int

	// unanswered are the names under which a client asked for a session and got
	// no answer: only of those may the upstream have a session that nobody knows.
	unansweredMu sync.Mutex
	unanswered   map[string]bool
	// opening are the names under which a client waits for a session, with the
	// pod it waits for; paused those of a pod that was frozen meanwhile. Such a
	// holder is idle beyond its TTL before it has told its session's id, so its
	// slot is free while the session lives.
	opening map[string]string
	paused  map[string]bool
}

func newWorld(t *testing.T, withFlaky bool) *world {
	w := &world{t: t, upstream: browser.New(browser.Behavior{}), lostFor: map[string]int{}, unanswered: map[string]bool{}, opening: map[string]string{}, paused: map[string]bool{}, database: "chaos"}
	t.Cleanup(w.upstream.Close)
	server := httptest.NewServer(w.upstream)
	t.Cleanup(server.Close)
	w.store = mongo.Start(t, openDir(t), freePort(t))
	address := strings.TrimSuffix(strings.TrimPrefix(w.store.URI, "mongodb://"), "/")
	w.pods = make([]*pod.Process, pods)
	for i := range w.pods {
		uri := w.store.URI
		if withFlaky {
			f := flaky.Start(t, address)
			w.flaky = append(w.flaky, f)
			uri = "mongodb://" + f.Addr + "/?directConnection=true"
		}
		w.pods[i] = pod.Start(t, pod.Config{
			Store: "kind: mongodb\nuri: " + uri + "\ndatabase: " + w.database,
			Documents: map[string]string{
				"_vance/_tenant/_vance/config/lease/browser.yaml": leaseText,
				"_vance/_tenant/_vance/server-tools/browser.yaml": "name: browser\ntype: mcp_server\nparameters:\n  transport: http\n  url: " + server.URL + "/mcp\n  lease: browser\n  onBusy: refuse\n",
			},
			Session:  "openWait: 500ms",
			Identity: "apiKeys:\n- {name: chaos, sha256: " + keyHash + ", tenants: {\"*\": [\"*\"]}, userHeader: X-Vance-User, onLost: notFound}",
		})
	}
	return w
}

// base returns the URL of a pod that runs, or "" where none does.
func (w *world) base(r *rand.Rand) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range r.Perm(len(w.pods)) {
		if w.pods[i] != nil {
			return w.pods[i].URL
		}
	}
	return ""
}

// take removes a running pod from those that clients use.
func (w *world) take(r *rand.Rand) (int, *pod.Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range r.Perm(len(w.pods)) {
		if p := w.pods[i]; p != nil {
			w.pods[i] = nil
			return i, p
		}
	}
	return 0, nil
}

func (w *world) put(i int, p *pod.Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[i] = p
}

// killOne kills a pod as a crash does, while clients still talk to it, and
// starts it again.
func (w *world) killOne(ctx context.Context, r *rand.Rand) {
	w.mu.Lock()
	i := r.IntN(len(w.pods))
	p := w.pods[i]
	w.mu.Unlock()
	p.Kill()
	w.put(i, nil)
	w.kills.Add(1)
	pause(ctx, time.Duration(500+r.IntN(1500))*time.Millisecond)
	w.put(i, p.Restart(w.t))
}

// pause waits as long as a person or machine outside would; it is the pace of a
// load and not a test's way to wait for something.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// live opens, uses and ends sessions until ctx ends.
func (w *world) live(ctx context.Context, n int, seed uint64, steady bool) {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	c := &caller{
		http:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2}},
		tenant: fmt.Sprintf("t%d", n%4), project: fmt.Sprintf("p%d", n/4%3), user: fmt.Sprintf("u%d", n/12%9),
	}
	if steady {
		c.tenant, c.project, c.user = "steady", fmt.Sprintf("p%d", n), fmt.Sprintf("u%d", n)
	}
	defer c.http.CloseIdleConnections()
	for round := 0; ctx.Err() == nil; round++ {
		w.session(ctx, r, c, fmt.Sprintf("%s#%d-%d", c.scope(), n, round), steady)
		pause(ctx, time.Duration(50+r.IntN(400))*time.Millisecond)
	}
}

// session is the life of one session.
func (w *world) session(ctx context.Context, r *rand.Rand, c *caller, name string, steady bool) {
	base := w.base(r)
	if base == "" {
		return
	}
	// Not the load's own context: a session's end belongs to the run.
	life := context.WithoutCancel(ctx)
	w.asks(name, base)
	a, err := c.open(life, base, name)
	paused := w.answered(name, err == nil)
	switch {
	case err != nil:
		w.cut.Add(1)
		return
	case a.code == "LEASE_BUSY":
		w.refused.Add(1)
		return
	case a.code == "LEASE_UNAVAILABLE":
		w.unavailable.Add(1)
		return
	case a.code == "LEASE_LOST" && paused:
		return
	case a.session == "":
		w.t.Errorf("open of %s: status %d, code %q: %s", name, a.status, a.code, a.message)
		return
	}
	w.opened.Add(1)
	for uses := 2 + r.IntN(12); ctx.Err() == nil && (steady || uses > 0); uses-- {
		pause(ctx, time.Duration(30+r.IntN(400))*time.Millisecond)
		if base = w.base(r); base == "" {
			continue
		}
		// Any pod serves any session.
		b, err := c.call(life, base, a.session)
		switch {
		case err != nil:
			w.cut.Add(1)
		case b.code == "LEASE_LOST":
			w.lost.Add(1)
			w.lostMu.Lock()
			w.lostFor[b.reason]++
			w.lostMu.Unlock()
			return
		case b.code == "LEASE_UNAVAILABLE":
			w.unavailable.Add(1)
		case b.code != "" || b.status != http.StatusOK:
			w.t.Errorf("call of %s: status %d, code %q: %s", name, b.status, b.code, b.message)
			return
		default:
			w.calls.Add(1)
		}
	}
	if r.IntN(8) == 0 && !steady {
		w.abandoned.Add(1) // its TTL ends it
		return
	}
	for range 20 {
		if base = w.base(r); base != "" {
			if err := c.end(life, base, a.session); err == nil {
				w.ended.Add(1)
				return
			}
		}
		pause(life, 200*time.Millisecond)
	}
	w.abandoned.Add(1)
}

// asks notes that a client asks a pod for a session.
func (w *world) asks(name, base string) {
	w.unansweredMu.Lock()
	defer w.unansweredMu.Unlock()
	w.opening[name] = base
}

// answered notes that it has its answer, or will have none, and reports whether
// the pod was frozen while it waited.
func (w *world) answered(name string, ok bool) (paused bool) {
	w.unansweredMu.Lock()
	defer w.unansweredMu.Unlock()
	delete(w.opening, name)
	if !ok {
		w.unanswered[name] = true
	}
	paused = w.paused[name]
	delete(w.paused, name)
	return paused
}

// freeze stops a pod as SIGSTOP does, and notes who waits for a session of it.
func (w *world) freeze(p *pod.Process) error {
	w.unansweredMu.Lock()
	defer w.unansweredMu.Unlock()
	for name, base := range w.opening {
		if base == p.URL {
			w.paused[name] = true
		}
	}
	return p.Freeze()
}

func (w *world) losses() map[string]int {
	w.lostMu.Lock()
	defer w.lostMu.Unlock()
	l := w.lostFor
	w.lostFor = map[string]int{}
	return l
}

// scopes returns the keys under which a session named "t/p/u#n-r" counts.
func scopes(name string) (keys [4]string, ok bool) {
	name, _, ok = strings.Cut(name, "#")
	part := strings.Split(name, "/")
	if !ok || len(part) != 3 {
		return keys, false
	}
	return [4]string{"user " + part[0] + "/" + part[2], "project " + part[0] + "/" + part[1], "tenant " + part[0], "global"}, true
}

var caps = map[string]int{"user": capUser, "project": capProject, "tenant": capTenant, "global": capGlobal}

// over lists the scopes in which more sessions live than the cap allows.
func over(names []string) (violations []string) {
	count := map[string]int{}
	for _, name := range names {
		keys, ok := scopes(name)
		if !ok {
			continue
		}
		for _, k := range keys {
			count[k]++
		}
	}
	for key, n := range count {
		level, _, _ := strings.Cut(key, " ")
		if n > caps[level] {
			violations = append(violations, fmt.Sprintf("%s: %d of %d", key, n, caps[level]))
		}
	}
	slices.Sort(violations)
	return violations
}

// openDir is a folder that the store's own, unprivileged user can enter; the
// parents of t.TempDir are closed to it.
func openDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "chaos-store-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
