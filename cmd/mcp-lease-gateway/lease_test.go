package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin"
	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

const internalSecret = "the-internal-token-of-this-test"

// operatorBench is a real engine on the reference store, its admin API as a pod
// serves it, and the commands that reach both.
type operatorBench struct {
	*testing.T
	store    *storetest.Memory
	engine   *lease.Manager
	handled  chan lease.Token
	pod      *httptest.Server
	conf     *config.Gateway
	terminal bool
	stdin    string
	in       io.Reader                                                   // instead of stdin
	open     func(context.Context, *config.Gateway) (lease.Store, error) // nil for the reference store
	audit    func(path string) (string, error)                           // nil for conf's
}

type ender struct{ handled chan lease.Token }

func (e ender) OnRevoked(_ context.Context, h lease.Holder) error {
	e.handled <- h.Token
	return nil
}

// internalTokenOnly is the authority of a pod without credentials.
type internalTokenOnly struct{}

func (internalTokenOnly) Operator(r *http.Request) (string, error) {
	return "internal token", admin.InternalToken(r, []string{internalSecret})
}

func (internalTokenOnly) TenantAdmin(*http.Request, string) (string, error) {
	return "", admin.ErrForbidden
}

type someDefinitions struct{ definition.Resolver }

func (someDefinitions) Fresh(_ context.Context, _, _, name string) (*definition.Merged, error) {
	if name != "browser" {
		return nil, &definition.Error{Lease: name, Unknown: true}
	}
	return &definition.Merged{Definition: definition.Definition{Name: "browser", Resource: "browser", TTL: 2 * time.Minute,
		Caps: map[definition.Level]definition.Cap{definition.User: 1}},
		Fields: []definition.Field{
			{Name: "levels.user", Value: "1", Layer: document.Project, Ignored: []definition.Ignored{{Layer: document.System, Value: "2", Why: "overridden by project"}, {Layer: document.Bundled, Value: "3", Why: "overridden by project"}}},
			{Name: "waitMs", Value: "10000"}}}, nil
}

func newOperatorBench(t *testing.T, kind string) *operatorBench {
	t.Helper()
	b := &operatorBench{T: t, store: storetest.NewMemory(nil), handled: make(chan lease.Token, 100)}
	b.store.SetSinglePod(kind == "embedded")
	b.startPod()
	host := strings.TrimPrefix(b.pod.URL, "http://")
	b.conf = &config.Gateway{Path: "gateway.yaml", Internal: config.Internal{Listen: host, Tokens: []string{internalSecret}},
		Pod: config.Pod{Endpoint: host, StaleAfter: time.Minute}, Store: config.Store{Kind: config.StoreKind(kind)}, Documents: config.Documents{Dir: "documents"}, Lease: config.Lease{ReconcileSafety: time.Minute}}
	return b
}

func (b *operatorBench) startPod() {
	b.Helper()
	mux := http.NewServeMux()
	b.pod = httptest.NewServer(mux)
	b.Cleanup(b.pod.Close)
	var err error
	b.engine, err = lease.New(lease.Options{Store: b.store, Pod: lease.Pod{ID: "pod-a", Endpoint: strings.TrimPrefix(b.pod.URL, "http://")}, ReconcileSafety: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	b.engine.Register("mcp", ender{b.handled})
	if err := b.engine.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = b.engine.Stop(context.Background(), false) })
	api, err := admin.New(admin.Options{View: &view.View{Engine: b.engine, Definitions: someDefinitions{}}, Authority: internalTokenOnly{}})
	if err != nil {
		b.Fatal(err)
	}
	mux.Handle(admin.InternalPath, api.Internal())
}

