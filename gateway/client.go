package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
)

// serveClient is the way of a client's request, from top to bottom: where it
// comes from, where it wants to go, who asks, and whether there is room.
func (s *Server) serveClient(w *exchange, r *http.Request) {
	rt := parseRoute(r.URL)
	w.route = rt
	if s.loopback && !loopback.Host(r.Host) {
		// A page whose name was made to resolve to this machine has that name as its
		// Host; whoever means this machine says so.
		refuse(w, rt.kind, refusal{status: http.StatusForbidden, code: "HOST_NOT_ALLOWED",
			message: "this gateway listens on loopback, so it answers to localhost and loopback addresses only, not to the Host of this request"})
		return
	}
	if origin := r.Header.Get("Origin"); origin != "" && rt.kind != kindInsights && rt.kind != kindTenant {
		if !s.allowedOrigin(origin) {
			refuse(w, rt.kind, refusal{status: http.StatusForbidden, code: "ORIGIN_NOT_ALLOWED",
				message: "pages of this origin may not call the gateway; the operator can list it under origins in gateway.yaml"})
			return
		}
		shareWith(w.Header(), origin)
		if preflight(r) {
			permit(w)
			return
		}
	}
	if rt.kind == kindNone {
		refuseNothing(w, rt.kind)
		return
	}
	if !rt.kind.takes(r.Method) {
		refuseMethod(w, rt.kind)
		return
	}
	patient(w, r, bodySilence)
	if rt.kind == kindMCP || rt.kind == kindTex {
		s.serveCaller(w, r, rt)
		return
	}
	if !s.enter(w, rt.kind) {
		return
	}
	defer s.busy.give()
	switch rt.kind {
	case kindMetadata:
		s.metadata(w, rt)
	case kindTenant:
		s.hand(s.opt.Tenant, w, r, rt)
	case kindInsights:
		s.hand(s.opt.Page, w, r, rt)
	}
}

// enter takes a slot for a request of which no caller is known.
func (s *Server) enter(w *exchange, k kind) bool {
	if s.busy.take(s.opt.Live.Limits().PerPod) {
		return true
	}
	refuse(w, k, refusal{status: http.StatusServiceUnavailable, code: "LIMIT_REACHED", retryAfter: 5,
		message: "the gateway serves as many requests as limits.perPod allows; try again in a few seconds"})
	return false
}

// serveCaller serves a request that belongs to a caller: once that is known, it
// counts for them, so that slow bodies of one keep nobody else out.
func (s *Server) serveCaller(w *exchange, r *http.Request, rt route) {
	if rt.kind == kindMCP && r.Method == http.MethodGet {
		ctx, stop := s.whileAdmitted(r, rt)
		defer stop()
		r = r.WithContext(ctx)
	}
	c, ok := s.admitted(w, r, rt)
	if !ok {
		return
	}
	who := quota.Of(c.Tenant, c.Project, c.User)
	if !s.held.Take(who, 1) {
		refuse(w, rt.kind, refusal{status: http.StatusServiceUnavailable, code: "LIMIT_REACHED", retryAfter: 5,
			message: "your share of the requests that limits.perPod allows is in use; try again in a few seconds"})
		return
	}
	defer s.held.Give(who, 1)
	if rt.kind == kindMCP {
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

// admitted is admit within a slot.
func (s *Server) admitted(w *exchange, r *http.Request, rt route) (principal.Caller, bool) {
	if !s.enter(w, rt.kind) {
		return principal.Caller{}, false
	}
	defer s.busy.give()
	return s.admit(w, r, rt)
}

func (s *Server) hand(h http.Handler, w http.ResponseWriter, r *http.Request, rt route) {
	if h == nil {
		refuseNothing(w, rt.kind)
		return
	}
	h.ServeHTTP(w, r)
}

// admit finds out who asks and whether the credential opens the route.
func (s *Server) admit(w *exchange, r *http.Request, rt route) (principal.Caller, bool) {
	auth := s.opt.Live.Load().Identity
	cred, err := auth.Authenticate(r)
	var c principal.Caller
	if err == nil {
		w.issuer = cred.Issuer()
		c, err = cred.Caller(rt.tenant, rt.project, rt.user)
	}
	if err != nil {
		s.turnAway(w, r, rt, err)
		return principal.Caller{}, false
	}
	w.user = c.User
	// What named the user was for the gateway; it goes no further.
	for _, name := range auth.UserHeaders() {
		r.Header.Del(name)
	}
	return c, true
}

func (s *Server) turnAway(w *exchange, r *http.Request, rt route, err error) {
	var e *identity.Error
	if !errors.As(err, &e) {
		e = &identity.Error{Status: http.StatusUnauthorized, Why: "the credential could not be judged", Err: err}
	}
	s.turned.Write(r.Context(), slog.LevelInfo, "a caller was turned away",
		slog.String("request", w.id), slog.Int("status", e.Status), slog.String("why", e.Error()))
	code := "FORBIDDEN"
	if e.Status == http.StatusUnauthorized {
		code = "UNAUTHENTICATED"
	}
	w.Header().Set("WWW-Authenticate", s.challenge(rt, e.Code))
	refuse(w, rt.kind, refusal{status: e.Status, code: code, message: e.Why})
}

// room is how many requests of callers there may be at once. Those to MCP servers
// and to TeX services are counted where they are served as well, each under
// limits.perPod, and refused there in the form that their clients understand; here
// is the bound on those that are still being read or refused.
func (s *Server) room() int64 { return 2 * int64(s.opt.Live.Limits().PerPod) }
