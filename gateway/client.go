package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
)

// serveClient is the way of a client's request, from top to bottom: where it
// comes from, where it wants to go, and who asks.
func (s *Server) serveClient(w *exchange, r *http.Request) {
	rt := parseRoute(r.URL)
	w.route = rt
	if f := s.judgeSource(w, r, rt); f != nil {
		s.refuseStranger(w, r, *f)
		return
	}
	if preflight(r) && rt.kind != kindInsights && rt.kind != kindTenant {
		permit(w, s.opt.Live.Load().Identity.UserHeaders())
		return
	}
	if f := judgeRoute(w, r, rt); f != nil {
		s.refuseStranger(w, r, *f)
		return
	}
	timed(w, r, s.bounds.silence, s.bounds.bodyInAll(rt.kind))
	switch rt.kind {
	case kindMCP, kindTex:
		s.serveCaller(w, r, rt)
	case kindMetadata:
		s.serveStranger(w, r, func() { s.metadata(w, rt) })
	case kindTenant:
		s.serveAdmin(w, r, rt, func() { s.hand(s.opt.Tenant, w, r, rt) })
	case kindInsights:
		s.serveAdmin(w, r, rt, func() { s.hand(s.opt.Page, w, r, rt) })
	}
}

// judgeSource judges where a request comes from; nil lets it in.
func (s *Server) judgeSource(w *exchange, r *http.Request, rt route) *refusal {
	if s.loopback && !loopback.Host(r.Host) {
		// A page whose name was made to resolve to this machine has that name as its
		// Host; whoever means this machine says so.
		return &refusal{status: http.StatusForbidden, code: "HOST_NOT_ALLOWED",
			message: "this gateway listens on loopback, so it answers to localhost and loopback addresses only, not to the Host of this request"}
	}
	if mark := r.Header.Get(headers.Hop); mark != "" && s.opt.OwnHop != nil && s.opt.OwnHop(mark) {
		return &refusal{status: http.StatusLoopDetected, code: "LOOP",
			message: "this request comes from the gateway itself: a server document names an address that leads back to it"}
	}
	origin := r.Header.Get("Origin")
	if origin == "" || rt.kind == kindInsights || rt.kind == kindTenant {
		return nil
	}
	if !s.allowedOrigin(origin) {
		return &refusal{status: http.StatusForbidden, code: "ORIGIN_NOT_ALLOWED",
			message: "pages of this origin may not call the gateway; the operator can list it under origins in gateway.yaml"}
	}
	shareWith(w.Header(), origin)
	return nil
}

// judgeRoute judges where a request wants to go; nil lets it in.
func judgeRoute(w *exchange, r *http.Request, rt route) *refusal {
	if rt.kind == kindNone {
		return nothing()
	}
	if !rt.kind.takes(r.Method) {
		return wrongMethod(w, rt.kind)
	}
	return nil
}

// serveCaller serves a request that belongs to a caller. Finding out who it is
// takes no place of anybody's; from there on what serves the caller counts.
func (s *Server) serveCaller(w *exchange, r *http.Request, rt route) {
	if rt.kind == kindMCP && r.Method == http.MethodGet {
		ctx, stop := s.whileAdmitted(r, rt) // before the first look, so that no change is missed
		defer stop()
		r = r.WithContext(ctx)
	}
	auth := s.opt.Live.Load().Identity
	c, err := admit(auth, w, r, rt)
	if err != nil {
		s.refuseCredential(w, r, rt, err)
		return
	}
	if w.issuer == identity.Anonymous && fromAnotherSite(r) {
		// Nobody has shown a credential, so a page that has nothing to do with the
		// gateway would act as whoever sits before the browser.
		s.refuseStranger(w, r, refusal{status: http.StatusForbidden, code: "CROSS_SITE",
			message: "a browser sends this for a page of another site, and callers without a credential are programs and pages of this machine"})
		return
	}
	if rt.kind == kindMCP && r.Method == http.MethodGet {
		ctx, stop := whileValid(r.Context(), c)
		defer stop()
		r = r.WithContext(ctx)
	}
	// What named the user was for the gateway; it goes no further.
	for _, name := range auth.UserHeaders() {
		r.Header.Del(name)
	}
	if rt.kind == kindMCP {
		// The body is in memory while it is served; that of a TeX request goes to disk.
		defer s.bodies.charge(r, quota.Of(c.Tenant, c.Project, c.User))()
		s.opt.MCP.Serve(w, r, c, rt.name)
		return
	}
	s.opt.Tex.Serve(w, r, c, rt.name, rt.rest)
}

// whileAdmitted returns a context for a stream that ends when identity has changed
// and the credential in r opens the route no more: a client listens for hours, and a
// key that is withdrawn has to count for it, too.
func (s *Server) whileAdmitted(r *http.Request, rt route) (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = context.WithCancel(r.Context())
	asked := r.Clone(ctx) // as it came: what names the user does not stay in r
	var watch func()
	watch = func() {
		leave := context.AfterFunc(s.opt.Live.replaced(), func() {
			watch() // first, so that no change is missed
			cred, err := s.opt.Live.Load().Identity.Authenticate(asked)
			if err == nil {
				_, err = cred.Caller(rt.tenant, rt.project, rt.user)
			}
			if err != nil {
				stop()
			}
		})
		context.AfterFunc(ctx, func() { leave() })
	}
	watch()
	return ctx, stop
}

var errExpired = errors.New("gateway: the credential that opened the stream has expired")

// whileValid returns a context for a stream that ends when c's credential does.
func whileValid(ctx context.Context, c principal.Caller) (context.Context, context.CancelFunc) {
	if c.Expires.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, c.Expires, errExpired)
}

func (s *Server) hand(h http.Handler, w http.ResponseWriter, r *http.Request, rt route) {
	if h == nil {
		refuse(w, rt.kind, *nothing())
		return
	}
	h.ServeHTTP(w, r)
}

// admit finds out who asks and whether the credential opens the route.
func admit(auth *identity.Authenticator, w *exchange, r *http.Request, rt route) (principal.Caller, error) {
	cred, err := auth.Authenticate(r)
	if err != nil {
		return principal.Caller{}, err
	}
	w.issuer = cred.Issuer()
	c, err := cred.Caller(rt.tenant, rt.project, rt.user)
	if err != nil {
		return principal.Caller{}, err
	}
	w.tenant, w.user = c.Tenant, c.User
	return c, nil
}

func (s *Server) refuseCredential(w *exchange, r *http.Request, rt route, err error) {
	var e *identity.Error
	if !errors.As(err, &e) {
		e = &identity.Error{Status: http.StatusUnauthorized, Why: "the credential could not be judged", Err: err}
	}
	s.badCredentials.Write(r.Context(), slog.LevelInfo, "a caller was turned away",
		slog.String("request", w.id), slog.Int("status", e.Status), slog.String("why", e.Error()))
	code := "FORBIDDEN"
	if e.Status == http.StatusUnauthorized {
		code = "UNAUTHENTICATED"
	}
	w.Header().Set("WWW-Authenticate", s.challenge(rt, e.Code))
	s.refuseStranger(w, r, refusal{status: e.Status, code: code, message: e.Why})
}
