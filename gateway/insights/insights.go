package insights

import (
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/gateway/identity"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
)

// Path is where a tenant's page is; what belongs to it is below.
const Path = "/insights/{tenant}/leases"

// Identity judges the key of a sign-in.
type Identity interface {
	// TenantAdmin names the credential that key is, where it has the role
	// tenantAdmin for tenant.
	TenantAdmin(key, tenant string) (name string, ok bool)
}

// Options wires a Page.
type Options struct {
	View     *view.View
	Identity Identity
	// Ring seals the sign-in cookie.
	Ring *seal.Ring
	// Origins may post besides the page's own.
	Origins []string
	Log     *slog.Logger
	// Watchers bounds the live updates at once on this pod; zero means 200. One
	// tenant may have a quarter of them, so that no tenant takes them all.
	Watchers int
	// Every is how often a watched page looks for changes; zero means 1 s.
	Every time.Duration
}

// Page serves everything below Path.
type Page struct {
	opt      Options
	box      *seal.Box
	mux      http.Handler
	attempts *rate.Limiter
	watchers watchers
	views    *views
	now      func() time.Time
}

//go:embed pages assets
var files embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"span": view.Span,
}).ParseFS(files, "pages/*.html"))

// Bounds.
const (
	maxForm     = 16 << 10
	lookTimeout = 10 * time.Second
)

// New makes a Page.
func New(opt Options) (*Page, error) {
	if opt.View == nil || opt.Identity == nil || opt.Ring == nil {
		return nil, errors.New("insights: a view, an identity and a ring are needed")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Watchers == 0 {
		opt.Watchers = 200
	}
	if opt.Every == 0 {
		opt.Every = time.Second
	}
	p := &Page{opt: opt, box: opt.Ring.Box("insights"), now: time.Now, watchers: watchers{most: opt.Watchers, of: map[string]int{}},
		// Wrong keys only: a storm of guesses must neither flood the log nor lock
		// out who has the right one.
		attempts: rate.NewLimiter(5, 20)}
	p.views = newViews(opt.View, opt.Every*9/10)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, p.show)
	mux.HandleFunc("GET "+Path+"/live", p.live)
	mux.HandleFunc("GET "+Path+"/revoke", p.askRevoke)
	mux.HandleFunc("POST "+Path+"/revoke", p.revoke)
	mux.HandleFunc("POST "+Path+"/sign-in", p.signIn)
	mux.HandleFunc("POST "+Path+"/sign-out", p.signOut)
	mux.HandleFunc("GET "+Path+"/assets/{file}", p.asset)
	p.mux = mux
	return p, nil
}

// Keys judges by the API keys of the authenticator in force.
func Keys(current func() *identity.Authenticator) Identity { return keys{current} }

type keys struct {
	current func() *identity.Authenticator
}

func (k keys) TenantAdmin(key, tenant string) (string, bool) {
	c := k.current().Key(key)
	if c == nil || !c.TenantAdmin(tenant) {
		return "", false
	}
	return c.Who(), true
}

// ServeHTTP answers everything below Path.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	// No inline script, no inline style, nothing from elsewhere, no frame around.
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	// Not no-referrer: a browser would send Origin: null with the page's own forms.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	p.mux.ServeHTTP(w, r)
}

// show is the page, or the sign-in.
func (p *Page) show(w http.ResponseWriter, r *http.Request) {
	tenant, s, ok := p.open(w, r)
	if !ok {
		return
	}
	if !s.in() {
		notice := ""
		if r.URL.Query().Get("signed") != "" {
			notice = "Your browser did not keep the sign-in. Open this page over https, and allow cookies for it."
		}
		p.askSignIn(w, tenant, s, http.StatusOK, notice)
		return
	}
	q, err := readFilter(r)
	if err != nil {
		p.message(w, tenant, s, http.StatusBadRequest, "This address makes no sense", err.Error()+".")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookTimeout)
	defer cancel()
	v, err := p.views.look(ctx, tenant, q)
	if err != nil {
		p.failed(w, tenant, s, err)
		return
	}
	p.render(w, http.StatusOK, "leases", leasesPage{frame: p.frame(tenant, s), View: v, Filter: q, Notice: notices[r.URL.Query().Get("notice")]})
}

