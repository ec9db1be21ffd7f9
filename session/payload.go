package session

import (
	"context"
	"encoding/hex"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
)

// Members of the payload of an mcp lease: what the handler on any pod needs to
// end the upstream session (spec §6, §7), and what another pod needs to go on
// with a session that was opened again.
const (
	payServer    = "server"
	payEndpoint  = "endpoint"
	paySession   = "sessionId"
	payInit      = "initialize"
	payProtocol  = "protocol"
	payPrincipal = "principal"
	payForward   = "forward"
	payKey       = lease.PayloadKey // the session's number
)

// maxKeptInit is the longest initialize that is kept to open a session again.
const maxKeptInit = 64 << 10

func (p *Proxy) payload(n Number, o owner, doc *server.Document, init []byte, caller string) lease.Payload {
	pl := lease.Payload{payServer: doc.Name, payEndpoint: endpointText(doc), payKey: n.key(), payPrincipal: hex.EncodeToString(o[:])}
	if len(init) <= maxKeptInit {
		pl[payInit] = string(init)
	}
	if doc.Auth.Type == "forward" && caller != "" {
		pl[payForward] = p.kept.Seal([]byte(caller), []byte(n.key()))
	}
	return pl
}

func endpointText(doc *server.Document) string {
	if doc.URL == nil {
		return "stdio"
	}
	return doc.URL.String()
}

// keptCaller is the credential of auth forward in a payload.
func (p *Proxy) keptCaller(pl lease.Payload) string {
	if pl[payForward] == "" {
		return ""
	}
	b, err := p.kept.Open(pl[payForward], []byte(pl[payKey]))
	if err != nil {
		return ""
	}
	return string(b)
}

// callerOf is the credential that a session with auth forward last used, where
// no request brings one.
func (p *Proxy) callerOf(ctx context.Context, doc *server.Document, sl slot) string {
	if doc == nil || doc.Auth.Type != "forward" || sl.Noop() {
		return ""
	}
	h, err := p.holder(ctx, lease.Filter{Token: sl.Ref().Token, States: []lease.State{lease.Held, lease.Revoked}})
	if err != nil || h == nil {
		return ""
	}
	return p.keptCaller(h.Payload)
}

// sameEndpoint reports whether the document still leads where the session was
// opened.
func (s *live) sameEndpoint(doc *server.Document) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doc == doc {
		return true
	}
	if s.endpoint != endpointOf(doc.URL) {
		return false
	}
	s.doc = doc
	return true
}

// sessionOf is the upstream session id of a payload.
func sessionOf(pl lease.Payload) upstream.SessionID { return upstream.SessionID(pl[paySession]) }