func (b *operatorBench) hold(tenant, project, user string) string {
	b.Helper()
	l, err := b.engine.Acquire(b.Context(), lease.Request{Type: "mcp", Tenant: tenant, Project: project, User: user, HolderRef: "browser",
		Definition: &definition.Definition{Name: "browser", Resource: "browser", TTL: 2 * time.Minute, Label: "browser",
			Caps: map[definition.Level]definition.Cap{definition.User: 5, definition.Tenant: 50, definition.Global: 100}},
		Payload: lease.Payload{"sessionId": "upstream-secret"}})
	if err != nil {
		b.Fatal(err)
	}
	return l.Ref().Token.Short()
}

// run gives a command line; it returns the exit code and what was printed.
func (b *operatorBench) run(args ...string) (code int, out, errs string) {
	b.Helper()
	deps := leaseDeps{
		config: func(path string) (*config.Gateway, error) {
			if path != "gateway.yaml" {
				return nil, fmt.Errorf("%s: the file cannot be read", path)
			}
			return b.conf, nil
		},
		audit: func(path string) (string, error) {
			if b.audit != nil {
				return b.audit(path)
			}
			return b.conf.Telemetry.Audit, nil
		},
		token: internalToken,
		store: func(ctx context.Context, c *config.Gateway) (lease.Store, error) {
			if b.open != nil {
				return b.open(ctx, c)
			}
			if b.conf.Embedded() {
				return nil, errors.New("lease store data/leases.db: another process has it open")
			}
			return unclosed{b.store}, nil
		},
		definitions: func(context.Context, *config.Gateway) (definition.Resolver, func(), error) {
			return someDefinitions{}, func() {}, nil
		},
		terminal: func(io.Reader) bool { return b.terminal },
	}
	root := &cobra.Command{Use: "mcp-lease-gateway", SilenceUsage: true, SilenceErrors: true}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(newLeaseCommand(deps))
	var o, e bytes.Buffer
	root.SetArgs(append([]string{"lease"}, args...))
	root.SetIn(cmp.Or[io.Reader](b.in, strings.NewReader(b.stdin)))
	root.SetOut(&o)
	root.SetErr(&e)
	err := root.ExecuteContext(b.Context())
	if err != nil {
		e.WriteString(err.Error())
		code = 1
		var c *codeError
		if errors.As(err, &c) {
			code = c.code
		}
	}
	return code, o.String(), e.String()
}

// unclosed keeps the store for the next command.
type unclosed struct{ *storetest.Memory }

func (unclosed) Close(context.Context) error { return nil }

// everywhere runs a test with both kinds of store: read directly, and through
// the pod.
func everywhere(t *testing.T, test func(t *testing.T, b *operatorBench)) {
	for _, kind := range []string{"mongodb", "embedded"} {
		t.Run("with the "+kind+" store", func(t *testing.T) { test(t, newOperatorBench(t, kind)) })
	}
}

func TestListShowsEveryColumn(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		tok := b.hold("acme", "thesis", "u42")
		b.hold("other", "paper", "u1")
		code, out, errs := b.run("list", "--tenant", "acme")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if code != 0 || len(lines) != 2 {
			t.Fatalf("%d %q %q", code, out, errs)
		}
		if got := strings.Join(strings.Fields(lines[0]), " "); got != "TOKEN TYPE RESOURCE TENANT PROJECT USER POD STATE AGE IDLE TTL LEVELS" {
			t.Errorf("heading %q", got)
		}
		if got := strings.Join(strings.Fields(lines[1]), " "); got != tok+" mcp browser acme thesis u42 pod-a HELD 0s 0s 2m0s user,tenant,global" {
			t.Errorf("row %q", got)
		}
		if strings.Contains(out, "upstream-secret") {
			t.Error("the payload is shown")
		}
		code, out, _ = b.run("list", "-o", "json")
		var page view.HolderPage
		if err := json.Unmarshal([]byte(out), &page); err != nil || code != 0 || len(page.Holders) != 2 {
			t.Errorf("%d %v %s", code, err, out)
		}
		for _, filter := range [][]string{{"--tenant", "x"}, {"--project", "x"}, {"--user", "x"}, {"--resource", "x"}, {"--pod", "x"}, {"--type", "x"}} {
			if code, out, _ := b.run(append([]string{"list"}, filter...)...); code != 0 || strings.Count(out, "\n") != 1 {
				t.Errorf("%v: %d %q", filter, code, out)
			}
		}
	})
}