// notices are what a page can say after an act; the address names one of them.
var notices = map[string]string{
	"revoked": "The lease was revoked. Its slots are free, and its session is being ended.",
	"gone":    "That lease had ended already. Nothing was done.",
}

// askRevoke is the confirmation, for browsers without the script.
func (p *Page) askRevoke(w http.ResponseWriter, r *http.Request) {
	tenant, s, ok := p.signedIn(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookTimeout)
	defer cancel()
	h, err := p.opt.View.Holder(ctx, view.Scope{Tenant: tenant}, r.URL.Query().Get("token"))
	if err != nil {
		p.failed(w, tenant, s, err)
		return
	}
	p.render(w, http.StatusOK, "confirm", confirmPage{frame: p.frame(tenant, s), Holder: h})
}

// revoke takes a lease away.
func (p *Page) revoke(w http.ResponseWriter, r *http.Request) {
	tenant, s, ok := p.signedIn(w, r)
	if !ok || !p.genuine(w, r, tenant, s) {
		return
	}
	// The act is finished although the browser leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), lookTimeout)
	defer cancel()
	_, err := p.opt.View.Revoke(ctx, view.Scope{Tenant: tenant}, r.PostFormValue("token"), view.ByTenantAdmin(s.Name))
	notice := "revoked"
	switch {
	case view.CodeOf(err) == view.NotFound:
		notice = "gone"
	case err != nil:
		p.failed(w, tenant, s, err)
		return
	}
	p.views.forget(tenant)
	http.Redirect(w, r, base(tenant)+"?notice="+notice, http.StatusSeeOther)
}

// failed says what went wrong and what to do about it.
func (p *Page) failed(w http.ResponseWriter, tenant string, s session, err error) {
	e, ok := errors.AsType[*view.Error](err)
	switch {
	case ok && e.Code == view.NotFound:
		p.message(w, tenant, s, http.StatusNotFound, "That lease is not there any more", "It has ended, or it was never one of "+tenant+". Go back to the list to see what is held now.")
	case ok && e.Code == view.Invalid:
		p.message(w, tenant, s, http.StatusBadRequest, "This address makes no sense", e.Message+".")
	default:
		p.opt.Log.Error("the Leases page could not look", "error", err)
		p.message(w, tenant, s, http.StatusServiceUnavailable, "The lease store cannot be reached",
			"Nothing is known about leases at this moment, and no new lease is given. Try again in a minute; if it stays so, tell the operator of this gateway.")
	}
}

func (p *Page) message(w http.ResponseWriter, tenant string, s session, status int, title, text string) {
	p.render(w, status, "message", messagePage{frame: p.frame(tenant, s), Title: title, Text: text})
}

func (p *Page) render(w http.ResponseWriter, status int, page string, data any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if err := pages.ExecuteTemplate(w, page, data); err != nil {
		p.opt.Log.Debug("a page was not sent whole", "page", page, "error", err)
	}
}

// frame is what every page shows.
type frame struct {
	Tenant string
	Base   string
	Name   string // of the signed-in credential
	CSRF   string
}

func (p *Page) frame(tenant string, s session) frame {
	return frame{Tenant: tenant, Base: base(tenant), Name: s.Name, CSRF: s.csrf()}
}

type leasesPage struct {
	frame
	*View
	Filter Filter
	Notice string
}

type confirmPage struct {
	frame
	Holder view.Holder
}

type messagePage struct {
	frame
	Title, Text string
}

type signInPage struct {
	frame
	Notice string
}

func base(tenant string) string { return "/insights/" + tenant + "/leases" }

// tenantOf is the tenant of the path; false where no tenant can have that name.
func tenantOf(r *http.Request) (string, bool) {
	t := r.PathValue("tenant")
	return t, principal.ValidName(t)
}
