package texproxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config/settings"
	"github.com/vancetope/mcp-lease-gateway/config/tex"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/strictyaml"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// request is one client request on its way.
type request struct {
	p     *Proxy
	w     http.ResponseWriter
	r     *http.Request
	owner owner
	base  string   // the path under which the client sees the service
	s     *service // nil where there is no such service
	m     match
}

// route finds what the request means to its service.
func (q *request) route(rest string) error {
	// A path may have had more in it than tenant, project and service.
	if base, ok := strings.CutSuffix(q.r.URL.EscapedPath(), rest); ok && base != "" {
		q.base = base
	}
	var ok bool
	if q.m, ok = q.s.find(q.r.Method, rest); ok {
		return nil
	}
	if len(q.m.allow) > 0 {
		return &methodError{q.m.allow}
	}
	return errNotFound
}

func (q *request) kind() kind {
	if q.m.route == nil {
		return kindOther
	}
	return q.m.route.kind
}

// serve takes the request to an answer of the service, or to an error that says
// why there is none.
func (q *request) serve() (*answer, error) {
	switch {
	case q.kind() == kindSubmit && q.s.Mode == tex.Job:
		return q.submit()
	case q.kind() == kindSubmit:
		return q.compile()
	case q.s.Mode == tex.Job && q.m.job() != "":
		return q.ofJob()
	}
	return q.plain()
}

// plain passes a request that needs no lease: results and logs of sync
// services, and what is passed through unmatched.
func (q *request) plain() (*answer, error) {
	if err := q.mayUseName(); err != nil {
		return nil, err
	}
	body, err := q.upload()
	if err != nil {
		return nil, err
	}
	defer body.drop()
	a, err := q.pass(body)
	if err != nil {
		return nil, err
	}
	return q.bound(a)
}

// pass sends the request up as it is.
func (q *request) pass(body *upload) (*answer, error) {
	a, _, err := q.p.exchange(q.r.Context(), q.s, q.call(body))
	return a, err
}

// upload takes the request's body whole, so that a slow client holds no slot.
// It is the caller's to drop.
func (q *request) upload() (*upload, error) {
	return q.p.spool.take(q.w, q.r, q.owner, q.s.MaxUpload)
}

// call is the client's request as it goes upstream.
func (q *request) call(body *upload) call {
	return call{
		method: q.r.Method, base: q.s.baseOf(q.m), path: q.m.path, query: q.r.URL.RawQuery, header: up(q.r.Header),
		body: body, begins: q.kind() == kindSubmit,
	}
}

// up are the headers of a client that go upstream.
func up(h http.Header) http.Header {
	out := make(http.Header, len(h))
	headers.TeX.Up(out, h)
	return out
}

func (q *request) log() *slog.Logger {
	return q.p.opt.Log.With("service", q.s.Name, "tenant", q.owner.tenant, "project", q.owner.project)
}

// leased is a lease with the name of its resource; a NOOP lease has none.
type leased struct {
	*lease.Lease
	resource string
}

// acquire asks for a slot for the caller, with what else ask says.
func (q *request) acquire(ctx context.Context, ask lease.Request) (leased, error) {
	ask.Type, ask.HolderRef = HandlerType, q.s.Name
	ask.Tenant, ask.Project, ask.User = q.owner.tenant, q.owner.project, q.owner.user
	ask.Payload[payloadIssuer] = q.owner.issuer
	d, err := q.p.leases.Resolve(ctx, q.lease(ctx), ask)
	if err != nil {
		return leased{}, err
	}
	if d.Noop() {
		ask.Definition = d
		l, err := q.p.leases.Acquire(ctx, ask) // counts it
		return leased{Lease: l}, err
	}
	ask.Definition = d
	q.p.demand.begin(d.Resource)
	l, err := q.p.leases.Acquire(ctx, ask)
	q.p.demand.end(d.Resource, err)
	return leased{l, d.Resource}, err
}

// lease says which lease the caller's compiles need: the service's, where the
// operator has said one, and otherwise that of the setting tex.lease. A service's
// lease is taken off by a setting only where it is optional.
func (q *request) lease(ctx context.Context) lease.Named {
	if q.s.Lease != "" && !q.s.Optional {
		return lease.Named{Name: q.s.Lease}
	}
	set, err := q.p.opt.Settings.Setting(ctx, q.owner.tenant, q.owner.project, settings.TexLease)
	if err != nil {
		return lease.Named{Name: q.s.Lease, Err: unreadable(err)}
	}
	if q.s.Lease != "" && set != "" && set != tex.NoLease {
		set = q.s.Lease
	}
	return lease.Named{Name: set}
}

// unreadable is the refusal where it is not known which lease a compile needs.
func unreadable(err error) *lease.UnavailableError {
	if _, wrong := errors.AsType[strictyaml.Problems](err); wrong {
		return &lease.UnavailableError{Why: "the settings of a layer are not valid, so it is unknown which lease a compile needs", Permanent: true, Err: err}
	}
	return &lease.UnavailableError{Why: "the setting " + settings.TexLease + " could not be read", Err: err}
}
