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
	"github.com/vancetope/mcp-lease-gateway/session/upstream"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// turn is one request of a client, on its way through.
type turn struct {
	p         *Proxy
	w         http.ResponseWriter
	r         *http.Request
	c         principal.Caller
	owner     owner
	who       quota.Key // has the share of limits.perPod
	server    string
	doc       *server.Document
	forwarded bool

	body *wire.Buffer   // POST
	env  *wire.Envelope // POST
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, c principal.Caller, name string, forwarded bool) {
	start := time.Now()
	t := &turn{p: p, w: w, r: r, c: c, owner: ownerOf(c.Principal), who: quota.Of(c.Tenant, c.Project, c.User), server: name, forwarded: forwarded}
	label, method := "other", "other"
	defer func() { p.opt.Observer.Served(label, method, time.Since(start)) }()

	doc, f := p.document(r.Context(), c, name)
	if doc != nil {
		t.doc, label = doc, labelOf(doc)
	}
	switch r.Method {
	case http.MethodPost:
		if f == nil || f.status == http.StatusOK {
			// A refusal in JSON-RPC form needs the id of the request.
			method = t.post(f)
			return
		}
	case http.MethodGet, http.MethodDelete:
		if f == nil {
			method = strings.ToLower(r.Method)
			t.bodiless()
			return
		}
	default:
		f = &refusal{status: http.StatusMethodNotAllowed, code: 405, message: "use POST, GET or DELETE", allow: "GET, POST, DELETE"}
	}
	t.refuse(f)
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
func (p *Proxy) document(ctx context.Context, c principal.Caller, name string) (*server.Document, *refusal) {
	d, err := p.opt.Servers.Resolve(ctx, c.Tenant, c.Project, name)
	if err == nil {
		return d, nil
	}
	if errors.Is(err, server.ErrUnknown) || errors.Is(err, server.ErrDisabled) {
		return nil, unknownServer()
	}
	p.opt.Log.WarnContext(ctx, "server document refused", "tenant", c.Tenant, "project", c.Project, "server", name, "error", err)
	var wrong *server.InvalidError
	if !errors.As(err, &wrong) {
		return nil, upstreamDown(name, "its document could not be read; try again in about 5 s")
	}
	f := upstreamDown(name, wrong.Client())
	f.data = data{Code: codeUpstream, Permanent: true}
	return nil, f
}

// refuse answers with a refusal: as a JSON-RPC error where a request waits for
// one, with its HTTP status otherwise.
func (t *turn) refuse(f *refusal) {
	var body []byte
	waits := false
	if t.env != nil {
		body = t.body.B
		for i := range t.env.Messages {
			waits = waits || t.env.Messages[i].Request()
		}
	}
	if !waits && f.status == http.StatusOK {
		f.status = f.code
		if f.code == 410 {
			f.status = http.StatusNotFound
		}
	}
	f.write(t.w, body, t.env)
}

// post reads a body and takes it to its session. f is set where the server's
// document is unusable. It returns the method for metrics.
func (t *turn) post(f *refusal) string {
	if f := t.read(); f != nil {
		if f.status != 0 {
			t.refuse(f)
		}
		return "other"
	}
	defer t.body.Free()
	method := methodLabel(t.env)
	if f != nil {
		t.refuse(f)
		return method
	}
	if version, ok := t.modern(); ok {
		t.serveModern(version)
		return method
	}
	if f := t.revision(); f != nil {
		t.refuse(f)
		return method
	}
	if t.env.Batch {
		for i := range t.env.Messages {
			if t.env.Messages[i].Method == "initialize" {
				t.refuse(badRequest(rpcInvalid, "initialize cannot be part of a batch"))
				return method
			}
		}
	} else if m := t.env.One(); m.Method == "initialize" {
		if !m.Request() {
			// Servers exist that open a session all the same: one that no lease holds
			// and nobody ends.
			t.refuse(badRequest(rpcInvalid, "initialize is a request: it needs an id"))
			return method
		}
		t.open()
		return method
	}
	t.inSession((*turn).message)
	return method
}

// read reads the body, whose silence the server bounds, and its envelope. A refusal with status 0 means that the
// client is gone.
func (t *turn) read() *refusal {
	if !isJSON(t.r.Header["Content-Type"]) {
		return &refusal{status: http.StatusUnsupportedMediaType, code: 415, message: "the body must be application/json in UTF-8, and one Content-Type must say so"}
	}
	if len(t.r.Header["Content-Encoding"]) > 0 {
		return &refusal{status: http.StatusUnsupportedMediaType, code: 415, message: "the body must not be compressed"}
	}
	limit := t.p.opt.Limits().RequestBody
	b, err := wire.ReadBody(t.r.Body, t.r.ContentLength, limit)
	if err != nil {
		if errors.Is(err, wire.ErrTooLarge) {
			return &refusal{status: http.StatusRequestEntityTooLarge, code: 413, data: data{Code: codeLimit, Limit: "limits.requestBody"},
				message: "the body is over the gateway's limit limits.requestBody of " + size(limit)}
		}
		if t.r.Context().Err() != nil {
			return &refusal{}
		}
		return badRequest(rpcParse, "the body ended early or did not arrive in time")
	}
	env, err := wire.Scan(b.B)
	if err != nil {
		b.Free()
		return scanRefusal(err)
	}
	t.body, t.env = b, env
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
func (t *turn) bodiless() {
	if t.r.Header.Get(upstream.HeaderProtocol) == modernRevision {
		t.refuse(&refusal{status: http.StatusMethodNotAllowed, code: 405, message: "revision " + modernRevision + " has no sessions: use POST", allow: "POST"})
		return
	}
	if f := t.revision(); f != nil {
		t.refuse(f)
		return
	}
	if t.r.Method == http.MethodGet {
		t.inSession((*turn).listen)
		return
	}
	t.inSession((*turn).end)
}
