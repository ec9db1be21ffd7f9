//go:build external

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// TestAuditAndTracesOfARealPod sees the audit log on the standard output, spans
// at a collector, and the span's context at the upstream.
func TestAuditAndTracesOfARealPod(t *testing.T) {
	t.Parallel()
	upstream := browser.New(browser.Behavior{})
	defer upstream.Close()
	contexts := make(chan string, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		contexts <- r.Header.Get("traceparent")
		upstream.ServeHTTP(w, r)
	}))
	defer srv.Close()
	spans := make(chan string, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		spans <- string(body)
	}))
	defer collector.Close()
	const leaseDocument = "_vance/_tenant/_vance/config/lease/browser.yaml"
	p := process.Start(t, process.Config{
		Documents: map[string]string{
			"_vance/_tenant/_vance/server-tools/browser.yaml": "type: mcp_server\nparameters: {transport: http, url: \"" + srv.URL + "/mcp\", lease: browser, onBusy: refuse}\n",
			leaseDocument: "name: browser\nlevels: {user: 1}\nwaitMs: 0\n",
		},
		More: "telemetry: {otlpEndpoint: \"" + collector.URL + "\"}",
	})
	openSession(t, p)
	if c := <-contexts; len(c) != 55 {
		t.Errorf("the upstream got the context %q", c)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/mcp/acme/thesis/browser", strings.NewReader(initializeMessage))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	printed(t, p, `"kind":"refused","reason":"LEASE_BUSY"`)

	changed := filepath.Join(p.Dir, "documents", leaseDocument)
	if err := os.WriteFile(changed, []byte("name: browser\nlevels: {user: 2}\nwaitMs: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	printed(t, p, `"kind":"definition","by":"documents.dir","tenant":"_vance","project":"_tenant","pod":"`)
	// Whoever is refused for want of a definition never comes to the engine.
	if err := os.WriteFile(changed, []byte("name: browser\nlevels: {user: none}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition is not valid", func() bool {
		return strings.Contains(send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/browser", "", initializeMessage).body, "levels.user in the system layer")
	})
	printed(t, p, `"kind":"refused","reason":"LEASE_UNAVAILABLE","type":"mcp","lease":"browser","tenant":"acme","project":"thesis","user":"ada","pod":"`)
	if got := send(t.Context(), "GET", p.Internal+"/metrics", "", ""); !strings.Contains(got.body, `vance_lease_acquire_total{outcome="unavailable",resource="other"}`) {
		t.Error("no metric counts it")
	}
	if code, out, errs := operate(t, p, "sweep"); code != 0 {
		t.Errorf("%d %s %s", code, out, errs)
	}
	printed(t, p, `"by":"operator internal token (`+operatorName()+`)","pod":"`)
	told := send(t.Context(), "POST", p.Internal+"/internal/document/changed", "", `{"events":[{"op":"UPSERT","tenantId":"_vance","projectId":"_tenant","path":"_vance/config/lease/told.yaml"}]}`, "X-Vance-Internal-Token: "+process.Token)
	if told.status != 204 {
		t.Errorf("%+v", told)
	}
	printed(t, p, `"kind":"definition","by":"operator internal token",`)

	p.Terminate(t)
	if got := <-spans; !strings.Contains(got, "POST /mcp") || !strings.Contains(got, "upstream POST") {
		t.Errorf("the collector got %q", got)
	}
}

// printed waits for a text in what a pod prints.
func printed(t *testing.T, p *process.Process, text string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !strings.Contains(p.Log(), text) {
		select {
		case <-deadline:
			t.Fatalf("the pod never printed %s", text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
