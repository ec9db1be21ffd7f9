package session

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/server"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/session/refusal"
	"github.com/vancetope/mcp-lease-gateway/session/sessionid"
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// request is one HTTP request of a client: who asks, for which server, and the
// messages that it brings.
type request struct {
	p         *Proxy
	w         http.ResponseWriter
	r         *http.Request
	caller    principal.Caller
	owner     sessionid.Owner
	share     quota.Key // has the places of limits.perPod
	server    string
	doc       *server.Document
	forwarded bool

	body  *wire.Buffer   // POST
	env   *wire.Envelope // POST
	waits bool           // a message of it wants a response
	uses  bool           // a message of it is a tools/call

	counted bool // its LEASE_LOST is in the engine's figures
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, c principal.Caller, name string, forwarded bool) {
	start := time.Now()
	q := &request{p: p, w: w, r: r, caller: c, owner: sessionid.OwnerOf(c.Principal), share: quota.Of(c.Tenant, c.Project, c.User), server: name, forwarded: forwarded}
	label, method := "other", "other"
	defer func() { p.opt.Observer.Served(label, method, time.Since(start)) }()

	doc, f := p.document(r.Context(), c, name)
	if doc != nil {
		q.doc, label = doc, labelOf(doc)
	}
	switch r.Method {
	case http.MethodPost:
		// A refusal in JSON-RPC form needs the id of the request.
		if f == nil || f.Form == refusal.AsError {
			method, f = q.post(f)
		}
	case http.MethodGet, http.MethodDelete:
		if f == nil {
			method = strings.ToLower(r.Method)
			f = q.bodiless()
		}
	default:
		f = refusal.WrongVerb("use POST, GET or DELETE", "GET, POST, DELETE")
	}
	q.refuse(f)
	if q.body != nil {
		q.body.Free()
	}
}

// labelOf is what metrics may call a server.
func labelOf(d *server.Document) string {
	if d.Layer.Trusted() {
		return d.Name
	}
	return "other"
}

// methods are what metrics call by name.
var methods = map[string]bool{
	"initialize": true, "ping": true, "tools/list": true, "tools/call": true, "prompts/list": true, "prompts/get": true,
	"resources/list": true, "resources/read": true, "resources/templates/list": true, "resources/subscribe": true,
	"resources/unsubscribe": true, "logging/setLevel": true, "completion/complete": true, "server/discover": true,
	"notifications/initialized": true, "notifications/cancelled": true,
}

func methodLabel(e *wire.Envelope) string {
	switch {
	case e == nil:
		return "other"
	case e.Batch:
		return "batch"
	case e.One().Response():
		return "response"
	case methods[e.One().Method]:
		return e.One().Method
	}
	return "other"
}

// document resolves the server's document.
func (p *Proxy) document(ctx context.Context, c principal.Caller, name string) (*server.Document, *refusal.Refusal) {
	d, err := p.opt.Servers.Resolve(ctx, c.Tenant, c.Project, name)
	if err == nil {
		return d, nil
	}
	if errors.Is(err, server.ErrUnknown) || errors.Is(err, server.ErrDisabled) {
		return nil, refusal.UnknownServer()
	}
	p.opt.Log.WarnContext(ctx, "server document refused", "tenant", c.Tenant, "project", c.Project, "server", name, "error", err)
	var wrong *server.InvalidError
	if !errors.As(err, &wrong) {
		return nil, refusal.UpstreamDown(name, "its document could not be read; try again in about 5 s")
	}
	f := refusal.UpstreamDown(name, wrong.Client())
	f.Data = refusal.Data{RefusalData: lease.RefusalData{Code: refusal.CodeUpstream, Permanent: true}}
	return nil, f
}

// refuse answers with a refusal; nil means that the request has its answer.
func (q *request) refuse(f *refusal.Refusal) {
	if f == nil || f.Form == refusal.Silent {
		return
	}
	var body []byte
	if q.env != nil {
		body = q.body.B
	}
	f.Write(q.w, body, q.env)
}