func TestListOfManyIsWhole(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	for i := range 2500 {
		err := b.store.CreateHolder(t.Context(), lease.Holder{Token: lease.Token(fmt.Sprintf("%05dzzzzzzzzzzzzzzzzzzzzz", i)), Type: "mcp", Resource: "browser", Tenant: "acme", TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
	}
	code, out, _ := b.run("list")
	if code != 0 || strings.Count(out, "\n") != 2501 {
		t.Errorf("%d, %d lines", code, strings.Count(out, "\n"))
	}
}

func TestNamesCannotSteerTheTerminal(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	if err := b.store.CreateHolder(t.Context(), lease.Holder{Token: "abcdefghijklmnopqrstuvwxyz", Tenant: "acme", Project: "\x1b[2J\x1b[31mred", User: "a\tb\nc", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, out, _ := b.run("list")
	if strings.ContainsAny(out, "\x1b") || strings.Count(out, "\n") != 2 {
		t.Errorf("%q", out)
	}
}

func TestJSONShowsNoCharacterThatATerminalObeys(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	const name = "a\u0085b\u009b2Jc\u202ed\u2066e\x7ff\U000e0001g"
	if err := b.store.CreateHolder(t.Context(), lease.Holder{Token: "abcdefghijklmnopqrstuvwxyz", Tenant: "acme", HolderRef: name, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, out, _ := b.run("list", "-o", "json")
	if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("%q", out)
	}
	var page view.HolderPage
	if err := json.Unmarshal([]byte(out), &page); err != nil || page.Holders[0].HolderRef != name {
		t.Errorf("a program reads another name: %v %q", err, page.Holders[0].HolderRef)
	}
}

func TestShowTellsAllButThePayload(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		tok := b.hold("acme", "thesis", "u42")
		code, out, _ := b.run("show", tok[:6])
		for _, want := range []string{tok, "HELD", "browser|user|acme/u42", "browser|global|*", "sessionId", "no: it outlives the pod"} {
			if !strings.Contains(out, want) {
				t.Errorf("%d: lacks %q: %s", code, want, out)
			}
		}
		if strings.Contains(out, "upstream-secret") {
			t.Error("the payload is shown")
		}
	})
}

func TestCountersShowDrift(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		b.hold("acme", "thesis", "u42")
		if _, _, ok, err := b.store.Increment(t.Context(), "browser|tenant|acme", 50); err != nil || !ok {
			t.Fatal(ok, err)
		}
		code, out, errs := b.run("counters", "--tenant", "acme")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if code != 0 || len(lines) != 3 {
			t.Fatalf("%d %s", code, out)
		}
		for i, want := range []string{"RESOURCE LEVEL SCOPE COUNT BOOKED CAP DRIFT UPDATED", "browser tenant acme 2 1 50 +1 ! 0s ago", "browser user acme/u42 1 1 5 0 0s ago"} {
			if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
				t.Errorf("line %d: %q, want %q", i, got, want)
			}
		}
		if !strings.Contains(errs, "1 drifted") {
			t.Errorf("stderr %q", errs)
		}
		if _, out, _ := b.run("counters", "--drifted"); strings.Count(out, "\n") != 2 {
			t.Error(out)
		}
		code, out, _ = b.run("counters", "--level", "global")
		if code != 0 || !strings.Contains(out, "*") {
			t.Errorf("%d %s", code, out)
		}
		// The counter is too fresh to be corrected, and that is said.
		code, out, errs = b.run("reconcile")
		if code != 0 || !strings.Contains(out, "corrected 0, removed 0, left 1") || !strings.Contains(out, "browser|tenant|acme") || !strings.Contains(out, "open") {
			t.Errorf("%d %q %q", code, out, errs)
		}
		if b.conf.Store.Kind == "mongodb" { // without a pod; the pod writes it into its audit log
			if events, err := b.store.Events(t.Context(), "", 10); err != nil || len(events) != 1 || events[0].Kind != "reconciled" || !strings.HasPrefix(events[0].By, "operator ") {
				t.Errorf("who reconciled is not on record: %v %+v", err, events)
			}
		}
	})
}

