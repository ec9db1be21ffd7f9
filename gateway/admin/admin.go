package admin

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
)

// Paths under which the two faces are served.
const (
	InternalPath = "/internal/lease/admin/"
	TenantPath   = "/brain/{tenant}/admin/leases"
)

// Authority judges the credential of a request. The name that it returns
// stands in the audit and in marks; it is never a secret. Errors are those of
// this package or wrap them; any other error is a 503.
type Authority interface {
	// Operator names the caller where it may act on all tenants: the internal
	// token, or a credential with the role operator.
	Operator(r *http.Request) (by string, err error)
	// TenantAdmin names the caller where it has the role tenantAdmin for tenant.
	TenantAdmin(r *http.Request, tenant string) (by string, err error)
}

// Options wires an API.
type Options struct {
	View      *view.View
	Authority Authority
	Log       *slog.Logger
}

// API serves both faces.
type API struct {
	opt              Options
	spec             []byte
	refused          *ratelog.Log
	internal, tenant http.Handler
}

// Longest times that one answer may take.
const (
	readTimeout = 15 * time.Second
	actTimeout  = 60 * time.Second
	maxBody     = 4 << 10 // no request of this API needs a body
)

//go:embed openapi.yaml
var openapi []byte

// New makes an API.
func New(opt Options) (*API, error) {
	if opt.View == nil || opt.Authority == nil {
		return nil, errors.New("admin: a view and an authority are needed")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(openapi, &doc); err != nil {
		return nil, fmt.Errorf("admin: openapi.yaml: %w", err)
	}
	spec, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("admin: openapi.yaml: %w", err)
	}
	a := &API{opt: opt, spec: spec, refused: ratelog.New(opt.Log)}
	a.internal, a.tenant = a.internalRoutes(), a.tenantRoutes()
	return a, nil
}

// Internal serves InternalPath.
func (a *API) Internal() http.Handler { return a.internal }

// Tenant serves TenantPath and what is below it.
func (a *API) Tenant() http.Handler { return a.tenant }

// call is one authorized request.
type call struct {
	by    string
	scope view.Scope
}

// answer is what a route gives: a value for 200, or an error.
type answer func(ctx context.Context, c call, r *http.Request) (any, error)

func (a *API) internalRoutes() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern string, timeout time.Duration, do answer) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.Handle(method+" "+InternalPath+path, a.serve(timeout, a.operator, do))
	}
	route("GET holders", readTimeout, a.holders)
	route("GET holders/{token}", readTimeout, func(ctx context.Context, c call, r *http.Request) (any, error) {
		return a.opt.View.Holder(ctx, c.scope, r.PathValue("token"))
	})
	route("POST holders/{token}/revoke", actTimeout, a.revoke)
	route("GET counters", readTimeout, a.counters)
	route("GET definition", readTimeout, func(ctx context.Context, c call, r *http.Request) (any, error) {
		q, err := query(r, "name", "tenant", "project")
		if err != nil {
			return nil, err
		}
		return a.opt.View.Definition(ctx, q.Get("tenant"), q.Get("project"), q.Get("name"))
	})
	route("GET events", readTimeout, func(ctx context.Context, c call, r *http.Request) (any, error) {
		q, err := query(r, "limit")
		if err != nil {
			return nil, err
		}
		limit, err := limit(q)
		if err != nil {
			return nil, err
		}
		events, err := a.opt.View.Events(ctx, c.scope, limit)
		return Events{Events: events}, err
	})
	route("POST pods/{pod}/revoke", actTimeout, func(ctx context.Context, c call, r *http.Request) (any, error) {
		return a.opt.View.RevokePod(ctx, r.PathValue("pod"), c.by)
	})
	route("POST sweep", actTimeout, func(ctx context.Context, c call, _ *http.Request) (any, error) {
		return a.opt.View.Sweep(ctx, c.by)
	})
	route("POST reconcile", actTimeout, func(ctx context.Context, c call, _ *http.Request) (any, error) {
		return a.opt.View.Reconcile(ctx, c.by)
	})
	route("GET openapi.json", readTimeout, a.document)
	mux.Handle(InternalPath, a.unmatched(a.operator, mux))
	return a.sameOrigin(mux)
}

func (a *API) tenantRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+TenantPath, a.serve(readTimeout, a.tenantAdmin, a.overview))
	mux.Handle("GET "+TenantPath+"/counters", a.serve(readTimeout, a.tenantAdmin, a.tenantCounters))
	mux.Handle("GET "+TenantPath+"/openapi.json", a.serve(readTimeout, a.tenantAdmin, a.document))
	mux.Handle("POST "+TenantPath+"/{token}/revoke", a.serve(actTimeout, a.tenantAdmin, a.revoke))
	mux.Handle("/", a.unmatched(a.nobody, mux))
	return a.sameOrigin(mux)
}

