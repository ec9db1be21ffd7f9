package gateway

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/quota"
)

// maxStrangers is how many requests without a known credential are answered at
// once. They have places of their own: nobody gets one of limits.perPod before
// it is known who asks, and none is needed to find that out.
const maxStrangers = 1024

// maxAdmins is how many requests of tenants' admins to their API and page are
// answered at once, live updates of the page among them.
const maxAdmins = 1024

func newStrangers() *quota.Pool { return quota.New(func() int64 { return maxStrangers }) }
func newAdmins() *quota.Pool    { return quota.New(func() int64 { return maxAdmins }) }

// addressOf is whom a stranger's place counts for: its address, or of IPv6 the
// network, of which one machine can have all addresses.
func addressOf(r *http.Request) quota.Key {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return quota.Of(r.RemoteAddr, "", "")
	}
	addr := ap.Addr().Unmap()
	if addr.Is6() {
		if network, err := addr.WithZone("").Prefix(64); err == nil {
			return quota.Of(network.String(), "", "")
		}
	}
	return quota.Of(addr.String(), "", "")
}

// serveStranger answers a request of which no caller is known, within a place and
// a time. An event stream has a bound of its own once it has begun: its handler
// has let somebody in.
func (s *Server) serveStranger(w *exchange, r *http.Request, answer func()) {
	s.serveWithin(s.strangers, addressOf(r), w, r, answer)
}

// serveAdmin answers a request to a tenant's admin API or page, whose handlers judge
// who asks: an admin gets a place among those of its kind, and strangers take it
// from nobody.
func (s *Server) serveAdmin(w *exchange, r *http.Request, rt route, answer func()) {
	name := s.adminOf(r, rt)
	if name == "" {
		s.serveStranger(w, r, answer)
		return
	}
	w.issuer, w.tenant = name, rt.tenant
	s.serveWithin(s.admins, quota.Of(rt.tenant, "", name), w, r, answer)
}

// adminOf names the admin of the route's tenant who asks; "" is nobody.
func (s *Server) adminOf(r *http.Request, rt route) string {
	if rt.kind == kindInsights {
		if s.opt.PageAdmin == nil {
			return ""
		}
		return s.opt.PageAdmin(r, rt.tenant)
	}
	c, err := s.opt.Live.Load().Identity.Authenticate(r)
	if err != nil || !c.TenantAdmin(rt.tenant) {
		return ""
	}
	return c.Who()
}

func (s *Server) serveWithin(places *quota.Pool, who quota.Key, w *exchange, r *http.Request, answer func()) {
	if !places.Take(who, 1) {
		// A head without a body: nothing of it waits for the client to read.
		h := w.Header()
		h.Set("Retry-After", "5")
		h.Set("Content-Length", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer places.Give(who, 1)
	inTime(w, s.bounds.stranger, func() {
		answer()
		if r.ProtoMajor > 1 {
			_ = w.FlushError() // what the server has kept back is written within the place
		}
	})
}

// inTime cuts an answer that takes longer than most in all, unless it becomes an
// event stream.
func inTime(w *exchange, most time.Duration, answer func()) {
	cut := cutter{rc: http.NewResponseController(w)}
	defer cut.end()
	late := cut.after(most)
	defer late.Stop()
	w.streams = func() { late.Stop() }
	answer()
}

// refuseStranger refuses a request of which no caller is known.
func (s *Server) refuseStranger(w *exchange, r *http.Request, f refusal) {
	s.serveStranger(w, r, func() { refuse(w, w.route.kind, f) })
}