func TestDefinitionShowsLayersAndWhatWasIgnored(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		code, out, _ := b.run("definition", "browser", "--tenant", "acme", "--project", "thesis")
		for _, want := range []string{"levels.user  1      project  system: 2 (overridden by project)", "bundled: 3 (overridden by project)", "waitMs       10000  default"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%d: lacks %q:\n%s", code, want, out)
			}
		}
		if code, _, errs := b.run("definition", "typo", "--tenant", "acme", "--project", "thesis"); code != 3 || !strings.Contains(errs, "not defined") {
			t.Errorf("%d %s", code, errs)
		}
		if code, _, errs := b.run("definition", "br/ow", "--tenant", "acme", "--project", "thesis"); code != 2 || !strings.Contains(errs, "letter") {
			t.Errorf("a name that no lease has: %d %s", code, errs)
		}
		if code, _, _ := b.run("definition", "browser", "--tenant", "acme"); code != 2 {
			t.Errorf("without a project: %d", code)
		}
	})
	t.Run("without a pod it reads the documents here, and says so", func(t *testing.T) {
		b := newOperatorBench(t, "mongodb")
		b.pod.Close()
		b.store = storetest.NewMemory(nil) // no other pod is registered
		code, out, errs := b.run("definition", "browser", "--tenant", "acme", "--project", "thesis")
		if code != 0 || !strings.Contains(out, "levels.user") || !strings.Contains(errs, "no pod answers") {
			t.Errorf("%d %q %q", code, out, errs)
		}
	})
}

func TestRevokeAsksActsAndRunsTheHandler(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		tok := b.hold("acme", "thesis", "u42")
		if code, _, errs := b.run("revoke", tok); code != 2 || !strings.Contains(errs, "--yes") {
			t.Errorf("without a terminal: %d %s", code, errs)
		}
		b.terminal = true
		for _, no := range []string{"", "n\n", "nonsense\n"} {
			b.stdin = no
			if code, _, errs := b.run("revoke", tok); code != 1 || !strings.Contains(errs, "acme/thesis, user u42") || !strings.Contains(errs, "nothing was done") {
				t.Errorf("%q: %d %s", no, code, errs)
			}
		}
		b.stdin = "y\n"
		code, out, errs := b.run("revoke", tok)
		if code != 0 || !strings.Contains(out, "revoked "+tok) {
			t.Fatalf("%d %q %q", code, out, errs)
		}
		if got := <-b.handled; got.Short() != tok {
			t.Errorf("the handler ran for %s", got)
		}
		if code, _, errs := b.run("revoke", tok, "--yes"); code != 3 || !strings.Contains(errs, "ended already (revoke") {
			t.Errorf("twice: %d %s", code, errs)
		}
		code, out, _ = b.run("list", "--revoked")
		row := strings.Join(strings.Fields(out), " ")
		if code != 0 || !strings.Contains(row, "REASON BY REVOKED HANDLER") || !strings.Contains(row, "revoke operator internal token ("+operatorName()+") 0s ago") {
			t.Errorf("%d %s", code, out)
		}
	})
}

// thinking answers yes after a while.
type thinking struct{ pause time.Duration }

func (r thinking) Read(b []byte) (int, error) {
	time.Sleep(r.pause)
	return copy(b, "y\n"), nil
}