// Overview is what a tenant's admin sees: the Leases page as JSON.
type Overview struct {
	Tenant  string        `json:"tenant"`
	Holders []view.Holder `json:"holders"`
	Next    string        `json:"next,omitempty"`
	// Occupancy is the first page of the counters, and of the rest those that have
	// drifted.
	Occupancy []view.Counter `json:"occupancy"`
	// OccupancyNext asks …/counters for the rest; absent where Occupancy is whole.
	OccupancyNext string       `json:"occupancyNext,omitempty"`
	Events        []view.Event `json:"events"`
}

// Events is a list of events.
type Events struct {
	Events []view.Event `json:"events"`
}

func (a *API) overview(ctx context.Context, c call, r *http.Request) (any, error) {
	q, err := holderQuery(r)
	if err != nil {
		return nil, err
	}
	if q.Tenant != "" {
		return nil, &view.Error{Code: view.Invalid, Message: "tenant is in the path"}
	}
	page, err := a.opt.View.Holders(ctx, c.scope, q)
	if err != nil {
		return nil, err
	}
	counters, err := a.opt.View.Counters(ctx, c.scope, view.CounterQuery{Limit: view.MaxLimit})
	if err != nil {
		return nil, err
	}
	if counters.Next != "" {
		// Drift is what an admin looks for; it must not hide behind the page.
		drifted, err := a.opt.View.Counters(ctx, c.scope, view.CounterQuery{Drifted: true, After: counters.Next, Limit: view.MaxLimit})
		if err != nil {
			return nil, err
		}
		counters.Counters = append(counters.Counters, drifted.Counters...)
	}
	events, err := a.opt.View.Events(ctx, c.scope, 0)
	if err != nil {
		return nil, err
	}
	return Overview{Tenant: c.scope.Tenant, Holders: page.Holders, Next: page.Next, Occupancy: counters.Counters,
		OccupancyNext: counters.Next, Events: events}, nil
}

// tenantCounters is counters for a tenant's admin.
func (a *API) tenantCounters(ctx context.Context, c call, r *http.Request) (any, error) {
	if r.URL.Query().Has("tenant") {
		return nil, &view.Error{Code: view.Invalid, Message: "tenant is in the path"}
	}
	return a.counters(ctx, c, r)
}

func (a *API) holders(ctx context.Context, c call, r *http.Request) (any, error) {
	q, err := holderQuery(r)
	if err != nil {
		return nil, err
	}
	return a.opt.View.Holders(ctx, c.scope, q)
}

func (a *API) counters(ctx context.Context, c call, r *http.Request) (any, error) {
	q, err := query(r, "resource", "level", "tenant", "project", "user", "drifted", "after", "limit")
	if err != nil {
		return nil, err
	}
	n, err := limit(q)
	if err != nil {
		return nil, err
	}
	drifted := false
	if s := q.Get("drifted"); s != "" {
		if drifted, err = strconv.ParseBool(s); err != nil {
			return nil, &view.Error{Code: view.Invalid, Message: "drifted is neither true nor false"}
		}
	}
	return a.opt.View.Counters(ctx, c.scope, view.CounterQuery{Resource: q.Get("resource"), Level: q.Get("level"),
		Tenant: q.Get("tenant"), Project: q.Get("project"), User: q.Get("user"), Drifted: drifted, After: q.Get("after"), Limit: n})
}

func (a *API) revoke(ctx context.Context, c call, r *http.Request) (any, error) {
	return a.opt.View.Revoke(ctx, c.scope, r.PathValue("token"), c.by)
}

func (a *API) document(context.Context, call, *http.Request) (any, error) {
	return json.RawMessage(a.spec), nil
}

func holderQuery(r *http.Request) (view.HolderQuery, error) {
	q, err := query(r, "tenant", "project", "user", "resource", "type", "pod", "state", "after", "limit")
	if err != nil {
		return view.HolderQuery{}, err
	}
	n, err := limit(q)
	if err != nil {
		return view.HolderQuery{}, err
	}
	hq := view.HolderQuery{Tenant: q.Get("tenant"), Project: q.Get("project"), User: q.Get("user"), Resource: q.Get("resource"),
		Type: q.Get("type"), Pod: q.Get("pod"), After: q.Get("after"), Limit: n}
	if s := q.Get("state"); s != "" {
		hq.States = strings.Split(s, ",")
	}
	return hq, nil
}

// query reads the query strictly: a misspelt filter must not show everything.
func query(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &view.Error{Code: view.Invalid, Message: "the query cannot be read"}
	}
next:
	for k, v := range q {
		for _, n := range known {
			if k == n {
				if len(v) != 1 {
					return nil, &view.Error{Code: view.Invalid, Message: k + " stands more than once"}
				}
				continue next
			}
		}
		return nil, &view.Error{Code: view.Invalid, Message: "unknown parameter; this takes " + strings.Join(known, ", ")}
	}
	return q, nil
}

