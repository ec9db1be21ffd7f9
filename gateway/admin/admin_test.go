package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/go-cmp/cmp"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/viewtest"
	"github.com/vancetope/mcp-lease-gateway/internal/headers"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

const token = "internal-secret-one"

// authority is the gateway's side: an internal token, an operator key and one
// tenant admin's key.
type authority struct{ tokens []string }

func (a authority) Operator(r *http.Request) (string, error) {
	switch r.Header.Get("Authorization") {
	case "Bearer ops":
		return "ops", nil
	case "Bearer acme-admin":
		return "", admin.ErrForbidden
	}
	return "internal token", admin.InternalToken(r, a.tokens)
}

func (a authority) TenantAdmin(r *http.Request, tenant string) (string, error) {
	switch r.Header.Get("Authorization") {
	case "":
		return "", admin.ErrNoCredential
	case "Bearer acme-admin":
		if tenant == "acme" {
			return "acme-admin", nil
		}
		return "", admin.ErrForbidden
	}
	return "", admin.ErrWrongCredential
}

// documents is a resolver with one lease, one broken and one unreadable one.
type documents struct{ definition.Resolver }

func (documents) Fresh(_ context.Context, tenant, project, name string) (*definition.Merged, error) {
	switch name {
	case "browser":
		return &definition.Merged{
			Definition: definition.Definition{Name: "browser", Resource: "browser", TTL: 5 * time.Minute, Wait: time.Second,
				Caps: map[definition.Level]definition.Cap{definition.User: 1, definition.Global: 6}},
			Fields: []definition.Field{{Name: "levels.user", Value: "1", Layer: document.System,
				Ignored: []definition.Ignored{{Layer: document.Bundled, Value: "2", Why: "overridden by system"}}}},
		}, nil
	case "broken":
		return nil, &definition.Error{Lease: name, Layer: document.Project, Where: "documents/acme/thesis/broken.yaml:3", Field: "levels.user", What: "cap 0 is below 1"}
	case "away":
		return nil, &definition.Error{Lease: name, Transient: true, Err: errors.New("dial mongodb://root:hunter2@db")}
	}
	return nil, &definition.Error{Lease: name, Unknown: true}
}

