package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// giveUpAfter is how long sweeps go on ending the upstream session of a mark.
// An upstream that has not confirmed for a day will not, and its own rules have
// ended the session; the marks must not pile up for good.
const giveUpAfter = 24 * time.Hour

// OnRevoked ends the upstream session of a revoked lease; see lease.Handler. It
// is idempotent: a DELETE of a session that is gone counts as done. An error
// means not confirmed.
func (p *Proxy) OnRevoked(ctx context.Context, h lease.Holder) error {
	if s := p.table.of(&h); s != nil {
		// A late revocation of a session that was opened again closes nothing
		// of the new one.
		if held := s.hold.Load(); held.lease.Ref().Token == h.Token {
			var reason lease.Reason
			if h.Revocation != nil {
				reason = h.Revocation.Reason
			}
			if reason == "" { // a holder as it was before its mark
				reason = p.opt.Leases.LostReason(ctx, h.Token)
			}
			p.end(ctx, s, held, ending{cause: revoked, reason: reason})
		}
	}
	if h.PodBound || h.Payload[paySession] == "" {
		return nil // the child has died with its pod, or no session was opened
	}
	doc, err := p.opt.Servers.Resolve(ctx, h.Tenant, h.Project, h.Payload[payServer])
	if errors.Is(err, server.ErrUnknown) || errors.Is(err, server.ErrDisabled) {
		p.opt.Log.WarnContext(ctx, "no DELETE for a revoked session: its server's document is gone", "server", h.Payload[payServer])
		return nil
	}
	if err == nil && (doc.URL == nil || doc.URL.String() != h.Payload[payEndpoint]) {
		p.opt.Log.WarnContext(ctx, "no DELETE for a revoked session: its server's document leads elsewhere now", "server", h.Payload[payServer])
		return nil
	}
	if err == nil {
		err = p.endRevoked(ctx, doc, &h)
	}
	if err == nil {
		return nil
	}
	if h.Revocation != nil && !h.Revocation.At.IsZero() && time.Since(h.Revocation.At) > giveUpAfter {
		p.opt.Log.ErrorContext(ctx, "giving up on ending a revoked upstream session after a day", "server", h.Payload[payServer], "error", err)
		return nil
	}
	return err
}

func (p *Proxy) endRevoked(ctx context.Context, doc *server.Document, h *lease.Holder) error {
	outcome, err := p.deleteUpstream(ctx, doc, sessionOf(h.Payload), h.Payload[payProtocol], p.kept.authorization(h.Payload))
	if outcome == upstream.Confirmed {
		return nil
	}
	return fmt.Errorf("session: ending a revoked session of %s: %s: %w", doc.Name, outcome, err)
}
