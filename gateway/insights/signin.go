package insights

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
)

// cookieName is the one cookie of a tenant's page; its path is the page's.
const cookieName = "insights"

// Lives of the cookie: before a sign-in, and of one.
const (
	formLife   = time.Hour
	signInLife = 12 * time.Hour
)

// session is what the cookie holds, sealed for its tenant. Before a sign-in it
// has no key and only binds the form to the browser.
type session struct {
	ID      string    `json:"id"` // unguessable; the form's token is made of it
	Key     string    `json:"key,omitempty"`
	Expires time.Time `json:"expires"`
	// Name is the credential's, judged with every request.
	Name string `json:"-"`
}

// in reports whether a tenant's admin is signed in.
func (s session) in() bool { return s.Name != "" }

// csrf is the token that every form of the session sends back. It says nothing
// of the id that it is made of.
func (s session) csrf() string {
	sum := sha256.Sum256([]byte("form token of " + s.ID))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// open reads the session of the request. A request without one gets a fresh
// one, so that the sign-in form is bound to this browser.
func (p *Page) open(w http.ResponseWriter, r *http.Request) (tenant string, s session, ok bool) {
	tenant, ok = tenantOf(r)
	if !ok {
		http.NotFound(w, r)
		return "", session{}, false
	}
	if s, ok := p.read(r, tenant); ok {
		return tenant, s, true
	}
	s = session{ID: rand.Text(), Expires: p.now().Add(formLife)}
	p.keep(w, r, tenant, s)
	return tenant, s, true
}

// read opens the cookie and judges its key anew.
func (p *Page) read(r *http.Request, tenant string) (session, bool) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return session{}, false
	}
	plain, err := p.box.Open(c.Value, []byte(tenant))
	if err != nil {
		return session{}, false
	}
	var s session
	if json.Unmarshal(plain, &s) != nil || s.ID == "" || !p.now().Before(s.Expires) {
		return session{}, false
	}
	if s.Key != "" {
		name, ok := p.opt.Identity.TenantAdmin(s.Key, tenant)
		if !ok {
			return session{}, false // withdrawn, or no longer an admin
		}
		s.Name = name
	}
	return s, true
}

// Admin names the admin of tenant who is signed in with the request; "" is nobody.
func (p *Page) Admin(r *http.Request, tenant string) string {
	s, _ := p.read(r, tenant)
	return s.Name
}

func (p *Page) keep(w http.ResponseWriter, r *http.Request, tenant string, s session) {
	plain, err := json.Marshal(s)
	if err != nil {
		panic(err) // a struct of texts and a time
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: p.box.Seal(plain, []byte(tenant)), Path: base(tenant), Expires: s.Expires,
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		// Plain http is for loopback only: elsewhere a browser drops the cookie,
		// and the page says so.
		Secure: !loopback.Host(r.Host),
	})
}

// signedIn is open for what only a tenant's admin may do.
func (p *Page) signedIn(w http.ResponseWriter, r *http.Request) (string, session, bool) {
	tenant, s, ok := p.open(w, r)
	if ok && !s.in() {
		p.askSignIn(w, tenant, s, http.StatusForbidden, "You are signed out, or the key is no longer an admin's of this tenant. Nothing was done. Sign in to go on.")
		return "", session{}, false
	}
	return tenant, s, ok
}

// genuine refuses a POST that does not come from a form of this page in this
// browser: wrong or no Origin, wrong or no form token.
func (p *Page) genuine(w http.ResponseWriter, r *http.Request, tenant string, s session) bool {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if site := r.Header.Get("Sec-Fetch-Site"); !p.ownOrigin(r) || site != "" && site != "same-origin" {
		p.message(w, tenant, s, http.StatusForbidden, "Not from this page", "The request came from another site, so nothing was done. Open the page itself and try again.")
		return false
	}
	if err := r.ParseForm(); err != nil {
		p.message(w, tenant, s, http.StatusBadRequest, "The form could not be read", "Nothing was done. Go back and try again.")
		return false
	}
	if subtle.ConstantTimeCompare([]byte(r.PostFormValue("csrf")), []byte(s.csrf())) != 1 {
		p.message(w, tenant, s, http.StatusForbidden, "The form is too old", "It was made before you signed in or out, so nothing was done. Go back to the page and try again.")
		return false
	}
	return true
}

// ownOrigin demands an Origin (browsers send it with every POST) that is the
// page's own host or one of the configured.
func (p *Page) ownOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) != 1 {
		return false
	}
	if slices.Contains(p.opt.Origins, origins[0]) {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// signIn takes a tenant admin's key.
func (p *Page) signIn(w http.ResponseWriter, r *http.Request) {
	tenant, s, ok := p.open(w, r)
	if !ok || !p.genuine(w, r, tenant, s) {
		return
	}
	key := strings.TrimSpace(r.PostFormValue("key"))
	name, ok := p.opt.Identity.TenantAdmin(key, tenant)
	if !ok || key == "" {
		if !p.attempts.Allow() {
			w.Header().Set("Retry-After", "5")
			p.askSignIn(w, tenant, s, http.StatusTooManyRequests, "Too many wrong keys at once. Wait a few seconds and try again.")
			return
		}
		p.opt.Log.Warn("a sign-in to the Leases page was refused", "tenant", tenant, "remote", r.RemoteAddr)
		p.askSignIn(w, tenant, s, http.StatusForbidden, "This key does not open "+tenant+". It needs the role tenantAdmin for the whole tenant.")
		return
	}
	p.opt.Log.Info("signed in to the Leases page", "tenant", tenant, "credential", name)
	p.keep(w, r, tenant, session{ID: rand.Text(), Key: key, Expires: p.now().Add(signInLife)})
	http.Redirect(w, r, base(tenant)+"?signed=1", http.StatusSeeOther)
}

// signOut forgets the key.
func (p *Page) signOut(w http.ResponseWriter, r *http.Request) {
	tenant, s, ok := p.open(w, r)
	if !ok || !p.genuine(w, r, tenant, s) {
		return
	}
	p.keep(w, r, tenant, session{ID: rand.Text(), Expires: p.now().Add(formLife)})
	http.Redirect(w, r, base(tenant), http.StatusSeeOther)
}

func (p *Page) askSignIn(w http.ResponseWriter, tenant string, s session, status int, notice string) {
	p.render(w, status, "signin", signInPage{frame: p.frame(tenant, s), Notice: notice})
}
