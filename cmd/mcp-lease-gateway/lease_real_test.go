//go:build external

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/gateway/admin/view"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/mongostore"
	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// TestTenThousandHoldersAreListedFromARealStore lists them directly and through
// the pod that has them.
func TestTenThousandHoldersAreListedFromARealStore(t *testing.T) {
	uri, database := mongo.Database(t)
	p := process.Start(t, process.Config{
		Store: "kind: mongodb\nuri: " + uri + "\ndatabase: " + database,
		// The pod must not take the copies for drift while they are being made.
		Lease: "reapInterval: 1s\nreconcileSafety: 1h\npendingTTL: 5s",
	})
	s, err := mongostore.Open(t.Context(), mongostore.Options{URI: uri, Database: database})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(t.Context()) }()
	pods, err := s.Pods(t.Context())
	if err != nil || len(pods) != 1 {
		t.Fatalf("%v %+v", err, pods)
	}
	holdManyInMongo(t, uri, database, s, pods[0].ID)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(process.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, where := range map[string][]string{"directly": nil, "through the pod": {"--endpoint", p.Internal, "--token-file", token}} {
		began := time.Now()
		code, out, errs := operate(t, p, append([]string{"list", "-o", "json"}, where...)...)
		var page view.HolderPage
		if err := json.Unmarshal([]byte(out), &page); err != nil || code != 0 || len(page.Holders) != many {
			t.Errorf("%s: %d %v, %d holders: %s", name, code, err, len(page.Holders), errs)
		}
		code, out, errs = operate(t, p, append([]string{"counters", "-o", "json"}, where...)...)
		var counters view.CounterPage
		if err := json.Unmarshal([]byte(out), &counters); err != nil || code != 0 || len(counters.Counters) != 101 {
			t.Fatalf("%s: %d %v %s", name, code, err, errs)
		}
		for _, c := range counters.Counters {
			if want := map[string]int{"tenant": many, "user": many / 100}[c.Level]; c.Booked != want || c.Drift != 0 {
				t.Errorf("%s: %+v", name, c)
			}
		}
		t.Logf("%s: %s", name, time.Since(began))
	}
}

// TestWhatIsDoneToLeasesIsOnRecord reads the audit log of a real process.
func TestWhatIsDoneToLeasesIsOnRecord(t *testing.T) {
	_, url := upstream(t)
	record := func(kind string) string { return `"kind":"` + kind + `"` }
	t.Run("a close that the upstream does not confirm, and a reconcile", func(t *testing.T) {
		up := browser.New(browser.Behavior{})
		defer up.Close()
		deaf := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			up.ServeHTTP(w, r)
		}))
		defer deaf.Close()
		p := process.Start(t, process.Config{Documents: documentsFor(deaf.URL+"/mcp", "user: 1")})
		session := open(t, p.URL+"/mcp/acme/thesis/browser")
		if got := send(t.Context(), "DELETE", p.URL+"/mcp/acme/thesis/browser", session, ""); got.status/100 != 2 {
			t.Errorf("%+v", got)
		}
		printed(t, p, record("closed")+`,"reason":"close","by":"pod `)
		if code, _, errs := operate(t, p, "reconcile"); code != 0 {
			t.Fatal(errs)
		}
		printed(t, p, record("reconciled"))
	})
	t.Run("a forced revocation stands in the store's events, which every pod shows", func(t *testing.T) {
		uri, database := mongo.Database(t)
		p := process.Start(t, process.Config{Documents: documentsFor(url, "user: 1"), Store: "kind: mongodb\nuri: " + uri + "\ndatabase: " + database})
		open(t, p.URL+"/mcp/acme/thesis/browser")
		code, out, errs := operate(t, p, "list", "-o", "json")
		var page view.HolderPage
		if err := json.Unmarshal([]byte(out), &page); err != nil || code != 0 || len(page.Holders) != 1 {
			t.Fatal(code, err, errs)
		}
		if code, _, errs := operate(t, p, "revoke", page.Holders[0].Token, "--yes", "--force"); code != 0 {
			t.Fatal(errs)
		}
		if code, _, errs := operate(t, p, "reconcile"); code != 0 {
			t.Fatal(errs)
		}
		got := send(t.Context(), "GET", p.Internal+"/internal/lease/admin/events", "", "", "X-Vance-Internal-Token: "+process.Token)
		for _, kind := range []string{"forced", "reconciled"} {
			if got.status != 200 || !strings.Contains(got.body, record(kind)) || !strings.Contains(got.body, `"by":"operator `) {
				t.Errorf("no %s: %+v", kind, got)
			}
		}
	})
}