func TestTheTimeThatAPersonThinksDoesNotCount(t *testing.T) {
	for _, args := range [][]string{{"revoke", "abcdefghij", "--force"}, {"revoke-pod", "dead", "--force"}} {
		t.Run(args[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &operatorBench{T: t, store: storetest.NewMemory(nil), terminal: true, in: thinking{time.Hour}, conf: &config.Gateway{Store: config.Store{Kind: "mongodb"}}}
				if err := b.store.CreateHolder(t.Context(), lease.Holder{Token: "abcdefghijklmnopqrstuvwxyz", Tenant: "acme", Pod: "dead", TTL: 24 * time.Hour}); err != nil {
					t.Fatal(err)
				}
				if code, out, errs := b.run(append(args, "--timeout", "5s")...); code != 0 || !strings.Contains(out, "revoked") {
					t.Errorf("%d %q %q", code, out, errs)
				}
			})
		})
	}
}

func TestARevocationIsFeltByTheHolderThatCalls(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	l, err := b.engine.Acquire(t.Context(), lease.Request{Type: "mcp", Tenant: "acme", Definition: &definition.Definition{Name: "x", Resource: "x", TTL: time.Minute,
		Caps: map[definition.Level]definition.Cap{definition.Tenant: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	lost := make(chan error)
	go func() {
		for {
			if err := l.Check(t.Context()); err != nil {
				lost <- err
				return
			}
		}
	}()
	if code, _, errs := b.run("revoke", l.Ref().Token.Short(), "--yes"); code != 0 {
		t.Fatal(errs)
	}
	var gone *lease.LostError
	if err := <-lost; !errors.As(err, &gone) || gone.Reason != lease.ReasonRevoke {
		t.Errorf("%v", err)
	}
}

func TestForceNeedsNoPodAndSaysWhatItMeans(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	tok := b.hold("acme", "thesis", "u42")
	b.hold("acme", "thesis", "u43")
	b.pod.Close()
	if err := b.engine.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := b.run("revoke", tok, "--yes"); code != 4 || !strings.Contains(errs, "no pod answers") {
		t.Errorf("without --force: %d %s", code, errs)
	}
	code, out, errs := b.run("revoke", tok, "--yes", "--force")
	if code != 0 || !strings.Contains(out, "no handler has run") || len(b.handled) != 0 {
		t.Fatalf("%d %q %q", code, out, errs)
	}
	_, counters, _ := b.run("counters", "--level", "user")
	if strings.Contains(counters, "u42 1") {
		t.Errorf("the slot is not back:\n%s", counters)
	}
	_, out, _ = b.run("list", "--revoked")
	if !strings.Contains(out, "waiting") {
		t.Errorf("the mark does not say that its handler has not run:\n%s", out)
	}
	code, out, _ = b.run("revoke-pod", "pod-a", "--yes", "--force", "-o", "json")
	var done struct {
		Forced bool
		Note   string
		Result view.PodRevoked
	}
	if err := json.Unmarshal([]byte(out), &done); err != nil || code != 0 || !done.Forced || done.Result.Revoked != 1 || done.Note == "" {
		t.Errorf("%d %v %s", code, err, out)
	}
	events, err := b.store.Events(t.Context(), "", 10)
	if err != nil || len(events) < 2 || events[0].Kind != "forced" || !strings.HasPrefix(events[0].By, "operator ") {
		t.Errorf("%v %+v", err, events)
	}
}

func TestForceOnTheEmbeddedStoreIsRefusedWhileAPodRuns(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	tok := b.hold("acme", "thesis", "u42")
	if code, _, errs := b.run("revoke", tok, "--yes", "--force"); code != 4 || !strings.Contains(errs, "another process has it open") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestRevokePodAndSweep(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		b.hold("acme", "thesis", "u42")
		b.hold("acme", "thesis", "u43")
		if code, _, errs := b.run("revoke-pod", "pod-nobody", "--yes"); code != 3 || !strings.Contains(errs, "no pod") {
			t.Errorf("unknown pod: %d %s", code, errs)
		}
		b.terminal, b.stdin = true, "yes\n"
		code, out, errs := b.run("revoke-pod", "pod-a")
		if code != 0 || !strings.Contains(out, "revoked 2 lease(s)") || !strings.Contains(errs, "(2 now)") {
			t.Errorf("%d %q %q", code, out, errs)
		}
		<-b.handled
		<-b.handled
		code, out, errs = b.run("sweep", "-o", "json")
		var s lease.Swept
		if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
			t.Errorf("%d %v %s %s", code, err, out, errs)
		}
	})
}

func TestAnotherPodIsAskedWhereTheOwnIsDown(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	tok := b.hold("acme", "thesis", "u42")
	b.conf.Pod.Endpoint = closedPort(t)
	if code, out, errs := b.run("revoke", tok, "--yes"); code != 0 {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestEndpointAndTokenFileNeedNoConfiguration(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	tok := b.hold("acme", "thesis", "u42")
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(internalSecret + "\n")
	at := []string{"--config", "nowhere.yaml", "--endpoint", b.pod.URL, "--token-file", file}
	if code, out, errs := b.run(append([]string{"list"}, at...)...); code != 0 || !strings.Contains(out, tok) {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, _, errs := b.run(append([]string{"revoke", tok, "--force", "--yes"}, at...)...); code != 2 || !strings.Contains(errs, "no store") {
		t.Errorf("--force with --endpoint: %d %s", code, errs)
	}
	write("wrong")
	if code, _, errs := b.run(append([]string{"list"}, at...)...); code != 1 || !strings.Contains(errs, "refuses") || strings.Contains(errs, "wrong\n") {
		t.Errorf("a wrong token: %d %s", code, errs)
	}
	write("")
	if code, _, errs := b.run(append([]string{"list"}, at...)...); code != 1 || !strings.Contains(errs, "one line") {
		t.Errorf("an empty token: %d %s", code, errs)
	}
	b.pod.Close()
	write(internalSecret)
	if code, _, errs := b.run(append([]string{"list"}, at...)...); code != 4 || strings.Contains(errs, internalSecret) {
		t.Errorf("no pod: %d %s", code, errs)
	}
}

func TestSomethingElseAtTheEndpointIsSaid(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "counters") {
			http.Redirect(w, r, "http://127.0.0.1:1/steal", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("<html>hello"))
	}))
	defer other.Close()
	b.conf.Pod.Endpoint = strings.TrimPrefix(other.URL, "http://")
	for _, command := range []string{"list", "counters"} {
		if code, _, errs := b.run(command); code != 4 || !strings.Contains(errs, "not") {
			t.Errorf("%s: %d %s", command, code, errs)
		}
	}
}

func TestWhatAPodCannotReachIsSaidOnce(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := "the lease store"
		if strings.Contains(r.URL.Path, "definition") {
			what = "the definition"
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, `{"error":{"code":"UNAVAILABLE","message":"%s cannot be reached; the gateway's log says why"}}`, what)
	}))
	defer away.Close()
	b.conf.Pod.Endpoint = strings.TrimPrefix(away.URL, "http://")
	for what, args := range map[string][]string{"the lease store": {"list"}, "the definition": {"definition", "browser", "--tenant", "acme", "--project", "thesis"}} {
		if code, _, errs := b.run(args...); code != 4 || errs != what+" cannot be reached; the gateway's log says why" {
			t.Errorf("%d %q", code, errs)
		}
	}
}