type bench struct {
	*testing.T
	engine *viewtest.Engine
	api    *admin.API
	router routers.Router
	audit  []lease.Event
	now    time.Time
	log    *strings.Builder
	tokens []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, now: time.Date(2026, 5, 4, 3, 0, 0, 0, time.UTC), log: &strings.Builder{}, tokens: []string{token, "internal-secret-two"}}
	b.engine = viewtest.New(t, func() time.Time { return b.now })
	b.build()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatalf("openapi.yaml: %v", err)
	}
	if b.router, err = gorillamux.NewRouter(doc); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) build() {
	b.Helper()
	api, err := admin.New(admin.Options{
		View: &view.View{Engine: b.engine, Definitions: documents{}, Now: func() time.Time { return b.now },
			Happened: func(e lease.Event) { b.audit = append(b.audit, e) }},
		Authority: authority{tokens: b.tokens},
		Log:       slog.New(slog.NewTextHandler(b.log, nil)),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.api = api
}

// ask sends one request and checks its answer against the OpenAPI document.
func (b *bench) ask(method, path string, header ...string) (int, string) {
	b.Helper()
	r := httptest.NewRequest(method, "http://gateway"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	h := b.api.Internal()
	if strings.HasPrefix(path, "/brain/") {
		h = b.api.Tenant()
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	res := w.Result()
	body, _ := io.ReadAll(res.Body)
	route, params, err := b.router.FindRoute(r)
	if err != nil {
		return res.StatusCode, string(body) // a path that the document does not have
	}
	asked := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}}
	if err := openapi3filter.ValidateRequest(b.Context(), asked); res.StatusCode == http.StatusOK && err != nil {
		b.Errorf("%s %s is answered although openapi.yaml does not allow it: %v", method, path, err)
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 res.StatusCode, Header: res.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	in.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(b.Context(), in); err != nil {
		b.Errorf("%s %s: the answer is not what openapi.yaml says: %v\n%s", method, path, err, body)
	}
	return res.StatusCode, string(body)
}

func (b *bench) operator(method, path string) (int, string) {
	b.Helper()
	return b.ask(method, path, headers.InternalToken, token)
}

func (b *bench) tenantAdmin(method, path string) (int, string) {
	b.Helper()
	return b.ask(method, path, "Authorization", "Bearer acme-admin")
}

func decode[T any](t testing.TB, body string) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}

var caps = map[definition.Level]definition.Cap{definition.User: 1, definition.Project: 2, definition.Tenant: 3, definition.Global: 6}

func TestOnlyOperatorsReachTheInternalFace(t *testing.T) {
	all := []string{"GET holders", "GET holders/tok00001", "POST holders/tok00001/revoke", "GET counters", "GET definition?name=browser&tenant=acme&project=thesis",
		"GET events", "POST pods/pod-a/revoke", "POST sweep", "POST reconcile", "GET openapi.json", "GET nothing", "DELETE holders"}
	for name, c := range map[string]struct {
		tokens []string
		header []string
		want   int
	}{
		"no secret":                {[]string{token}, nil, 401},
		"an empty secret":          {[]string{token}, []string{headers.InternalToken, ""}, 401},
		"a wrong secret":           {[]string{token}, []string{headers.InternalToken, "internal-secret-0ne"}, 401},
		"a longer secret":          {[]string{token}, []string{headers.InternalToken, token + "x"}, 401},
		"the secret twice":         {[]string{token}, []string{headers.InternalToken, token, headers.InternalToken, token}, 401},
		"no secret configured":     {nil, []string{headers.InternalToken, token}, 403},
		"an empty one configured":  {[]string{""}, []string{headers.InternalToken, ""}, 403},
		"a tenant admin's key":     {[]string{token}, []string{"Authorization", "Bearer acme-admin"}, 403},
		"a secret from elsewhere":  {[]string{"internal-secret-two"}, []string{headers.InternalToken, token}, 401},
		"the secret as a bearer's": {[]string{token}, []string{"Authorization", "Bearer " + token}, 401},
	} {
		t.Run(name+" is refused everywhere", func(t *testing.T) {
			b := newBench(t)
			b.tokens = c.tokens
			b.build()
			b.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: "u1"}, caps)
			for _, route := range all {
				method, path, _ := strings.Cut(route, " ")
				status, body := b.ask(method, admin.InternalPath+path, c.header...)
				if status != c.want {
					t.Errorf("%s: %d, want %d: %s", route, status, c.want, body)
				}
				if strings.Contains(body, "acme") {
					t.Errorf("%s: the refusal tells something: %s", route, body)
				}
			}
			if held, _ := b.engine.Find(t.Context(), lease.Filter{}); len(held) != 1 {
				t.Error("a refused caller took a lease away")
			}
			for _, secret := range []string{token, "internal-secret-0ne", "acme-admin"} {
				if strings.Contains(b.log.String(), secret) {
					t.Errorf("the log holds a credential: %s", b.log)
				}
			}
		})
	}
	for name, header := range map[string][]string{
		"the first secret":  {headers.InternalToken, token},
		"the second secret": {headers.InternalToken, "internal-secret-two"},
		"an operator's key": {"Authorization", "Bearer ops"},
	} {
		t.Run(name+" opens", func(t *testing.T) {
			b := newBench(t)
			if status, body := b.ask("GET", admin.InternalPath+"holders", header...); status != 200 {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

func TestAHolderIsShownWithoutItsSecrets(t *testing.T) {
	b := newBench(t)
	created := b.now.Add(-10 * time.Minute)
	b.engine.Hold(lease.Holder{Token: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", Tenant: "acme", Project: "thesis", User: "u1", HolderRef: "browser", CreatedAt: created,
		LastSeenAt: b.now.Add(-30 * time.Second), Payload: lease.Payload{"sessionId": "upstream-secret", "endpoint": "http://browsers/mcp?key=hunter2"}}, caps)
	status, body := b.operator("GET", admin.InternalPath+"holders")
	if status != 200 {
		t.Fatal(status, body)
	}
	for _, secret := range []string{"upstream-secret", "hunter2", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"} {
		if strings.Contains(body, secret) {
			t.Errorf("the answer holds %s", secret)
		}
	}
	want := view.HolderPage{Holders: []view.Holder{{Token: "ABCDEFGHIJ", State: "HELD", Type: "mcp", Resource: "browser", Lease: "browser",
		Tenant: "acme", Project: "thesis", User: "u1", HolderRef: "browser", Pod: "pod-a", Payload: []string{"endpoint", "sessionId"},
		Levels: []view.Booking{{Level: "user", Counter: "browser|user|acme/u1"}, {Level: "project", Counter: "browser|project|acme/thesis"},
			{Level: "tenant", Counter: "browser|tenant|acme"}, {Level: "global", Counter: "browser|global|*"}},
		CreatedAt: created, LastSeenAt: b.now.Add(-30 * time.Second), AgeSeconds: 600, IdleSeconds: 30, TTLSeconds: 120, TTLLeftSeconds: 90}}}
	if diff := cmp.Diff(want, decode[view.HolderPage](t, body)); diff != "" {
		t.Error(diff)
	}
}

func TestFiltersSelect(t *testing.T) {
	b := newBench(t)
	b.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: "u1"}, caps)
	b.engine.Hold(lease.Holder{Tenant: "acme", Project: "paper", User: "u2", Type: "tex", Resource: "tex2pdf", Pod: "pod-b"}, caps)
	b.engine.Hold(lease.Holder{Tenant: "other", Project: "thesis", User: "u1"}, caps)
	gone := b.engine.Hold(lease.Holder{Tenant: "other", Project: "thesis", User: "u3"}, caps)
	if _, err := b.engine.Revoke(t.Context(), gone, lease.Cause{Reason: lease.ReasonRevoke}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{
		"": 3, "tenant=acme": 2, "tenant=acme&project=thesis": 1, "user=u1": 2, "resource=tex2pdf": 1, "type=tex": 1, "pod=pod-b": 1,
		"pod=pod-c": 0, "state=REVOKED": 1, "state=HELD,REVOKED": 4, "tenant=acme&state=REVOKED": 0, "tenant=%3Cscript%3E": 0,
	} {
		status, body := b.operator("GET", admin.InternalPath+"holders?"+query)
		if got := len(decode[view.HolderPage](t, body).Holders); status != 200 || got != want {
			t.Errorf("?%s: %d with %d holders, want %d", query, status, got, want)
		}
	}
	for query, want := range map[string]int{"": 12, "resource=tex2pdf": 4, "level=global": 2, "tenant=other": 4, "tenant=acme&level=user": 2, "project=paper": 1, "drifted=true": 1} {
		b.engine.Drift("browser|tenant|acme", 2)
		status, body := b.operator("GET", admin.InternalPath+"counters?"+query)
		if got := decode[view.CounterPage](t, body).Counters; status != 200 || len(got) != want {
			t.Errorf("counters?%s: %d with %d counters, want %d: %s", query, status, len(got), want, body)
		}
	}
}

func TestBadInputIsRefusedWithAReason(t *testing.T) {
	b := newBench(t)
	b.engine.Hold(lease.Holder{Token: "SAMEBEGINNINGAAAAAAAAAAAAA", Tenant: "acme"}, nil)
	b.engine.Hold(lease.Holder{Token: "SAMEBEGINNINGBBBBBBBBBBBBB", Tenant: "acme"}, nil)
	for name, c := range map[string]struct {
		method, path string
		want         int
		says         string
	}{
		"limit 0":                   {"GET", "holders?limit=0", 400, "limit"},
		"limit beyond the largest":  {"GET", "holders?limit=1001", 400, "limit"},
		"limit that is no number":   {"GET", "holders?limit=ten", 400, "limit"},
		"an unknown state":          {"GET", "holders?state=held", 400, "PENDING, HELD, REVOKED"},
		"a misspelt filter":         {"GET", "holders?tennant=acme", 400, "unknown parameter"},
		"a filter twice":            {"GET", "holders?tenant=acme&tenant=other", 400, "more than once"},
		"a broken query":            {"GET", "holders?tenant=%zz", 400, "query"},
		"a control character":       {"GET", "holders?tenant=a%00b", 400, "characters"},
		"text that is no UTF-8":     {"GET", "holders?tenant=%ff", 400, "characters"},
		"a very long filter":        {"GET", "holders?tenant=" + strings.Repeat("a", 300), 400, "longer"},
		"an unknown level":          {"GET", "counters?level=planet", 400, "level"},
		"drifted that is no bool":   {"GET", "counters?drifted=perhaps", 400, "drifted"},
		"a token of 3 characters":   {"GET", "holders/SAM", 400, "first 4"},
		"a token of two holders":    {"GET", "holders/SAMEBEG", 400, "more than one"},
		"an unknown token":          {"GET", "holders/nobody-has-this", 404, "begins with"},
		"revoking an unknown token": {"POST", "holders/nobody-has-this/revoke", 404, "begins with"},
		"revoking two at once":      {"POST", "holders/SAMEBEG/revoke", 400, "more than one"},
		"a token with a slash":      {"GET", "holders/a%2Fb%2Fc%2F..%2Fd", 404, "begins with"},
		"a pod that nobody knows":   {"POST", "pods/pod-zzz/revoke", 404, "no pod"},
		"no name":                   {"GET", "definition?tenant=acme&project=thesis", 400, "name"},
		"a name that no lease has":  {"GET", "definition?name=br%2Fow&tenant=acme&project=thesis", 400, "letters, digits"},
		"a name that no tenant has": {"GET", "definition?name=browser&tenant=ac%2Fme&project=thesis", 400, "names no tenant"},
		"a name of two dots":        {"GET", "definition?name=browser&tenant=acme&project=..", 400, "names no project"},
		"an undefined lease":        {"GET", "definition?name=typo&tenant=acme&project=thesis", 404, "not defined"},
		"a broken definition":       {"GET", "definition?name=broken&tenant=acme&project=thesis", 422, "broken.yaml:3: levels.user"},
		"a document out of reach":   {"GET", "definition?name=away&tenant=acme&project=thesis", 503, "the definition cannot be reached; the gateway's log"},
		"revoking by GET":           {"GET", "holders/SAMEBEG/revoke", 405, "POST"},
		"deleting":                  {"DELETE", "holders", 405, "GET"},
		"an unknown path":           {"GET", "nothing/here", 404, "openapi.json"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := b.operator(c.method, admin.InternalPath+c.path)
			f := decode[admin.Failure](t, body)
			if status != c.want || !strings.Contains(f.Error.Message, c.says) {
				t.Errorf("%d %q, want %d with %q", status, f.Error.Message, c.want, c.says)
			}
			if strings.Contains(body, "hunter2") {
				t.Error("a secret of the store is in the answer")
			}
		})
	}
}

func TestARevocationTakesTheSlotBackOnce(t *testing.T) {
	b := newBench(t)
	tok := b.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: "u1"}, caps)
	path := admin.InternalPath + "holders/" + string(tok[:10]) + "/revoke"
	status, body := b.operator("POST", path)
	got := decode[view.Holder](t, body)
	if status != 200 || got.State != lease.Revoked || got.Revocation == nil || got.Revocation.By != "operator internal token" || !got.Revocation.Handled {
		t.Fatalf("%d %s", status, body)
	}
	_, body = b.operator("GET", admin.InternalPath+"counters?level=user")
	if c := decode[view.CounterPage](t, body).Counters[0]; c.Booked != 0 || c.Count != 0 {
		t.Errorf("the slot is not back: %+v", c)
	}
	b.now = b.now.Add(3 * time.Second)
	status, body = b.operator("POST", path)
	if status != 404 || !strings.Contains(body, "has ended already (revoke, 3s ago)") {
		t.Errorf("revoked twice: %d %s", status, body)
	}
	_, body = b.operator("GET", admin.InternalPath+"events")
	if e := decode[admin.Events](t, body).Events; len(e) != 1 || e[0].Kind != "revoked" || e[0].By != "operator internal token" {
		t.Errorf("events %+v", e)
	}
}

func TestARevocationThatLosesARaceSaysSo(t *testing.T) {
	b := newBench(t)
	tok := b.engine.Hold(lease.Holder{Tenant: "acme", User: "u1"}, nil)
	d := view.View{Engine: racing{b.engine, func() { b.engine.End(tok) }}}
	_, err := d.Revoke(t.Context(), view.Scope{}, string(tok[:10]), "somebody")
	if view.CodeOf(err) != view.NotFound || !strings.Contains(err.Error(), "ended before") {
		t.Errorf("%v", err)
	}
}

// racing ends the holder between the look-up and the mark.
type racing struct {
	*viewtest.Engine
	between func()
}

func (r racing) Revoke(ctx context.Context, t lease.Token, c lease.Cause) (lease.Holder, error) {
	r.between()
	return r.Engine.Revoke(ctx, t, c)
}

func TestAPodsLeasesAreTakenTogether(t *testing.T) {
	b := newBench(t)
	for i := range 5 {
		b.engine.Hold(lease.Holder{Tenant: "acme", User: fmt.Sprint("u", i), Pod: "pod-b"}, caps)
	}
	b.engine.Hold(lease.Holder{Tenant: "acme", User: "stays", Pod: "pod-a"}, caps)
	b.engine.AddPod(lease.Pod{ID: "pod-idle", State: lease.PodRunning})
	for pod, want := range map[string]int{"pod-b": 5, "pod-idle": 0} {
		status, body := b.operator("POST", admin.InternalPath+"pods/"+pod+"/revoke")
		if got := decode[view.PodRevoked](t, body); status != 200 || got.Revoked != want {
			t.Errorf("%s: %d %+v, want %d", pod, status, got, want)
		}
	}
	if status, body := b.operator("POST", admin.InternalPath+"pods/pod-b/revoke"); status != 200 || decode[view.PodRevoked](t, body).Revoked != 0 {
		t.Errorf("a second time: %d %s", status, body)
	}
	if held, _ := b.engine.Find(t.Context(), lease.Filter{}); len(held) != 1 || held[0].User != "stays" {
		t.Errorf("living: %+v", held)
	}
}

func TestADefinitionShowsWhatDoesNotCountOnIt(t *testing.T) {
	b := newBench(t)
	all := map[definition.Level]definition.Cap{definition.User: 1, definition.Global: 6}
	b.engine.Hold(lease.Holder{Tenant: "acme", User: "counts"}, all)
	b.engine.Hold(lease.Holder{Tenant: "acme", User: "before the user level"}, map[definition.Level]definition.Cap{definition.Global: 6})
	b.engine.Hold(lease.Holder{Tenant: "acme", User: "before the renaming", Resource: "chromium", Lease: "browser"}, all)
	b.engine.Hold(lease.Holder{Tenant: "acme", User: "of another lease", Resource: "tex"}, nil)
	b.engine.Hold(lease.Holder{Tenant: "other"}, nil)
	status, body := b.operator("GET", admin.InternalPath+"definition?name=browser&tenant=acme&project=thesis")
	want := []view.Uncounted{{Level: "user", Leases: 2}, {Level: "global", Leases: 1}}
	if diff := cmp.Diff(want, decode[view.Definition](t, body).Uncounted); status != 200 || diff != "" {
		t.Errorf("%d %s", status, diff)
	}
}

func TestSweepAndReconcileAreDoneAndOnRecord(t *testing.T) {
	b := newBench(t)
	b.engine.Hold(lease.Holder{Tenant: "acme", User: "closed", State: lease.Revoked, Revocation: &lease.Revocation{Reason: lease.ReasonClose, At: b.now}}, nil)
	b.engine.Hold(lease.Holder{Tenant: "acme"}, caps)
	b.engine.Drift("browser|tenant|acme", 1)
	status, body := b.ask("POST", admin.InternalPath+"sweep", "Authorization", "Bearer ops")
	if got := decode[lease.Swept](t, body); status != 200 || got.Handled != 1 {
		t.Errorf("%d %s", status, body)
	}
	status, body = b.ask("POST", admin.InternalPath+"reconcile", "Authorization", "Bearer ops")
	if got := decode[view.Reconciled](t, body); status != 200 || got.Corrected != 1 {
		t.Errorf("%d %s", status, body)
	}
	if len(b.audit) != 2 || b.audit[0].Kind != "swept" || b.audit[0].By != "operator ops" || b.audit[1].Kind != "reconciled" || b.audit[1].By != "operator ops" {
		t.Errorf("audit %+v", b.audit)
	}
}

func TestWhoActsWithASharedCredentialIsOnRecordBesideIt(t *testing.T) {
	for name, c := range map[string]struct {
		says []string
		by   string
	}{
		"a user and a host":       {[]string{"root@web-1"}, "operator internal token (root@web-1)"},
		"a domain's user":         {[]string{`ACME\Zoë M.@pc`}, `operator internal token (ACME\Zoë M.@pc)`},
		"nobody":                  {nil, "operator internal token"},
		"two":                     {[]string{"a", "b"}, "operator internal token"},
		"an empty name":           {[]string{""}, "operator internal token"},
		"what steers a terminal":  {[]string{"a\x1b[2J"}, "operator internal token"},
		"what closes the bracket": {[]string{"a) tenantAdmin (b"}, "operator internal token"},
		"a name without end":      {[]string{strings.Repeat("a", 129)}, "operator internal token"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tok := b.engine.Hold(lease.Holder{Tenant: "acme"}, caps)
			head := []string{headers.InternalToken, token}
			for _, s := range c.says {
				head = append(head, headers.Operator, s)
			}
			status, body := b.ask("POST", admin.InternalPath+"holders/"+string(tok)+"/revoke", head...)
			if got := decode[view.Holder](t, body); status != 200 || got.Revocation.By != c.by {
				t.Errorf("%d %s", status, body)
			}
			if b.ask("POST", admin.InternalPath+"sweep", head...); len(b.audit) != 1 || b.audit[0].By != c.by {
				t.Errorf("%+v", b.audit)
			}
			// To the tenant an operator has no name.
			if _, body := b.tenantAdmin("GET", "/brain/acme/admin/leases?state=REVOKED"); !strings.Contains(body, `"by":"an operator"`) || len(c.says) == 1 && c.says[0] != "" && strings.Contains(body, c.says[0]) {
				t.Error(body)
			}
		})
	}
	t.Run("it opens nothing", func(t *testing.T) {
		b := newBench(t)
		if status, _ := b.ask("POST", admin.InternalPath+"sweep", headers.Operator, "ops"); status != 401 {
			t.Error(status)
		}
		// A tenant's admin is who its key says.
		tok := b.engine.Hold(lease.Holder{Tenant: "acme"}, caps)
		status, body := b.ask("POST", "/brain/acme/admin/leases/"+string(tok)+"/revoke", "Authorization", "Bearer acme-admin", headers.Operator, "ops")
		if got := decode[view.Holder](t, body); status != 200 || got.Revocation.By != "tenantAdmin acme-admin" {
			t.Errorf("%d %s", status, body)
		}
	})
}

