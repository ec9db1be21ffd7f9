package insights_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/viewtest"
	"github.com/vancetope/mcp-lease-gateway/gateway/insights"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

const key = "acme-admins-long-key"

var caps = map[definition.Level]definition.Cap{definition.User: 1, definition.Project: 2, definition.Tenant: 3, definition.Global: 6}

// directory knows one key, until it is withdrawn.
type directory struct {
	mu        sync.Mutex
	withdrawn bool
}

func (d *directory) TenantAdmin(k, tenant string) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k == key && tenant == "acme" && !d.withdrawn {
		return "key:acme-admin", true
	}
	return "", false
}

func (d *directory) withdraw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.withdrawn = true
}

type site struct {
	page *insights.Page
	*testing.T
	engine *viewtest.Engine
	people *directory
	url    string
	client *http.Client
}

func newSite(t *testing.T, change ...func(*insights.Options)) *site {
	t.Helper()
	ring, err := seal.NewRing([]byte(strings.Repeat("k", seal.KeySize)))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, engine: viewtest.New(t, time.Now), people: &directory{}}
	opt := insights.Options{View: &view.View{Engine: s.engine}, Identity: s.people, Ring: ring,
		Every: 20 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&opt)
	}
	page, err := insights.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(page)
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	s.page, s.url = page, srv.URL
	s.client = s.browser()
	return s
}

func (s *site) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.Fatal(err)
	}
	return &http.Client{Jar: jar, Timeout: 30 * time.Second}
}

func (s *site) get(path string) (int, string) {
	s.Helper()
	res, err := s.client.Get(s.url + path)
	if err != nil {
		s.Fatal(err)
	}
	return s.read(res)
}

func (s *site) read(res *http.Response) (int, string) {
	s.Helper()
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// post sends a form as the page's own would.
func (s *site) post(path string, form url.Values, header ...string) (int, string) {
	s.Helper()
	r, err := http.NewRequest("POST", s.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", s.url)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i+1] == "" {
			r.Header.Del(header[i])
		}
	}
	res, err := s.client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	return s.read(res)
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

func csrf(t testing.TB, page string) string {
	t.Helper()
	m := csrfField.FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no form: %s", page)
	}
	return m[1]
}

const leases = "/insights/acme/leases"

func (s *site) signIn() string {
	s.Helper()
	_, page := s.get(leases)
	status, page := s.post(leases+"/sign-in", url.Values{"csrf": {csrf(s, page)}, "key": {key}})
	if status != 200 || !strings.Contains(page, "key:acme-admin") {
		s.Fatalf("not signed in: %d %s", status, page)
	}
	return page
}

func TestASignInShowsTheTenantsLeasesOnly(t *testing.T) {
	s := newSite(t)
	mine := s.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: "u42", Payload: lease.Payload{"sessionId": "upstream-secret"}}, caps)
	s.engine.Hold(lease.Holder{Tenant: "other", Project: "covert-plan", User: "boss"}, caps)
	s.engine.Drift("browser|tenant|acme", 1)
	s.engine.Happen(lease.Event{Kind: "refused", Tenant: "acme", Resource: "browser", Level: definition.User, Project: "thesis", User: "u42"})
	s.engine.Happen(lease.Event{Kind: "refused", Tenant: "acme", Lease: "typo", Reason: lease.CodeUnavailable, Project: "thesis"})
	s.engine.Happen(lease.Event{Kind: "revoked", Tenant: "acme", Resource: "browser", Reason: "idle"})
	_, page := s.get(leases)
	if strings.Contains(page, "u42") || !strings.Contains(page, "Sign in to acme") {
		t.Fatalf("shown without a sign-in: %s", page)
	}
	page = s.signIn()
	for _, want := range []string{"thesis", "u42", "2 of 3 slots in use, 1 booked", "drift &#43;1", "the user limit of browser was reached", "typo: its definition is not valid", "not used for longer than its TTL"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{"covert-plan", "boss", "global", "upstream-secret", string(mine), key} {
		if strings.Contains(page, not) {
			t.Errorf("the page holds %q", not)
		}
	}
}

