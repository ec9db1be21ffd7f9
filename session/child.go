package session

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

const (
	// childTimeout bounds the end of a child's tree.
	childTimeout = 15 * time.Second
	// podsKept is how long the list of living pods is good for forwarding.
	podsKept = 3 * time.Second
)

// bridge is what a session needs of an upstream that lives in this pod;
// *stdio.Bridge is one, and so is *upstream.SSE.
type bridge interface {
	http.RoundTripper
	Gone() <-chan struct{}
	Err() error
	Close(ctx context.Context) error
}

func startBridge(ctx context.Context, c stdio.Command) (bridge, error) {
	p, err := stdio.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return stdio.NewBridge(p, stdio.BridgeOptions{Log: c.Log}), nil
}

// child is an upstream that lives in this pod, the program of a stdio server or the
// event stream of an sse one, and the places that it takes here.
type child struct {
	bridge bridge
	tenant string    // has its place in limits.stdioPerTenant; "" for an event stream
	share  quota.Key // has its place in limits.perPod
	once   sync.Once // ending
}

// startStream makes ready for the event stream of an sse server, which the
// initialize opens.
func (o *opening) startStream() *refusal.Refusal {
	q, p := o.q, o.q.p
	if !p.traffic.enter(q.share, false) {
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	o.hold.child = &child{bridge: upstream.NewSSE(p.up, q.doc.URL, q.doc.Untrusted, p.opt.Log.With("server", q.server)), share: q.share}
	return nil
}

// startChild starts the program of a stdio server.
func (o *opening) startChild() *refusal.Refusal {
	q, p, ctx := o.q, o.q.p, o.x.Context()
	if most := p.opt.Limits().StdioPerTenant; !p.table.addChild(q.caller.Tenant, most) {
		return refusal.Limit("limits.stdioPerTenant", most)
	}
	if !p.traffic.enter(q.share, false) {
		p.table.dropChild(q.caller.Tenant)
		return refusal.ShareTaken(p.opt.Limits().PerPod)
	}
	var b bridge
	env, err := q.doc.ResolvedEnv() // with the secrets of now
	if err == nil {
		b, err = p.start(ctx, stdio.Command{Args: q.doc.Command, Dir: q.doc.Cwd, Env: env, Log: p.opt.Log.With("server", q.server)})
	}
	if err == nil {
		o.hold.child = &child{bridge: b, tenant: q.caller.Tenant, share: q.share}
		return nil
	}
	p.table.dropChild(q.caller.Tenant)
	p.traffic.exit(q.share, false)
	p.opt.Log.WarnContext(ctx, "a stdio server could not be started", "server", q.server, "error", err)
	if ctx.Err() != nil {
		return o.failed(err)
	}
	return refusal.UpstreamDown(q.server, "its program could not be started; the gateway's log says why")
}

// end ends a child's whole tree and waits until it is gone. One that nobody
// has used yet gets no time to end by itself: its slot is wanted.
func (c *child) end(ctx context.Context, p *Proxy, why cause) {
	c.once.Do(func() {
		limit := childTimeout
		if why == openFailed {
			limit = time.Second
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		outcome := "confirmed"
		if err := c.bridge.Close(ctx); err != nil {
			outcome = "unreachable"
			p.opt.Log.ErrorContext(ctx, "a server's program or event stream could not be ended", "error", err)
		}
		p.opt.Observer.Closed(outcome)
		if c.tenant != "" {
			p.table.dropChild(c.tenant)
		}
		p.traffic.exit(c.share, false)
	})
}

// endWithChild ends a session whose child ends by itself.
func (p *Proxy) endWithChild(s *session, h *hold) {
	<-h.child.bridge.Gone()
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout+releaseTimeout)
	defer cancel()
	if p.end(ctx, s, h, ending{cause: childExited}) {
		p.opt.Log.Warn("a server's program or event stream has ended by itself", "server", s.scope.server, "session", s.number, "error", h.child.bridge.Err())
	}
}

// forwardTo has another pod answer the request; false where that pod is not alive.
func (q *request) forwardTo(id lease.PodID) (asked bool, f *refusal.Refusal) {
	p := q.p
	if p.opt.Forwarder == nil || q.forwarded {
		return false, nil
	}
	pods, err := p.pods.living(q.r.Context(), p.opt.Leases)
	if err != nil {
		return true, refusal.Lease(err)
	}
	for _, pod := range pods {
		if pod.ID != id {
			continue
		}
		var body []byte
		if q.body != nil {
			body = q.body.B
		}
		if err := p.opt.Forwarder.Forward(q.w, q.r, pod, q.caller, q.server, body); err != nil {
			p.opt.Log.WarnContext(q.r.Context(), "a request could not be forwarded", "pod", pod.ID, "server", q.server, "error", err)
			return true, refusal.UpstreamDown(q.server, "the gateway process that runs it cannot be reached; try again in about 5 s")
		}
		return true, &refusal.Refusal{Form: refusal.Silent} // the other pod has answered
	}
	return false, nil
}

// adoptChild finds a session whose child does not run here: at the pod that has it,
// or that has opened it again since, or else nowhere. Then it is lost.
func (q *request) adoptChild(st *sessionid.Sealed) (*session, *refusal.Refusal) {
	p, ctx := q.p, q.r.Context()
	if st.Pod != p.opt.Pod {
		if asked, f := q.forwardTo(st.Pod); asked {
			return nil, f
		}
	}
	if st.Lease.Token == "" {
		return nil, refusal.UnknownSession()
	}
	holder, err := p.holder(ctx, lease.Filter{Key: st.Number.Key(), States: []lease.State{lease.Held}})
	if err != nil {
		return nil, refusal.Lease(err)
	}
	if holder != nil && holder.Pod != st.Pod && holder.Pod != p.opt.Pod {
		if asked, f := q.forwardTo(holder.Pod); asked {
			return nil, f
		}
	}
	h := &hold{lease: p.opt.Leases.Attach(st.Lease), version: st.Version, endpoint: st.Endpoint}
	s := q.newSession(st.Number, st.Opened, h)
	s.listened.Store(true) // as far as is known here: another process has opened it
	s.lastUse.Store(p.now())
	if standing := p.enlist(s); standing != s {
		return standing, nil // by a request beside this one
	}
	reason := p.opt.Leases.LostReason(ctx, st.Lease.Token)
	e := ending{cause: leaseGone, reason: reason}
	if reason == "" && st.Pod != p.opt.Pod {
		e.cause = podGone
	}
	p.end(ctx, s, h, e)
	return s, nil
}

// podCache keeps the list of living pods for a moment, so that a chatty stdio
// client behind the wrong pod costs no store call for every message.
type podCache struct {
	mu   sync.Mutex
	at   time.Time
	pods []lease.Pod
}

func (c *podCache) living(ctx context.Context, leases Leases) ([]lease.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < podsKept {
		return c.pods, nil
	}
	pods, err := leases.LivingPods(ctx)
	if err != nil {
		return nil, err
	}
	c.at, c.pods = time.Now(), pods
	return pods, nil
}