func TestWrongUsageIsExitCode2(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	for _, args := range [][]string{{}, {"nonsense"}, {"list", "extra"}, {"list", "--nonsense"}, {"list", "-o", "yaml"}, {"list", "--tenant", ""}, {"show"}, {"show", "a", "b"},
		{"show", ""}, {"show", "ab"}, {"revoke"}, {"revoke-pod"}, {"definition"}, {"list", "--endpoint", "http://127.0.0.1:1"}, {"list", "--timeout", "0s"}, {"counters", "--level", "planet"}} {
		if code, out, errs := b.run(args...); code != 2 {
			t.Errorf("%q: %d %q %q", args, code, out, errs)
		}
	}
	if code, _, errs := b.run("show", "unknown-token"); code != 3 || !strings.Contains(errs, "begins with") {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, _ := b.run("list", "--config", "missing.yaml"); code != 1 {
		t.Errorf("a missing gateway.yaml: %d", code)
	}
}

func TestThePodThatIsDownIsExitCode4(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	b.pod.Close()
	for _, args := range [][]string{{"list"}, {"show", "abcdef"}, {"counters"}, {"sweep"}, {"reconcile"}, {"revoke", "abcdef", "--yes"}, {"revoke-pod", "p", "--yes"}} {
		if code, _, errs := b.run(args...); code != 4 || !strings.Contains(errs, "no pod answers") {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
	b.conf.Internal.Tokens = nil
	b.conf.Store.Path = filepath.Join(t.TempDir(), "leases.db")
	if code, _, errs := b.run("list"); code != 4 || !strings.Contains(errs, "internal token") {
		t.Errorf("no token: %d %s", code, errs)
	}
}

func TestHelpExplainsWithAnExample(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	root := newLeaseCommand(leaseDeps{})
	for _, c := range append(root.Commands(), root) {
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		if c.Example == "" || len(c.Long) < 60 || c.Short == "" {
			t.Errorf("%s has no help", c.Name())
		}
	}
	code, out, _ := b.run("revoke", "--help")
	if code != 0 || !strings.Contains(out, "No handler runs then") {
		t.Errorf("%d %s", code, out)
	}
}

func TestCompletionOffersWhatThereIs(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		tok := b.hold("acme", "thesis", "u42")
		root := &cobra.Command{Use: "mcp-lease-gateway"}
		deps := leaseDeps{config: func(string) (*config.Gateway, error) { return b.conf, nil }, token: internalToken,
			store: func(context.Context, *config.Gateway) (lease.Store, error) { return unclosed{b.store}, nil }}
		root.AddCommand(newLeaseCommand(deps))
		for line, want := range map[string]string{"lease revoke ": tok + "\tmcp browser of acme/thesis/u42", "lease list --tenant ": "acme", "lease list --user ": "u42", "lease list --output ": "json"} {
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetErr(io.Discard)
			root.SetArgs(append([]string{"__complete"}, strings.Split(line, " ")...))
			if err := root.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), want) {
				t.Errorf("%q: %v %q", line, err, out.String())
			}
		}
	})
}