func TestTheCookieIsKeptFromScriptsAndOtherSites(t *testing.T) {
	s := newSite(t)
	_, page := s.get(leases)
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r, _ := http.NewRequest("POST", s.url+leases+"/sign-in", strings.NewReader(url.Values{"csrf": {csrf(t, page)}, "key": {key}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", s.url)
	res, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = s.read(res)
	c := res.Header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=" + leases} {
		if !strings.Contains(c, want) {
			t.Errorf("%q lacks %s", c, want)
		}
	}
	if strings.Contains(c, key) || strings.Contains(c, "Secure") {
		t.Errorf("%q: the key shows, or a plain loopback cookie is Secure", c)
	}
	h := res.Header.Get("Content-Security-Policy")
	if strings.Contains(h, "unsafe") || !strings.Contains(h, "default-src 'none'") || !strings.Contains(h, "frame-ancestors 'none'") {
		t.Errorf("CSP %q", h)
	}
}

func TestACookieOverTheNetIsSecure(t *testing.T) {
	ring, _ := seal.NewRing([]byte(strings.Repeat("k", seal.KeySize)))
	e := viewtest.New(t, time.Now)
	page, err := insights.New(insights.Options{View: &view.View{Engine: e}, Identity: &directory{}, Ring: ring})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "http://gateway.example.com"+leases, nil)
	w := httptest.NewRecorder()
	page.ServeHTTP(w, r)
	if c := w.Header().Get("Set-Cookie"); !strings.Contains(c, "Secure") {
		t.Errorf("%q", c)
	}
}

func TestBadSignInsAreRefused(t *testing.T) {
	for name, form := range map[string]struct {
		key    string
		header []string
		csrf   string
		want   int
	}{
		"a wrong key":            {"nonsense", nil, "", 403},
		"an empty key":           {"", nil, "", 403},
		"no Origin":              {key, []string{"Origin", ""}, "", 403},
		"another Origin":         {key, []string{"Origin", "https://evil.example"}, "", 403},
		"the Origin null":        {key, []string{"Origin", "null"}, "", 403},
		"a cross-site fetch":     {key, []string{"Sec-Fetch-Site", "cross-site"}, "", 403},
		"a wrong form token":     {key, nil, "wrong", 403},
		"a form of 64 KiB":       {strings.Repeat("k", 64<<10), nil, "", 400},
		"a key with HTML inside": {"<script>alert(1)</script>", nil, "", 403},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			_, page := s.get(leases)
			token := form.csrf
			if token == "" {
				token = csrf(t, page)
			}
			status, page := s.post(leases+"/sign-in", url.Values{"csrf": {token}, "key": {form.key}}, form.header...)
			if status != form.want || strings.Contains(page, "key:acme-admin") || strings.Contains(page, "<script>alert") {
				t.Errorf("%d %s", status, page)
			}
		})
	}
	t.Run("a key of acme does not open another tenant", func(t *testing.T) {
		s := newSite(t)
		_, page := s.get("/insights/other/leases")
		status, page := s.post("/insights/other/leases/sign-in", url.Values{"csrf": {csrf(t, page)}, "key": {key}})
		if status != 403 || !strings.Contains(page, "does not open other") {
			t.Errorf("%d %s", status, page)
		}
	})
	t.Run("a storm of guesses is slowed down, and the right key still opens", func(t *testing.T) {
		s := newSite(t)
		_, page := s.get(leases)
		slowed := false
		for range 60 {
			status, _ := s.post(leases+"/sign-in", url.Values{"csrf": {csrf(t, page)}, "key": {"guess"}})
			slowed = slowed || status == 429
		}
		if !slowed {
			t.Error("60 guesses went through")
		}
		s.signIn()
	})
}

func TestTheFormTokenOfAnotherBrowserIsRefused(t *testing.T) {
	s := newSite(t)
	_, page := s.get(leases)
	stolen := csrf(t, page)
	s.client = s.browser()
	if status, _ := s.post(leases+"/sign-in", url.Values{"csrf": {stolen}, "key": {key}}); status != 403 {
		t.Errorf("%d", status)
	}
}