func TestTheStoreOutOfReachIsSaidWithoutItsSecrets(t *testing.T) {
	b := newBench(t)
	b.engine.Hold(lease.Holder{Tenant: "acme"}, caps)
	b.engine.Fail(errors.New("dial tcp mongodb.internal:27017: refused"))
	for _, route := range []string{"GET holders", "GET holders/tok00001", "POST holders/tok00001/revoke", "GET counters", "GET events", "POST pods/p/revoke", "POST sweep", "POST reconcile"} {
		method, path, _ := strings.Cut(route, " ")
		status, body := b.operator(method, admin.InternalPath+path)
		if status != 503 || !strings.Contains(body, "UNAVAILABLE") || strings.Contains(body, "mongodb.internal") {
			t.Errorf("%s: %d %s", route, status, body)
		}
	}
	if !strings.Contains(b.log.String(), "mongodb.internal") {
		t.Error("the log does not say why")
	}
}

func TestATenantsAdminSeesAndTakesItsOwnOnly(t *testing.T) {
	b := newBench(t)
	mine := b.engine.Hold(lease.Holder{Tenant: "acme", Project: "thesis", User: "u1"}, caps)
	theirs := b.engine.Hold(lease.Holder{Tenant: "other", Project: "secret-project", User: "boss"}, caps)
	b.engine.Happen(lease.Event{Kind: "refused", Tenant: "other", Level: definition.User, User: "boss"})
	b.engine.Happen(lease.Event{Kind: "refused", Tenant: "acme", Level: definition.Global, Resource: "browser"})
	b.engine.Happen(lease.Event{Kind: "revoked", Tenant: "acme", By: "operator ops", Reason: "revoke"})

	t.Run("the overview holds nothing of another tenant and nothing global", func(t *testing.T) {
		status, body := b.tenantAdmin("GET", "/brain/acme/admin/leases")
		if status != 200 {
			t.Fatal(status, body)
		}
		for _, foreign := range []string{"other", "boss", "secret-project", "global", "ops", `"*"`} {
			if strings.Contains(body, foreign) {
				t.Errorf("the answer holds %q: %s", foreign, body)
			}
		}
		o := decode[admin.Overview](t, body)
		if len(o.Holders) != 1 || len(o.Occupancy) != 3 || len(o.Events) != 2 {
			t.Errorf("%+v", o)
		}
	})
	t.Run("another tenant's token is simply not found", func(t *testing.T) {
		for _, tok := range []string{string(theirs), string(theirs[:10])} {
			status, body := b.tenantAdmin("POST", "/brain/acme/admin/leases/"+tok+"/revoke")
			_, unknown := b.tenantAdmin("POST", "/brain/acme/admin/leases/"+strings.Replace(tok, "tok", "xyz", 1)+"/revoke")
			if status != 404 || strings.Replace(unknown, "xyz", "tok", 1) != body {
				t.Errorf("%d %s differs from an unknown token: %s", status, body, unknown)
			}
		}
		if _, err := b.engine.Revoke(t.Context(), theirs, lease.Cause{Tenant: "acme"}); !errors.Is(err, lease.ErrNotFound) {
			t.Error("the engine would have taken it")
		}
	})
	t.Run("another tenant's path is refused", func(t *testing.T) {
		for _, tenant := range []string{"other", "_vance", "nowhere", "..", "%2e%2e", "a%2Fb", strings.Repeat("a", 65)} {
			for _, route := range []string{"GET /brain/" + tenant + "/admin/leases", "POST /brain/" + tenant + "/admin/leases/" + string(theirs) + "/revoke"} {
				method, path, _ := strings.Cut(route, " ")
				if status, body := b.tenantAdmin(method, path); status == 200 || strings.Contains(body, "boss") {
					t.Errorf("%s: %d %s", route, status, body)
				}
			}
		}
	})
	t.Run("nobody else is let in", func(t *testing.T) {
		for _, header := range [][]string{nil, {"Authorization", "Bearer wrong"}, {headers.InternalToken, token}} {
			if status, _ := b.ask("POST", "/brain/acme/admin/leases/"+string(mine)+"/revoke", header...); status != 401 {
				t.Errorf("%v: %d", header, status)
			}
		}
	})
	t.Run("a page of another origin cannot revoke with a kept credential", func(t *testing.T) {
		status, _ := b.ask("POST", "/brain/acme/admin/leases/"+string(mine)+"/revoke", "Authorization", "Bearer acme-admin", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example")
		if held, _ := b.engine.Find(t.Context(), lease.Filter{Token: mine}); status != 403 || len(held) != 1 {
			t.Errorf("%d, holders left %d", status, len(held))
		}
	})
	t.Run("its own is taken, and the record names who", func(t *testing.T) {
		status, body := b.tenantAdmin("POST", "/brain/acme/admin/leases/"+string(mine[:10])+"/revoke")
		if got := decode[view.Holder](t, body); status != 200 || got.Revocation.By != "tenantAdmin acme-admin" {
			t.Errorf("%d %s", status, body)
		}
	})
	t.Run("a tenant in the query is refused", func(t *testing.T) {
		if status, _ := b.tenantAdmin("GET", "/brain/acme/admin/leases?tenant=other"); status != 400 {
			t.Errorf("%d", status)
		}
	})
}

func TestTenThousandHoldersComeInPages(t *testing.T) {
	b := newBench(t)
	want := map[string]bool{}
	for i := range 10_000 {
		tok := fmt.Sprintf("%06dZZZZZZZZZZZZZZZZZZZZ", i)
		want[tok[:10]] = true
		b.engine.Hold(lease.Holder{Token: lease.Token(tok), Tenant: "acme", User: fmt.Sprint("u", i)}, nil)
	}
	after, pages := "", 0
	for {
		status, body := b.operator("GET", admin.InternalPath+"holders?limit=1000&after="+after)
		if status != 200 {
			t.Fatal(status, body)
		}
		var p view.HolderPage
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			t.Fatal(err)
		}
		for _, h := range p.Holders {
			if !want[h.Token] {
				t.Fatalf("%s came twice or was never held", h.Token)
			}
			delete(want, h.Token)
		}
		pages++
		if p.Next == "" {
			break
		}
		if len(p.Next) >= 26 {
			t.Fatalf("next gives a whole token away: %s", p.Next)
		}
		after = p.Next
	}
	if len(want) != 0 || pages != 10 {
		t.Errorf("%d holders were never shown, %d pages", len(want), pages)
	}
}

