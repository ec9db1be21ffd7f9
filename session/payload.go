package session

import (
	"context"
	"encoding/hex"
	"hash/maphash"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
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

// keptBox seals what is kept in payloads: the initialize, and the credential of auth
// forward.
type keptBox struct{ box *seal.Box }

func (k keptBox) payload(n sessionid.Number, o sessionid.Owner, doc *server.Document, init []byte, authorization string) lease.Payload {
	pl := lease.Payload{payServer: doc.Name, payEndpoint: endpointText(doc), payKey: n.Key(), payPrincipal: hex.EncodeToString(o[:])}
	if len(init) <= maxKeptInit {
		pl[payInit] = k.box.Seal(init, initOf(pl))
	}
	if doc.Auth.Type == "forward" && authorization != "" {
		pl[payForward] = k.sealAuthorization(n, authorization)
	}
	return pl
}

func (k keptBox) sealAuthorization(n sessionid.Number, authorization string) string {
	return k.box.Seal([]byte(authorization), []byte(n.Key()))
}

func endpointText(doc *server.Document) string {
	if doc.URL == nil {
		return "stdio"
	}
	return doc.URL.String()
}

// initOf binds a kept initialize to its session.
func initOf(pl lease.Payload) []byte { return []byte("initialize " + pl[payKey]) }

// init is the initialize in a payload; nil where none is kept.
func (k keptBox) init(pl lease.Payload) []byte {
	if pl[payInit] == "" {
		return nil
	}
	if b, err := k.box.Open(pl[payInit], initOf(pl)); err == nil {
		return b
	}
	return nil
}

// authorization is the credential of auth forward in a payload.
func (k keptBox) authorization(pl lease.Payload) string {
	if pl[payForward] == "" {
		return ""
	}
	b, err := k.box.Open(pl[payForward], []byte(pl[payKey]))
	if err != nil {
		return ""
	}
	return string(b)
}

// keptAuthorization is the credential that a session with auth forward last used,
// where no request brings one.
func (p *Proxy) keptAuthorization(ctx context.Context, doc *server.Document, l *lease.Lease) string {
	if doc.Auth.Type != "forward" || l.Noop() {
		return ""
	}
	h, err := p.holder(ctx, lease.Filter{Token: l.Ref().Token, States: []lease.State{lease.Held, lease.Revoked}})
	if err != nil || h == nil {
		return ""
	}
	return p.kept.authorization(h.Payload)
}

var prints = maphash.MakeSeed()

// fingerprint tells whether a credential has changed, within this process.
func fingerprint(secret string) uint64 {
	if secret == "" {
		return 0
	}
	return maphash.String(prints, secret)
}

// sessionOf is the upstream session id of a payload.
func sessionOf(pl lease.Payload) upstream.SessionID { return upstream.SessionID(pl[paySession]) }