func TestACookieOfAnotherTenantOrGatewayOpensNothing(t *testing.T) {
	s := newSite(t)
	s.signIn()
	u, _ := url.Parse(s.url + leases)
	cookie := s.client.Jar.Cookies(u)[0].Value
	for name, c := range map[string]struct{ path, value string }{
		"for another tenant": {"/insights/other/leases", cookie},
		"changed":            {leases, cookie[:30] + "A" + cookie[31:] + "A"},
		"not sealed":         {leases, `{"id":"x","key":"` + key + `"}`},
		"of 1 MB":            {leases, strings.Repeat("A", 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := http.NewRequest("GET", s.url+c.path, nil)
			r.Header.Set("Cookie", "insights="+c.value)
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, body := s.read(res); !strings.Contains(body, "Sign in to") {
				t.Errorf("%d %s", res.StatusCode, body)
			}
			if name := s.page.Admin(r, strings.Split(c.path, "/")[2]); name != "" {
				t.Errorf("it makes %s an admin", name)
			}
		})
	}
	r, _ := http.NewRequest("GET", s.url+leases, nil)
	r.Header.Set("Cookie", "insights="+cookie)
	if name := s.page.Admin(r, "acme"); name != "key:acme-admin" {
		t.Errorf("who has signed in is %q", name)
	}
}

func TestRevokingWorksWithoutAScript(t *testing.T) {
	s := newSite(t)
	tok := s.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: "u42"}, caps)
	s.signIn()
	status, page := s.get(leases + "/revoke?token=" + string(tok[:10]))
	if status != 200 || !strings.Contains(page, "Revoke this lease?") || !strings.Contains(page, "u42") {
		t.Fatal(status, page)
	}
	form := url.Values{"csrf": {csrf(t, page)}, "token": {string(tok[:10])}}
	t.Run("a foreign page cannot", func(t *testing.T) {
		for name, header := range map[string][]string{"no Origin": {"Origin", ""}, "another Origin": {"Origin", "http://127.0.0.1:1"}, "same site": {"Sec-Fetch-Site", "same-site"}} {
			if status, _ := s.post(leases+"/revoke", form, header...); status != 403 {
				t.Errorf("%s: %d", name, status)
			}
		}
		if status, _ := s.post(leases+"/revoke", url.Values{"token": {string(tok[:10])}}); status != 403 {
			t.Errorf("no form token: %d", status)
		}
		if held, _ := s.engine.Find(t.Context(), lease.Filter{}); len(held) != 1 {
			t.Fatal("the lease is gone")
		}
	})
	status, page = s.post(leases+"/revoke", form)
	if status != 200 || !strings.Contains(page, "The lease was revoked") || strings.Contains(page, `data-token="`+string(tok[:10])) {
		t.Errorf("%d %s", status, page)
	}
	if !strings.Contains(page, "by tenantAdmin key:acme-admin") {
		t.Error("the record does not name who")
	}
	if status, page = s.post(leases+"/revoke", form); status != 200 || !strings.Contains(page, "had ended already") {
		t.Errorf("twice: %d %s", status, page)
	}
	if status, page = s.get(leases + "/revoke?token=unknown-token"); status != 404 || !strings.Contains(page, "not there any more") {
		t.Errorf("unknown: %d %s", status, page)
	}
}

func TestAnotherTenantsLeaseIsNotThere(t *testing.T) {
	s := newSite(t)
	theirs := s.engine.Hold(lease.Holder{Tenant: "other", Project: "covert-plan"}, caps)
	page := s.signIn()
	if status, body := s.get(leases + "/revoke?token=" + string(theirs)); status != 404 || strings.Contains(body, "covert-plan") {
		t.Errorf("%d %s", status, body)
	}
	_, page = s.post(leases+"/revoke", url.Values{"csrf": {csrf(t, page)}, "token": {string(theirs)}})
	if held, _ := s.engine.Find(t.Context(), lease.Filter{}); len(held) != 1 || !strings.Contains(page, "Nothing was done") {
		t.Errorf("%d held, %s", len(held), page)
	}
}

func TestAWithdrawnKeyIsOutAtOnce(t *testing.T) {
	s := newSite(t)
	tok := s.engine.Hold(lease.Holder{Tenant: "acme", User: "u42"}, caps)
	page := s.signIn()
	s.people.withdraw()
	if _, body := s.get(leases); strings.Contains(body, "u42") {
		t.Error("still shown")
	}
	status, _ := s.post(leases+"/revoke", url.Values{"csrf": {csrf(t, page)}, "token": {string(tok[:10])}})
	if held, _ := s.engine.Find(t.Context(), lease.Filter{}); status != 403 || len(held) != 1 {
		t.Errorf("%d, %d held", status, len(held))
	}
}