func TestNamesWithHTMLStayText(t *testing.T) {
	b := newBench(t)
	b.engine.Hold(lease.Holder{Tenant: "acme", Project: "<script>alert(1)</script>", User: `"><img src=x>`}, nil)
	status, body := b.tenantAdmin("GET", "/brain/acme/admin/leases")
	if status != 200 || strings.Contains(body, "<script>") || strings.Contains(body, "<img") {
		t.Errorf("%d %s", status, body)
	}
	if h := decode[admin.Overview](t, body).Holders[0]; h.Project != "<script>alert(1)</script>" {
		t.Errorf("%+v", h)
	}
}

func TestShownTokensAreUniqueAndFindTheirHolder(t *testing.T) {
	b := newBench(t)
	b.engine.Hold(lease.Holder{Token: "SAMEBEGINNINGAAAAAAAAAAAAA", Tenant: "acme", User: "a"}, nil)
	b.engine.Hold(lease.Holder{Token: "SAMEBEGINNINGBBBBBBBBBBBBB", Tenant: "acme", User: "b"}, nil)
	_, body := b.operator("GET", admin.InternalPath+"holders")
	for _, h := range decode[view.HolderPage](t, body).Holders {
		status, body := b.operator("GET", admin.InternalPath+"holders/"+h.Token)
		if got := decode[view.Holder](t, body); status != 200 || got.User != h.User {
			t.Errorf("%s: %d %s", h.Token, status, body)
		}
	}
}