// post reads a body and takes it to its session. unusable is set where the
// server's document is. It returns the method for metrics.
func (q *request) post(unusable *refusal.Refusal) (method string, f *refusal.Refusal) {
	if f := q.read(); f != nil {
		return "other", f
	}
	method = methodLabel(q.env)
	if unusable != nil {
		return method, unusable
	}
	if version, ok := q.modern(); ok {
		return method, q.sessionless(version)
	}
	if f := q.revision(); f != nil {
		return method, f
	}
	if q.env.Batch {
		for i := range q.env.Messages {
			if q.env.Messages[i].Method == "initialize" {
				return method, refusal.Bad(refusal.RPCInvalid, "initialize cannot be part of a batch")
			}
		}
	} else if m := q.env.One(); m.Method == "initialize" {
		if !m.Request() {
			// Servers exist that open a session all the same: one that no lease holds
			// and nobody ends.
			return method, refusal.Bad(refusal.RPCInvalid, "initialize is a request: it needs an id")
		}
		return method, q.open()
	}
	return method, q.inSession((*visit).call)
}

// read reads the body, whose silence the server bounds, and its envelope.
func (q *request) read() *refusal.Refusal {
	if !isJSON(q.r.Header["Content-Type"]) {
		return refusal.Status(http.StatusUnsupportedMediaType, "the body must be application/json in UTF-8, and one Content-Type must say so")
	}
	if len(q.r.Header["Content-Encoding"]) > 0 {
		return refusal.Status(http.StatusUnsupportedMediaType, "the body must not be compressed")
	}
	limit := q.p.opt.Limits().RequestBody
	b, err := wire.ReadBody(q.r.Body, q.r.ContentLength, limit)
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		return refusal.BodyTooLarge(limit)
	case errors.Is(err, quota.ErrFull):
		return refusal.BodiesFull()
	case err != nil && q.r.Context().Err() != nil:
		return &refusal.Refusal{Form: refusal.Silent} // the client is gone
	case err != nil:
		return refusal.Bad(refusal.RPCParse, "the body ended early or did not arrive in time")
	}
	env, err := wire.Scan(b.B)
	if err != nil {
		b.Free()
		return refusal.Scan(err)
	}
	q.body, q.env = b, env
	for i := range env.Messages {
		m := &env.Messages[i]
		q.waits = q.waits || m.Request()
		// Also without an id: servers exist that do what such a notification says.
		q.uses = q.uses || m.Method == "tools/call"
	}
	return nil
}

// isJSON reports whether a request says that it carries JSON, once. Servers exist
// that read the body in the charset that stands here, and in another one than
// UTF-8 (UTF-7, say) they would find other keys in it than the gateway has.
func isJSON(contentType []string) bool {
	const want = "application/json"
	if len(contentType) != 1 {
		return false
	}
	if contentType[0] == want { // what clients send
		return true
	}
	media, params, err := mime.ParseMediaType(contentType[0])
	if err != nil || media != want {
		return false
	}
	charset, says := params["charset"]
	return !says || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8")
}

// bodiless serves GET and DELETE.
func (q *request) bodiless() *refusal.Refusal {
	if q.r.Header.Get(upstream.HeaderProtocol) == modernRevision {
		return refusal.WrongVerb("revision "+modernRevision+" has no sessions: use POST", "POST")
	}
	if f := q.revision(); f != nil {
		return f
	}
	if q.r.Method == http.MethodGet {
		return q.inSession((*visit).listen)
	}
	return q.inSession((*visit).delete)
}

// namedLease is the lease that the server's document asks for.
func (q *request) namedLease() lease.Named {
	n := lease.Named{Name: q.doc.Lease, Inline: q.doc.Inline}
	if q.doc.LeaseError != nil {
		n.Err = q.doc.LeaseError
	}
	return n
}

// leaseRequest is what every lease of this request has in common.
func (q *request) leaseRequest() lease.Request {
	return lease.Request{Type: HandlerType, Tenant: q.caller.Tenant, Project: q.caller.Project, User: q.caller.User, PodBound: q.doc.PodBound()}
}

// authorization is the caller's credential where it may go upstream.
func (q *request) authorization() string { return q.caller.Authorization.Reveal() }

// stays reports whether the caller stays on its session's id after a loss.
func (q *request) stays() bool { return q.caller.OnLost != principal.NotFound }

// there reports whether the client still waits.
func (q *request) there() bool { return q.r.Context().Err() == nil }