func limit(q url.Values) (int, error) {
	s := q.Get("limit")
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, &view.Error{Code: view.Invalid, Message: fmt.Sprintf("limit is not between 1 and %d", view.MaxLimit)}
	}
	return n, nil
}

// authorize judges a request before anything else looks at it.
type authorize func(r *http.Request) (call, error)

func (a *API) operator(r *http.Request) (call, error) {
	by, err := a.opt.Authority.Operator(r)
	return call{by: view.ByOperator(named(by, r))}, err
}

func (a *API) tenantAdmin(r *http.Request) (call, error) {
	tenant := r.PathValue("tenant")
	if !principal.ValidName(tenant) {
		return call{}, ErrForbidden // as for any tenant that is not the caller's
	}
	by, err := a.opt.Authority.TenantAdmin(r, tenant)
	if errors.Is(err, ErrNoCredential) {
		err = errNoKey
	}
	return call{by: view.ByTenantAdmin(by), scope: view.Scope{Tenant: tenant}}, err
}

func (a *API) nobody(*http.Request) (call, error) { return call{}, nil }

func (a *API) serve(timeout time.Duration, may authorize, do answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := may(r)
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		v, err := do(ctx, c, r)
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		write(w, http.StatusOK, v)
	})
}

// sameOrigin refuses what a page of another origin lets a browser send: a
// browser may add a kept Basic credential to it.
func (a *API) sameOrigin(mux *http.ServeMux) http.Handler {
	p := http.NewCrossOriginProtection()
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, r.Pattern = mux.Handler(r) // no route has been looked for yet
		a.refuse(w, r, fmt.Errorf("%w: the request comes from a page of another origin", ErrForbidden))
	}))
	return p.Handler(mux)
}

// unmatched answers a path or method that no route has, but only to a caller
// that may know which there are.
func (a *API) unmatched(may authorize, mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := may(r); err != nil {
			a.refuse(w, r, err)
			return
		}
		for _, m := range []string{http.MethodGet, http.MethodPost} {
			other := r.Clone(r.Context())
			other.Method = m
			if _, pattern := mux.Handler(other); strings.HasPrefix(pattern, m+" ") && m != r.Method {
				w.Header().Set("Allow", m)
				a.refuse(w, r, &view.Error{Code: view.Method, Message: "this takes " + m})
				return
			}
		}
		a.refuse(w, r, &view.Error{Code: view.NotFound, Message: "there is nothing here; see openapi.json"})
	})
}

// Failure is the form of every refusal.
type Failure struct {
	Error FailureBody `json:"error"`
}

// FailureBody says what is wrong: a code for programs, a sentence for people.
type FailureBody struct {
	Code    view.Code `json:"code"`
	Message string    `json:"message"`
}

// statuses are the HTTP statuses of the codes; any other failure is a 503.
var statuses = map[view.Code]int{
	view.Unauthenticated:   http.StatusUnauthorized,
	view.Forbidden:         http.StatusForbidden,
	view.NotFound:          http.StatusNotFound,
	view.Method:            http.StatusMethodNotAllowed,
	view.Invalid:           http.StatusBadRequest,
	view.InvalidDefinition: http.StatusUnprocessableEntity,
}

func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*view.Error](err)
	switch {
	case errors.Is(err, ErrNoCredential), errors.Is(err, errNoKey), errors.Is(err, ErrWrongCredential):
		a.noteRefused(r, err)
		w.Header().Set("WWW-Authenticate", `Bearer realm="mcp-lease-gateway admin"`)
		e = &view.Error{Code: view.Unauthenticated, Message: err.Error()}
	case errors.Is(err, ErrForbidden), errors.Is(err, ErrNotConfigured):
		a.noteRefused(r, err)
		e = &view.Error{Code: view.Forbidden, Message: err.Error()}
	case !ok:
		e = view.Unreachable(err)
	}
	status, message := cmp.Or(statuses[e.Code], http.StatusServiceUnavailable), e.Message
	if e.Err != nil {
		// The cause can name hosts and users of the store: for the log only.
		a.opt.Log.Error("admin request failed", "path", r.Pattern, "code", e.Code, "error", e.Err)
		if e.Code == view.Unavailable {
			message += "; the gateway's log says why"
		}
	}
	write(w, status, Failure{Error: FailureBody{Code: e.Code, Message: message}})
}

// noteRefused logs a refusal by its route: a path could hold a token's beginning,
// and is whatever somebody without a credential wrote.
func (a *API) noteRefused(r *http.Request, err error) {
	a.refused.Write(r.Context(), slog.LevelWarn, "admin request refused",
		slog.String("path", r.Pattern), slog.String("remote", r.RemoteAddr), slog.String("why", err.Error()))
}

func write(w http.ResponseWriter, status int, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// A client that is gone is no error of this API.
	_ = json.NewEncoder(w).Encode(v)
}