func TestTheDefinitionShowsWhereEachFieldComesFrom(t *testing.T) {
	b := newBench(t)
	status, body := b.operator("GET", admin.InternalPath+"definition?name=browser&tenant=acme&project=thesis")
	want := view.Definition{Name: "browser", Resource: "browser", Levels: map[string]int{"user": 1, "global": 6}, TTLSeconds: 300, WaitMs: 1000,
		Fields: []definition.Field{{Name: "levels.user", Value: "1", Layer: document.System, Ignored: []definition.Ignored{{Layer: document.Bundled, Value: "2", Why: "overridden by system"}}}}}
	if diff := cmp.Diff(want, decode[view.Definition](t, body)); status != 200 || diff != "" {
		t.Error(status, diff)
	}
}

func TestTheServedDocumentDescribesEveryRoute(t *testing.T) {
	b := newBench(t)
	_, body := b.operator("GET", admin.InternalPath+"openapi.json")
	doc, err := openapi3.NewLoader().LoadFromData([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			concrete := strings.NewReplacer("{tenant}", "acme", "{token}", "unknown-token", "{pod}", "pod-x").Replace(path)
			ask := b.operator
			if strings.HasPrefix(path, "/brain/") {
				ask = b.tenantAdmin
			}
			if status, body := ask(method, concrete); status == 405 || status == 404 && strings.Contains(body, "there is nothing here") {
				t.Errorf("%s %s is described and not served", method, path)
			}
		}
	}
	if _, tenant := b.tenantAdmin("GET", "/brain/acme/admin/leases/openapi.json"); tenant != body {
		t.Error("the two faces serve different documents")
	}
}

