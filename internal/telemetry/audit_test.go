package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

func TestEveryKindIsOneJSONLine(t *testing.T) {
	var out bytes.Buffer
	a, err := OpenAudit("", &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 5, 4, 3, 0, 0, 0, time.FixedZone("there", 7200))
	a.Event(lease.Event{At: at, Kind: "refused", Reason: lease.CodeBusy, Level: definition.User, Resource: "browser", Tenant: "acme", Project: "thesis", User: "line\nbreak"})
	a.Event(lease.Event{Kind: "revoked", By: "operator ops", Token: "abcdefghij"})
	a.Event(lease.Event{Kind: "forced"})
	a.Event(lease.Event{Kind: "swept"})
	a.Changed("documents.dir", "web-1", document.Change{Key: document.Key{Tenant: "acme", Project: "_tenant", Path: "_vance/config/lease/browser.yaml"}}, document.Change{})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 6 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	want := `{"at":"2026-05-04T01:00:00Z","kind":"refused","reason":"LEASE_BUSY","resource":"browser","level":"user","tenant":"acme","project":"thesis","user":"line\nbreak"}`
	if lines[0] != want {
		t.Errorf("got  %s\nwant %s", lines[0], want)
	}
	for i, kind := range []string{"refused", "revoked", "forced", "swept", "definition", "definition"} {
		var r map[string]any
		if err := json.Unmarshal([]byte(lines[i]), &r); err != nil || r["kind"] != kind || r["at"] == "" {
			t.Errorf("line %d: %v %s", i, err, lines[i])
		}
	}
	if !strings.Contains(lines[4], `"by":"documents.dir"`) || !strings.Contains(lines[4], `"pod":"web-1"`) {
		t.Errorf("who and where: %s", lines[4])
	}
	if !strings.Contains(lines[4], `"document":"acme/_tenant/_vance/config/lease/browser.yaml"`) || !strings.Contains(lines[5], `"document":"*"`) {
		t.Errorf("%s\n%s", lines[4], lines[5])
	}
	a.Event(lease.Event{Kind: "late"}) // must not panic
	if strings.Contains(out.String(), "late") {
		t.Error("written after the end")
	}
}

func TestAFileIsAppendedToAndFollowsItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a, err := OpenAudit(path, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Event(lease.Event{Kind: "one"})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a, err = OpenAudit(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	a.Event(lease.Event{Kind: "two"})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 2 {
		t.Fatalf("%v %q", err, text)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}

	f, err := openAuditFile(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	f.looked = time.Now().Add(-lookEvery)
	if _, err := f.Write([]byte("three\n")); err != nil {
		t.Fatal(err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	if fresh, err := os.ReadFile(path); err != nil || string(fresh) != "three\n" {
		t.Errorf("after a rotation: %v %q", err, fresh)
	}
}

func TestAPlaceThatCannotBeWrittenIsRefusedAtStart(t *testing.T) {
	if _, err := OpenAudit(filepath.Join(t.TempDir(), "no", "such", "folder"), nil, nil); err == nil || !strings.Contains(err.Error(), "telemetry.audit") {
		t.Errorf("%v", err)
	}
}

// stuck is a disk that does not answer until it is let go.
type stuck struct{ until chan struct{} }

func (s stuck) Write(b []byte) (int, error) {
	<-s.until
	return len(b), nil
}

func TestNobodyWaitsForTheAuditLog(t *testing.T) {
	s := stuck{make(chan struct{})}
	a, err := OpenAudit("", s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * auditQueue {
		a.Event(lease.Event{Kind: "refused"})
	}
	if a.Dropped() < auditQueue-1 {
		t.Errorf("%d dropped", a.Dropped())
	}
	close(s.until)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOneTenantsRefusalsLeaveRoomInTheAuditLog(t *testing.T) {
	s := stuck{make(chan struct{})}
	a, err := OpenAudit("", s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * auditQueue {
		a.Event(lease.Event{Kind: lease.EventRefused, Tenant: "mallory"})
	}
	lost := a.Dropped()
	a.Event(lease.Event{Kind: lease.EventRevoked, Tenant: "mallory"})
	a.Event(lease.Event{Kind: lease.EventRefused, Tenant: "acme"})
	a.Event(lease.Event{Kind: lease.EventRevoked, Tenant: "acme"})
	if lost < auditQueue || a.Dropped() != lost {
		t.Errorf("%d lost, then %d", lost, a.Dropped())
	}
	close(s.until)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if len(a.refused) != 0 {
		t.Errorf("left: %v", a.refused)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestRecordsThatCannotBeWrittenAreCounted(t *testing.T) {
	a, err := OpenAudit("", io.Writer(broken{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Event(lease.Event{Kind: "refused"})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a.Dropped() != 1 {
		t.Errorf("%d", a.Dropped())
	}
}
