package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// auditLines reads what is JSON of a text, and fails on half a record.
func auditLines(t *testing.T, text string) (all []lease.Event) {
	t.Helper()
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var e lease.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, e)
	}
	return all
}

func kinds(all []lease.Event) string {
	var k []string
	for _, e := range all {
		k = append(k, string(e.Kind))
	}
	return strings.Join(k, " ")
}

func TestWhatIsDoneWithoutAPodIsInTheAuditLog(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	b.conf.Telemetry.Audit = path
	tok := b.hold("acme", "thesis", "u42")
	others := map[string]bool{b.hold("acme", "thesis", "u43"): true, b.hold("other", "paper", "u1"): true, b.hold("other", "paper", "u2"): true}
	whole, err := b.store.Holders(t.Context(), lease.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"revoke", tok, "--yes", "--force"}, {"revoke-pod", "pod-a", "--yes", "--force"}, {"reconcile"}} {
		code, out, errs := b.run(append(args, "-o", "json")...)
		var any map[string]any
		if err := json.Unmarshal([]byte(out), &any); err != nil || code != 0 || errs != "" {
			t.Fatalf("%v: %d %v %q %q", args, code, err, out, errs)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := auditLines(t, string(text))
	if want := "forcing forced forcing forced forced forced forcing reconciled"; kinds(all) != want || strings.Count(string(text), "\n") != 8 {
		t.Fatalf("kinds %s, want %s:\n%s", kinds(all), want, text)
	}
	for i, e := range all {
		if e.By != "operator "+operatorName() || time.Since(e.At) > time.Hour || e.At.Location() != time.UTC || e.Reason == "" {
			t.Errorf("line %d: %+v", i, e)
		}
		if e.Kind == "forced" && (e.Type != "mcp" || e.Resource != "browser" || e.Lease != "browser" || e.Pod != "pod-a" || e.Tenant == "" || e.Project == "" || e.User == "" || e.Reason != "revoke") {
			t.Errorf("line %d lacks something: %+v", i, e)
		}
	}
	if all[0].Token != tok || all[0].User != "u42" || all[1].Token != tok || all[1].User != "u42" {
		t.Errorf("%+v", all[:2])
	}
	for _, e := range all[3:6] {
		if !others[e.Token] {
			t.Errorf("%+v", e)
		}
		delete(others, e.Token) // each once
	}
	if all[0].Reason != "lease revoke" || all[2].Reason != "lease revoke-pod" || all[2].Pod != "pod-a" || all[6].Reason != "lease reconcile" || !strings.Contains(all[7].Reason, "corrected 0") {
		t.Errorf("%+v", all)
	}
	for _, h := range whole {
		if strings.Contains(string(text), string(h.Token)) {
			t.Error("a whole token is in the audit log")
		}
	}
	if strings.Contains(string(text), "upstream-secret") || strings.Contains(string(text), "sessionId") {
		t.Error("a payload is in the audit log")
	}
	if events, err := b.store.Events(t.Context(), "", 100); err != nil || kinds(events) != "reconciled forced forced forced forced" {
		t.Errorf("the store's events: %v %s", err, kinds(events))
	}
}

func TestForceOnTheEmbeddedStoreIsInTheAuditLog(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	b.conf.Store.Path = filepath.Join(t.TempDir(), "leases.db")
	b.conf.Telemetry.Audit = filepath.Join(t.TempDir(), "audit.jsonl")
	b.open = openStore
	s := opened(t, b.conf)
	if err := s.CreateHolder(t.Context(), lease.Holder{Token: "abcdefghijklmnopqrstuvwxyz", Type: "mcp", Resource: "browser", Tenant: "acme", Pod: "dead", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := b.run("revoke", "abcdefghij", "--yes", "--force"); code != 0 || errs != "" {
		t.Fatal(code, errs)
	}
	text, err := os.ReadFile(b.conf.Telemetry.Audit)
	if all := auditLines(t, string(text)); err != nil || kinds(all) != "forcing forced" || all[1].Token != "abcdefghij" {
		t.Errorf("%v %s", err, text)
	}
}

func TestWithoutAFileTheAuditLinesAreOnStandardError(t *testing.T) {
	for name, c := range map[string]struct {
		audit string
		args  []string
	}{"nothing is set": {}, "as it is asked for": {"/nowhere/audit", []string{"--audit-file", "-"}}} {
		t.Run(name, func(t *testing.T) {
			b := newOperatorBench(t, "mongodb")
			b.conf.Telemetry.Audit = c.audit
			tok := b.hold("acme", "thesis", "u42")
			code, out, errs := b.run(append([]string{"revoke", tok, "--yes", "--force", "-o", "json"}, c.args...)...)
			var done forcedResult
			if err := json.Unmarshal([]byte(out), &done); err != nil || code != 0 || !done.Forced {
				t.Fatalf("%d %v %q", code, err, out)
			}
			if all := auditLines(t, errs); kinds(all) != "forcing forced" || strings.Count(errs, "\n") != 2 {
				t.Errorf("%q", errs)
			}
		})
	}
}

func TestNothingIsDoneThatCannotBeRecorded(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ audit, says string }{
		"a folder that is not there":                   {filepath.Join(dir, "none", "audit"), "no such file"},
		"a folder in its place":                        {dir, "is a directory"},
		"a full disk":                                  {"/dev/full", "no space left"},
		"a pipe that nobody reads":                     {pipe, "in the time given"},
		"a telemetry section that cannot be read here": {"", "OTLP is not set"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOperatorBench(t, "mongodb")
			b.conf.Telemetry.Audit = c.audit
			if c.audit == "" {
				b.audit = func(string) (string, error) { return "", errors.New("OTLP is not set") }
			}
			tok := b.hold("acme", "thesis", "u42")
			acts := [][]string{{"revoke", tok, "--yes", "--force", "--timeout", "300ms"}, {"revoke-pod", "pod-a", "--yes", "--force", "--timeout", "300ms"}, {"reconcile", "--timeout", "300ms"}}
			for _, args := range acts {
				code, out, errs := b.run(args...)
				for _, want := range []string{"nothing was done", c.audit, c.says, "--audit-file"} {
					if !strings.Contains(errs, want) {
						t.Errorf("%v: lacks %q: %s", args, want, errs)
					}
				}
				if code != 1 || out != "" {
					t.Errorf("%v: %d %q", args, code, out)
				}
			}
			if code, out, errs := b.run("list"); code != 0 || !strings.Contains(out, "HELD") {
				t.Errorf("looking needs no audit log, and the lease must stand: %d %q %q", code, out, errs)
			}
			if events, err := b.store.Events(t.Context(), "", 10); err != nil || len(events) != 0 {
				t.Errorf("%v %+v", err, events)
			}
			// The way out that the sentence names.
			other := filepath.Join(t.TempDir(), "audit")
			for _, args := range acts {
				if code, _, errs := b.run(append(args, "--audit-file", other)...); code != 0 {
					t.Errorf("%v: %d %s", args, code, errs)
				}
			}
			if text, err := os.ReadFile(other); err != nil || kinds(auditLines(t, string(text))) != "forcing forced forcing forcing reconciled" {
				t.Errorf("%v %s", err, text)
			}
		})
	}
}

// breaks is a store that does something at the first mark.
type breaks struct {
	lease.Store
	once  sync.Once
	first func()
}

func (s *breaks) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
	s.once.Do(s.first)
	return s.Store.MarkHolder(ctx, t, m)
}