func TestATenantIsNotAskedForTheInternalToken(t *testing.T) {
	b := newBench(t)
	if status, body := b.ask("GET", "/brain/acme/admin/leases"); status != 401 || strings.Contains(body, "Internal") || strings.Contains(body, "internal") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := b.ask("GET", admin.InternalPath+"holders"); status != 401 || !strings.Contains(body, headers.InternalToken) {
		t.Errorf("%d %s", status, body)
	}
}

func TestRefusalsAreLoggedByTheirRouteAndAtAPace(t *testing.T) {
	b := newBench(t)
	const path = "/brain/acme/admin/leases/tok00001/revoke"
	for range 500 {
		if status, _ := b.ask("POST", path, "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"); status != 403 {
			t.Fatal(status)
		}
	}
	log := b.log.String()
	if n := strings.Count(log, "admin request refused"); n == 0 || n > 50 {
		t.Errorf("%d lines for 500 refusals", n)
	}
	if !strings.Contains(log, `path="POST /brain/{tenant}/admin/leases/{token}/revoke"`) || strings.Contains(log, "tok00001") {
		t.Errorf("the log names no route, or a token: %.300s", log)
	}
}

func TestATenantsOccupancyIsPagedAndHidesNoDrift(t *testing.T) {
	b := newBench(t)
	want := map[string]bool{}
	for i := range 1500 {
		b.engine.Hold(lease.Holder{Tenant: "acme", Resource: "browser", Project: fmt.Sprintf("p%04d", i)}, map[definition.Level]definition.Cap{definition.Project: 2})
		want[fmt.Sprintf("p%04d", i)] = true
	}
	b.engine.Hold(lease.Holder{Tenant: "other", Resource: "browser", Project: "p"}, caps)
	b.engine.Drift("browser|project|acme/p1400", 1)
	const path = "/brain/acme/admin/leases"
	_, body := b.tenantAdmin("GET", path)
	o := decode[admin.Overview](t, body)
	if len(o.Occupancy) != 1001 || o.OccupancyNext == "" {
		t.Fatalf("%d counters, next %q", len(o.Occupancy), o.OccupancyNext)
	}
	if last := o.Occupancy[1000]; last.Project != "p1400" || last.Drift != 1 {
		t.Errorf("the drifted one is not there: %+v", last)
	}
	for _, c := range o.Occupancy[:1000] {
		delete(want, c.Project)
	}
	for after := o.OccupancyNext; after != ""; {
		status, body := b.tenantAdmin("GET", path+"/counters?limit=300&after="+url.QueryEscape(after))
		if status != 200 {
			t.Fatal(status, body)
		}
		page := decode[view.CounterPage](t, body)
		for _, c := range page.Counters {
			if c.Tenant != "acme" || !want[c.Project] {
				t.Fatalf("foreign, or shown twice: %+v", c)
			}
			delete(want, c.Project)
		}
		after = page.Next
	}
	if len(want) != 0 {
		t.Errorf("%d counters were never shown", len(want))
	}
	if status, body := b.tenantAdmin("GET", path+"/counters?drifted=true"); status != 200 || strings.Count(body, `"id"`) != 1 {
		t.Errorf("%d %s", status, body)
	}
	for query, status := range map[string]int{"?tenant=other": 400, "?level=planet": 400, "": 200} {
		if got, body := b.tenantAdmin("GET", path+"/counters"+query); got != status || strings.Contains(body, "other") && status == 200 {
			t.Errorf("%q: %d %s", query, got, body)
		}
	}
	if status, _ := b.ask("GET", path+"/counters"); status != 401 {
		t.Errorf("without a credential: %d", status)
	}
}

// partial is an engine whose store goes away in the middle of a pod's leases.
type partial struct{ *viewtest.Engine }

func (partial) RevokePod(context.Context, lease.PodID, string) (int, error) {
	return 7, errors.New("dial mongodb://root:hunter2@db")
}

func TestAnOrderThatIsCutShortSaysHowFarItCame(t *testing.T) {
	b := newBench(t)
	api, err := admin.New(admin.Options{View: &view.View{Engine: partial{b.engine}}, Authority: authority{tokens: b.tokens}})
	if err != nil {
		t.Fatal(err)
	}
	b.api = api
	status, body := b.operator("POST", admin.InternalPath+"pods/pod-a/revoke")
	f := decode[admin.Failure](t, body)
	if status != 503 || f.Error.Code != view.CutShort || !strings.Contains(f.Error.Message, "7 lease(s) of pod pod-a were revoked") || strings.Contains(body, "hunter2") {
		t.Errorf("%d %s", status, body)
	}
}
