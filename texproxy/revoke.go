package texproxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// cancelTimeout bounds one request that cancels a compile.
const cancelTimeout = 8 * time.Second

// Adopt goes on watching a dead pod's job; see lease.Adopter. A holder without a
// job is a sync compile, or a submit that died with its pod: nobody can ask how
// it is, and its TTL ends it.
func (p *Proxy) Adopt(_ context.Context, h lease.Holder) error {
	p.jobs.put(p.jobFrom(h, time.Now()))
	return nil
}

// OnRevoked is the handler "tex"; see lease.Handler. Requests that use the lease
// here end, nobody watches its job any more, and a service that can cancel is
// told to. Where it cannot, the job's next poll tells the client, by the mark
// in the store: nothing is kept here for it.
func (p *Proxy) OnRevoked(ctx context.Context, h lease.Holder) error {
	l := p.leases.Attach(lease.RefOf(h))
	p.uses.abort(h.Token, func() error { return l.Loss(ctx) })
	p.jobs.dropToken(h.Token)
	s := p.services[h.Payload[payloadService]]
	if s == nil || s.cancel == nil {
		return nil
	}
	if h.Revocation != nil && !h.Revocation.At.IsZero() && time.Since(h.Revocation.At) > s.HoldMax {
		return nil // no compile is that old
	}
	if !p.cancelUpstream(ctx, s, valuesOf(h.Payload)) {
		return errors.New("texproxy: the service could not be told to cancel the compile")
	}
	return nil
}

// cancelUpstream ends a compile where the service can. Done means that there is
// nothing left to end.
func (p *Proxy) cancelUpstream(ctx context.Context, s *service, values map[string]string) (done bool) {
	if s.cancel == nil {
		return true
	}
	path, err := s.cancel.path.Fill(values)
	if err != nil {
		return true // its submit never got as far as a job
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	a, _, err := p.exchange(ctx, s, call{method: s.cancel.Methods[0], base: s.cancel.base, path: path, header: http.Header{}})
	if err != nil {
		p.opt.Log.Warn("a compile could not be cancelled", "service", s.Name, "err", err)
		return false
	}
	httpbody.Drain(a.Body)
	return a.StatusCode < http.StatusInternalServerError
}

var (
	_ lease.Handler = (*Proxy)(nil)
	_ lease.Adopter = (*Proxy)(nil)
)