// TestAnAuditLogThatBreaksHalfWayEndsTheAct lets the log take what is asked for,
// and nothing behind it.
func TestAnAuditLogThatBreaksHalfWayEndsTheAct(t *testing.T) {
	start := func(t *testing.T) *operatorBench {
		t.Helper()
		b := newOperatorBench(t, "mongodb")
		b.conf.Telemetry.Audit = filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(b.conf.Telemetry.Audit, 0o600); err != nil {
			t.Fatal(err)
		}
		reader, err := os.OpenFile(b.conf.Telemetry.Audit, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b.open = func(context.Context, *config.Gateway) (lease.Store, error) {
			return &breaks{Store: unclosed{b.store}, first: func() { _ = reader.Close() }}, nil
		}
		return b
	}
	t.Run("one lease", func(t *testing.T) {
		b := start(t)
		tok := b.hold("acme", "thesis", "u42")
		code, out, errs := b.run("revoke", tok, "--yes", "--force")
		for _, want := range []string{"the lease " + tok + " is revoked, but the audit log", b.conf.Telemetry.Audit, "on standard error"} {
			if !strings.Contains(errs, want) {
				t.Errorf("lacks %q: %s", want, errs)
			}
		}
		if all := auditLines(t, errs); code != 1 || out != "" || kinds(all) != "forced" || all[0].Token != tok {
			t.Errorf("%d %q %q", code, out, errs)
		}
	})
	t.Run("a pod's leases: what is left stands", func(t *testing.T) {
		b := start(t)
		const held = 200
		for i := range held {
			if err := b.store.CreateHolder(t.Context(), lease.Holder{Token: lease.Token(fmt.Sprintf("%010dzzzzzzzzzzzzzzzz", i)), Tenant: "acme", Pod: "dead", TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		code, out, errs := b.run("revoke-pod", "dead", "--yes", "--force")
		left, err := b.store.Holders(t.Context(), lease.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		taken := held - len(left)
		if want := fmt.Sprintf("%d lease(s) of pod dead were revoked, but the audit log", taken); code != 1 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("lacks %q: %d %q %s", want, code, out, errs)
		}
		if all := auditLines(t, errs); taken == 0 || taken > held/2 || len(all) != taken {
			t.Errorf("%d taken, %d records", taken, len(all))
		}
	})
}

// forgets is a store that takes no events.
type forgets struct{ lease.Store }

func (forgets) AddEvent(context.Context, lease.Event) error {
	return errors.New("the store is read-only")
}

func TestTheAuditLogDoesNotNeedTheStoresEvents(t *testing.T) {
	b := newOperatorBench(t, "mongodb")
	tok := b.hold("acme", "thesis", "u42")
	b.open = func(context.Context, *config.Gateway) (lease.Store, error) { return forgets{unclosed{b.store}}, nil }
	code, out, errs := b.run("revoke", tok, "--yes", "--force")
	if all := auditLines(t, errs); code != 4 || out != "" || kinds(all) != "forcing forced" || all[1].Token != tok {
		t.Errorf("%d %q %q", code, out, errs)
	}
	for _, want := range []string{"what was done stands", "read-only"} {
		if !strings.Contains(errs, want) {
			t.Errorf("lacks %q: %s", want, errs)
		}
	}
	if _, out, _ := b.run("list", "--revoked"); !strings.Contains(out, tok) {
		t.Errorf("it was not revoked: %s", out)
	}
}

func TestTheAuditFlagIsForWhatIsDoneWithoutAPod(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	tok := b.hold("acme", "thesis", "u42")
	for _, args := range [][]string{{"revoke", tok, "--yes"}, {"revoke-pod", "pod-a", "--yes"}, {"reconcile"}} {
		if code, _, errs := b.run(append(args, "--audit-file", "x")...); code != 2 || !strings.Contains(errs, "a pod writes its own audit log") {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
}

func TestTheAuditLogIsReadFromAFileThatIsNotInOrderHere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	none := func(string) (string, bool) { return "", false }
	for _, c := range []struct{ telemetry, want, says string }{
		{"telemetry: {audit: audit.jsonl}\n", filepath.Join(filepath.Dir(path), "audit.jsonl"), ""},
		{"telemetry:\n  audit: /var/log/audit.jsonl\n", "/var/log/audit.jsonl", ""},
		{"", "", ""},
		{"telemetry: {audit: \"${AUDIT}\"}\n", "", "AUDIT"},
		{"telemetry: {audit: a, otlpEndpoint: \"${OTLP}\"}\n", "", "OTLP"},
		{"telemetry: {adit: a}\n", "", "adit"},
	} {
		text := "store: {kind: mongodb, uri: \"mongodb://127.0.0.1:1/\"}\ninternal: {tokens: [" + strings.Repeat("t", 32) + "]}\nsession:\n  keys: [\"${SESSION_KEY}\"]\n" + c.telemetry
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := auditPath(path, none)
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %q %v", c.telemetry, got, err)
		}
	}
	if _, err := auditPath(path+".none", none); err == nil {
		t.Error("a missing file has no audit log")
	}
}