func TestSigningOutForgetsTheKey(t *testing.T) {
	s := newSite(t)
	page := s.signIn()
	if status, page := s.post(leases+"/sign-out", url.Values{"csrf": {csrf(t, page)}}); status != 200 || !strings.Contains(page, "Sign in to acme") {
		t.Errorf("%d %s", status, page)
	}
}

func TestNamesWithHTMLAreText(t *testing.T) {
	s := newSite(t)
	s.engine.Hold(lease.Holder{Tenant: "acme", Project: `<script>alert(1)</script>`, User: `"><img src=x onerror=alert(1)>`, Pod: "javascript:alert(1)", Resource: `</svg><b>`}, caps)
	s.engine.Happen(lease.Event{Kind: "<i>", Tenant: "acme", Reason: "</ol><script>", By: "<u>"})
	page := s.signIn()
	for _, raw := range []string{"<script>alert", "<img src=x", "</svg><b>", "<i>", "<u>", "</ol><script>"} {
		if strings.Contains(page, raw) {
			t.Errorf("%s is in the page", raw)
		}
	}
	filtered := "?project=" + url.QueryEscape(`"><script>alert(1)</script>`)
	if _, page := s.get(leases + filtered); strings.Contains(page, "<script>alert") {
		t.Error("the filter is in the page")
	}
}

func TestFiltersPagesAndEmptyStates(t *testing.T) {
	s := newSite(t)
	page := s.signIn()
	if !strings.Contains(page, "Nobody in acme holds a lease") || !strings.Contains(page, "No slot is in use") || !strings.Contains(page, "Nothing was refused") {
		t.Errorf("empty: %s", page)
	}
	for i := range 10_000 {
		s.engine.Hold(lease.Holder{Token: lease.Token(fmt.Sprintf("%06dZZZZZZZZZZZZZZZZZZZZ", i)), Tenant: "acme", Project: "p", User: fmt.Sprint("user-", i)}, caps)
	}
	time0 := time.Now()
	seen, path := 0, leases
	for range 3 {
		status, page := s.get(path)
		if status != 200 {
			t.Fatal(status, page)
		}
		seen += strings.Count(page, "<tr data-token")
		m := regexp.MustCompile(`href="(/insights/acme/leases\?after=[^"]+)">Next page`).FindStringSubmatch(page)
		if m == nil {
			t.Fatal("10,000 holders have no next page")
		}
		path = m[1]
	}
	if seen != 300 {
		t.Errorf("%d rows on three pages", seen)
	}
	if took := time.Since(time0); took > time.Minute { // a busy machine takes ten seconds; a page that reads all pages takes longer
		t.Errorf("three pages took %v", took)
	}
	_, page = s.get(leases + "?user=user-77")
	if strings.Count(page, "<tr data-token") != 1 || !strings.Contains(page, "user-77") {
		t.Error("the filter does not filter")
	}
	if _, page = s.get(leases + "?user=nobody"); !strings.Contains(page, "No holder matches this filter") {
		t.Error("no word about a filter without a match")
	}
	if status, page := s.get(leases + "?user=%ff"); status != 400 || !strings.Contains(page, "makes no sense") {
		t.Errorf("%d", status)
	}
}

func TestTheStoreOutOfReachIsSaid(t *testing.T) {
	s := newSite(t)
	s.signIn()
	s.engine.Fail(errors.New("dial tcp db.internal:27017"))
	// A view that was just made may still be shown.
	for range 100 {
		status, page := s.get(leases + "?user=" + fmt.Sprint(time.Now().UnixNano()))
		if status == 503 {
			if strings.Contains(page, "db.internal") || !strings.Contains(page, "Try again in a minute") {
				t.Error(page)
			}
			return
		}
	}
	t.Error("never said")
}