func TestCompletionReachesBehindTheFirstThousand(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		for i := range 2500 {
			err := b.store.CreateHolder(t.Context(), lease.Holder{Token: lease.Token(fmt.Sprintf("%010dzzzzzzzzzzzzzzzz", i)), Type: "mcp", Resource: "browser", Tenant: fmt.Sprintf("t%d", i/1000), TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
		}
		root := &cobra.Command{Use: "mcp-lease-gateway"}
		root.AddCommand(newLeaseCommand(leaseDeps{config: func(string) (*config.Gateway, error) { return b.conf, nil }, token: internalToken,
			store: func(context.Context, *config.Gateway) (lease.Store, error) { return unclosed{b.store}, nil }}))
		for line, want := range map[string]string{"lease revoke 000000240": "0000002400 0000002401 0000002402 0000002403 0000002404 0000002405 0000002406 0000002407 0000002408 0000002409",
			"lease show 0000002499": "0000002499", "lease show 9": "", "lease list --tenant t2": "t2", "lease list --tenant x": ""} {
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetErr(io.Discard)
			root.SetArgs(append([]string{"__complete"}, strings.Split(line, " ")...))
			err := root.ExecuteContext(t.Context())
			var got []string
			for l := range strings.Lines(out.String()) {
				if word, _, _ := strings.Cut(strings.TrimSpace(l), "\t"); !strings.HasPrefix(word, ":") {
					got = append(got, word)
				}
			}
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("%q: %v %q", line, err, got)
			}
		}
	})
}