// TestAForcedActIsInTheAuditLogOfTheGateway runs the built program beside a pod
// and after it, in a shell that lacks the pod's environment.
func TestAForcedActIsInTheAuditLogOfTheGateway(t *testing.T) {
	_, url := upstream(t)
	uri, database := mongo.Database(t)
	c := process.Config{
		Dir:       t.TempDir(),
		Documents: documentsFor(url, "user: 1"),
		Store:     "kind: mongodb\nuri: " + uri + "\ndatabase: " + database,
		More:      "telemetry: {audit: logs/audit.jsonl}\ntex: [{name: a, preset: rbehzadan, upstream: \"${TEX}\"}]",
		Env:       []string{"TEX=http://127.0.0.1:1"},
	}
	if err := os.Mkdir(filepath.Join(c.Dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := process.Start(t, c)
	path := filepath.Join(p.Dir, "logs", "audit.jsonl")
	written := func(want string) []lease.Event {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all := auditLines(t, string(text))
		if kinds(all) != want || strings.Count(string(text), "\n") != len(all) {
			t.Fatalf("%s, want %s:\n%s", kinds(all), want, text)
		}
		return all
	}
	holder := func() view.Holder {
		t.Helper()
		code, out, errs := operate(t, p, "list", "-o", "json")
		var page view.HolderPage
		if err := json.Unmarshal([]byte(out), &page); err != nil || code != 0 || len(page.Holders) != 1 {
			t.Fatal(code, err, out, errs)
		}
		return page.Holders[0]
	}
	session := open(t, p.URL+"/mcp/acme/thesis/browser")
	if got := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", "", initializeMessage); !strings.Contains(got.body, "LEASE_BUSY") {
		t.Fatalf("%+v", got)
	}
	eventually(t, "the refusal is written", func() bool { text, _ := os.ReadFile(path); return len(text) > 0 })
	h := holder()
	code, out, errs := operate(t, p, "revoke", h.Token, "--yes", "--force", "-o", "json")
	if code != 0 || errs != "" || !json.Valid([]byte(out)) {
		t.Fatalf("beside the pod: %d %q %q", code, out, errs)
	}
	all := written("refused forcing forced")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if e := all[2]; !strings.HasPrefix(e.By, "operator "+me.Username+"@") || e.Token != h.Token || e.Tenant != "acme" || e.Project != "thesis" || e.User != "ada" || string(e.Pod) != h.Pod || e.Resource != "browser" || e.Reason != "revoke" || time.Since(e.At) > time.Minute {
		t.Errorf("%+v", e)
	}
	if text, _ := os.ReadFile(path); strings.Contains(string(text), session) || strings.Contains(string(text), "Mcp-Session") {
		t.Error("a session id is in the audit log")
	}

	open(t, p.URL+"/mcp/acme/thesis/browser")
	h = holder()
	p.Kill()
	if code, out, errs := operate(t, p, "revoke-pod", h.Pod, "--yes", "--force"); code != 0 || !strings.Contains(out, "revoked 1 lease(s)") || errs != "" {
		t.Fatalf("after the pod: %d %q %q", code, out, errs)
	}
	written("refused forcing forced forcing forced")

	// Where the line cannot be written nothing is done.
	p = process.Start(t, c)
	open(t, p.URL+"/mcp/acme/thesis/browser")
	h = holder()
	p.Kill()
	if err := os.Rename(filepath.Dir(path), filepath.Dir(path)+".away"); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := operate(t, p, "revoke", h.Token, "--yes", "--force"); code != 1 || out != "" || !strings.Contains(errs, "nothing was done") || !strings.Contains(errs, path) {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if again := holder(); again.Token != h.Token || again.State != lease.Held {
		t.Errorf("%+v", again)
	}
	// What the gateway would print is nothing for what reads -o json.
	code, out, errs = operate(t, p, "revoke", h.Token, "--yes", "--force", "-o", "json", "--audit-file", "/dev/stdout")
	if code != 0 || !json.Valid([]byte(out)) || kinds(auditLines(t, errs)) != "forcing forced" {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

// TestSessionKeysAreRotatedUnderALivingSession takes the three steps of
// docs/upgrade.md, one pod after the other.
func TestSessionKeysAreRotatedUnderALivingSession(t *testing.T) {
	const path = "/mcp/acme/thesis/browser"
	_, url := upstream(t)
	uri, database := mongo.Database(t)
	key := func(b byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) }
	before, after := key(1), key(2)
	c := func(dir string, keys ...string) process.Config {
		return process.Config{Dir: dir, Documents: documentsFor(url, "user: 9"), Store: "kind: mongodb\nuri: " + uri + "\ndatabase: " + database,
			Session: fmt.Sprintf("openWait: 1s\nonShutdown: handover\nkeys: [%s]", strings.Join(keys, ", "))}
	}
	pods := []*process.Process{process.Start(t, c("", before)), process.Start(t, c("", before))}
	sessions := map[string]string{"opened before": open(t, pods[0].URL+path)}
	works := func(step string) {
		t.Helper()
		for name, session := range sessions {
			for i, p := range pods {
				if got := send(t.Context(), "POST", p.URL+path, session, toolCall("snapshot", "{}")); got.status != 200 || got.message != "" {
					t.Errorf("%s: the session %s at pod %d: %+v", step, name, i, got)
				}
			}
		}
	}
	rotate := func(step string, keys ...string) {
		t.Helper()
		for i, p := range pods {
			p.Terminate(t)
			pods[i] = process.Start(t, c(p.Dir, keys...))
			works(fmt.Sprintf("%s, pod %d of 2", step, i+1))
		}
	}
	works("before")
	rotate("the new key last", before, after)
	rotate("the new key first", after, before)
	sessions["opened after"] = open(t, pods[1].URL+path)
	works("both keys")
	old := sessions["opened before"]
	delete(sessions, "opened before")
	rotate("the old key is gone", after)
	for i, p := range pods {
		if got := send(t.Context(), "POST", p.URL+path, old, toolCall("snapshot", "{}")); got.status != 404 {
			t.Errorf("the old key still opens at pod %d: %+v", i, got)
		}
	}
}

// TestLeaseCommandsOverTLS asks a pod that serves its listeners over TLS.
func TestLeaseCommandsOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := selfSigned(t, dir, "pod")
	other, _ := selfSigned(t, dir, "other")
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(process.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	p := process.Launch(t, process.Config{More: fmt.Sprintf("tls: {cert: %s, key: %s}", cert, key)})
	printed(t, p, "serving")
	at := []string{"list", "--endpoint", strings.Replace(p.Internal, "http:", "https:", 1), "--token-file", token}
	eventually(t, "the pod's own configuration vouches for it", func() bool {
		code, out, _ := operate(t, p, "list")
		return code == 0 && strings.Contains(out, "TOKEN")
	})
	if code, out, errs := operate(t, p, append(at, "--ca-file", cert)...); code != 0 || !strings.Contains(out, "TOKEN") {
		t.Errorf("with its certificate: %d %s %s", code, out, errs)
	}
	for name, more := range map[string][]string{"without a certificate": nil, "with another's": {"--ca-file", other}} {
		if code, out, errs := operate(t, p, append(at, more...)...); code != 4 || !strings.Contains(errs, "certificate") || strings.Contains(errs, process.Token) {
			t.Errorf("%s: %d %s %s", name, code, out, errs)
		}
	}
	if code, _, errs := operate(t, p, append(at, "--ca-file", token)...); code != 2 || !strings.Contains(errs, "holds no certificate") {
		t.Errorf("a file without one: %d %s", code, errs)
	}
}

func selfSigned(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestTheREADMEsCurlSessionRuns runs the block of README.md as it stands there,
// at the address of a gateway of this test.
func TestTheREADMEsCurlSessionRuns(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "**curl**")
	_, rest, fenced := strings.Cut(rest, "\n```\n")
	block, _, ended := strings.Cut(rest, "\n```\n")
	const address = "http://127.0.0.1:8080"
	if !found || !fenced || !ended || strings.Count(block, address) != 1 {
		t.Fatalf("README.md has no such block: %q", block)
	}
	up, url := upstream(t)
	documents := documentsFor(url, "user: 1")
	p := process.Start(t, process.Config{Documents: documents, Identity: "anonymous: {tenant: dev, projects: [\"*\"], user: ada}"})
	bash := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", strings.Replace(block, address, p.URL, 1))
	out, err := bash.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`"at https://example.com/"`, "204 No Content"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the session does not say %q:\n%s", want, out)
		}
	}
	if s := up.Stats(); s.Live != 0 || s.DeleteRequests != 1 {
		t.Errorf("upstream %+v", s)
	}
	if strings.Contains(string(out), "LEASE") {
		t.Errorf("%s", out)
	}
}