func TestPathsThatAreNoTenantsAreNotFound(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/insights/..%2f/leases", "/insights/a%20b/leases", "/insights/%3Cscript%3E/leases", leases + "/assets/..%2finsights.go", leases + "/assets/none.css", leases + "/nothing"} {
		if status, body := s.get(path); status != 404 || strings.Contains(body, "script>") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// events reads server-sent events.
func events(body io.Reader) func() (name, data string, err error) {
	sc := bufio.NewScanner(body)
	sc.Buffer(nil, 1<<20)
	return func() (name, data string, err error) {
		for sc.Scan() {
			line := sc.Text()
			switch {
			case strings.HasPrefix(line, "event: "):
				name = line[7:]
			case strings.HasPrefix(line, "data: "):
				data += line[6:] + "\n"
			case line == "" && name != "":
				return name, data, nil
			}
		}
		if sc.Err() != nil {
			return "", "", sc.Err()
		}
		return "", "", io.EOF
	}
}

func (s *site) watch(ctx context.Context, query string) (int, func() (string, string, error)) {
	s.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", s.url+leases+"/live"+query, nil)
	if err != nil {
		s.Fatal(err)
	}
	res, err := s.client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = res.Body.Close() })
	return res.StatusCode, events(res.Body)
}

func TestAFreedSlotIsSeenLive(t *testing.T) {
	s := newSite(t, func(o *insights.Options) { o.Every = time.Second })
	tok := s.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: "u42"}, caps)
	s.signIn()
	status, next := s.watch(t.Context(), "")
	if status != 200 {
		t.Fatal(status)
	}
	if name, data, err := next(); err != nil || name != "changed" || !strings.Contains(data, "u42") {
		t.Fatal(name, data, err)
	}
	freed := time.Now()
	s.engine.End(tok)
	name, data, err := next()
	if err != nil || name != "changed" || strings.Contains(data, "u42") || !strings.Contains(data, "Nobody in acme") {
		t.Fatal(name, data, err)
	}
	if took := time.Since(freed); took > 2*time.Second {
		t.Errorf("seen after %v, want 2 s", took)
	}
}

func TestLiveUpdatesEndWithTheKeyAndSayWhenTheStoreIsAway(t *testing.T) {
	s := newSite(t)
	s.signIn()
	_, next := s.watch(t.Context(), "")
	if name, _, err := next(); err != nil || name != "changed" {
		t.Fatal(name, err)
	}
	s.engine.Fail(errors.New("away"))
	if name, data, err := next(); err != nil || name != "failing" || strings.Contains(data, "away") {
		t.Fatal(name, data, err)
	}
	s.engine.Fail(nil)
	if name, _, err := next(); err != nil || name != "changed" {
		t.Fatal(name, err)
	}
	s.people.withdraw()
	if name, _, err := next(); err != nil || name != "signed-out" {
		t.Fatal(name, err)
	}
	if _, _, err := next(); err != io.EOF {
		t.Errorf("the stream goes on: %v", err)
	}
}

func TestNobodyWatchesWithoutASignInAndNotTooMany(t *testing.T) {
	s := newSite(t, func(o *insights.Options) { o.Watchers = 8 })
	if status, _ := s.watch(t.Context(), ""); status != 403 {
		t.Errorf("without a sign-in: %d", status)
	}
	s.signIn()
	for range 2 {
		status, next := s.watch(t.Context(), "")
		if _, _, err := next(); status != 200 || err != nil {
			t.Fatal(status, err)
		}
	}
	if status, _ := s.watch(t.Context(), ""); status != 503 {
		t.Errorf("more than a quarter for one tenant: %d", status)
	}
	if status, _ := s.watch(t.Context(), "?user=%ff"); status != 503 && status != 400 {
		t.Errorf("nonsense: %d", status)
	}
}

func TestDriftBehindAThousandCountersIsShown(t *testing.T) {
	s := newSite(t)
	for i := range 1200 {
		s.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: fmt.Sprintf("u%04d", i)},
			map[definition.Level]definition.Cap{definition.User: 2})
	}
	s.engine.Drift("browser|user|acme/u1199", 1)
	if page := s.signIn(); !strings.Contains(page, `data-counter="browser|user|acme/u1199"`) || !strings.Contains(page, "drift &#43;1") {
		t.Error("the drifted counter is not on the page")
	}
}