func TestAnAmbiguousTokenIsWrongUsageAndNamesTheCandidates(t *testing.T) {
	everywhere(t, func(t *testing.T, b *operatorBench) {
		for _, tok := range []lease.Token{"abcdefgh1xxxxxxxxxxxxxxxxx", "abcdefgh2xxxxxxxxxxxxxxxxx", "abcdefgi3xxxxxxxxxxxxxxxxx"} {
			if err := b.store.CreateHolder(t.Context(), lease.Holder{Token: tok, Type: "mcp", Resource: "browser", Tenant: "acme", Pod: "pod-a", TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		code, _, errs := b.run("revoke", "abcdefg", "--yes")
		for _, want := range []string{"more than one", "abcdefgh1", "abcdefgh2", "abcdefgi"} {
			if code != 2 || !strings.Contains(errs, want) {
				t.Errorf("%d: lacks %q: %s", code, want, errs)
			}
		}
		if strings.Contains(errs, "xxxx") {
			t.Errorf("a whole token is shown: %s", errs)
		}
		if code, out, _ := b.run("list"); code != 0 || strings.Count(out, "PENDING") != 3 {
			t.Errorf("one was taken: %s", out)
		}
		if code, _, errs := b.run("revoke", "abcdefgh2", "--yes"); code != 0 {
			t.Errorf("a candidate as it is shown: %d %s", code, errs)
		}
	})
}

func TestOnlyStoreAndInternalAreNeeded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := func(string) (string, bool) { return "", false }
	write("store: {kind: embedded, path: here.db}\nsession:\n  keys: [\"${SESSION_KEY}\"]\ninternal:\n  listen: 127.0.0.1:9\ntex:\n- {name: a, preset: rbehzadan, upstream: \"${TEX}\"}\nlease: {reconcileSafety: 5m}\n")
	g, err := loadForLease(path, none)
	if err != nil || g.Internal.Listen != "127.0.0.1:9" || g.Lease.ReconcileSafety != 5*time.Minute || filepath.Base(g.Store.Path) != "here.db" || filepath.Base(g.Documents.Dir) != "documents" {
		t.Errorf("%v %+v", err, g)
	}
	// The files that are delivered, with an operator's environment.
	shell := func(name string) (string, bool) {
		v, ok := map[string]string{"MONGODB_URI": "mongodb://127.0.0.1:1/", "VANCE_INTERNAL_TOKEN": strings.Repeat("t", 32)}[name]
		return v, ok
	}
	for _, delivered := range []string{"../../examples/team/gateway.yaml", "../../deploy/compose/gateway.yaml"} {
		if g, err := loadForLease(delivered, shell); err != nil || g.Store.URI == "" || len(g.Internal.Tokens) == 0 {
			t.Errorf("%s: %v", delivered, err)
		}
	}
	write("listen: 0.0.0.0:8080\ninternal: {listen: \"0.0.0.0:8081\", tokens: [\"${VANCE_INTERNAL_TOKEN}\"]}\npod:\n  endpoint: \"${POD_IP}:8081\"\nstore: {kind: mongodb, uri: \"${MONGODB_URI}\"}\n" +
		"documents: {mongodb: {uri: \"${DOCUMENTS_URI}\", database: d}}\nsession:\n  keys: [\"${SESSION_KEY}\"]\n")
	if g, err := loadForLease(path, shell); err != nil || g.Embedded() || g.Documents != (config.Documents{}) {
		t.Errorf("%v %+v", err, g)
	}
	if _, err := loadForLease(path, none); err == nil || !strings.Contains(err.Error(), "VANCE_INTERNAL_TOKEN") {
		t.Errorf("nothing in the environment: %v", err)
	}
	for text, says := range map[string]string{
		"session:\n  keys: [\"${SESSION_KEY}\"]\nstore:\n  kind: carrier-pigeon\n": "gateway.yaml:4",
		"{session: {keys: [\"${SESSION_KEY}\"]}}":                                  "SESSION_KEY",
		"store: [": "gateway.yaml",
	} {
		write(text)
		if _, err := loadForLease(path, none); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := loadForLease(path+".none", none); err == nil {
		t.Error("a missing file is taken")
	}
}
