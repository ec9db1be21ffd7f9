package main

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// TestTheGatewaysSeriesMoveInARealProcess lets each event of the gateway's own
// series happen to a running gateway. The reloads are seen by TestReload.
func TestTheGatewaysSeriesMoveInARealProcess(t *testing.T) {
	t.Parallel()
	s := browser.New(browser.Behavior{})
	defer s.Close()
	srv := httptest.NewServer(s)
	defer srv.Close()
	more := ""
	if _, err := os.Stat("/dev/full"); err == nil {
		more = "telemetry: {audit: /dev/full}" // every record is lost
	}
	p := process.Start(t, process.Config{Documents: documentsFor(srv.URL+"/mcp", "user: 1"), More: more})
	moves := func(series string, to float64) {
		t.Helper()
		eventually(t, series, func() bool { return seriesOf(t, p, series) == to })
	}
	mcp := p.URL + "/mcp/acme/thesis/browser"
	const (
		living  = `vance_gateway_sessions{server="browser"}`
		closes  = `vance_gateway_session_close_total{outcome="`
		request = `vance_gateway_request_seconds_count{method="`
	)

	session := open(t, mcp)
	moves(living, 1)
	moves(request+`initialize",server="browser"}`, 1)
	send(t.Context(), "POST", mcp, session, toolCall("snapshot", "{}"))
	moves(request+`tools/call",server="browser"}`, 1)
	if more != "" {
		if a := send(t.Context(), "POST", mcp, "", initialize); a.code != "LEASE_BUSY" {
			t.Errorf("%+v", a)
		}
		moves("vance_gateway_audit_lost_total", 1)
	}
	send(t.Context(), "DELETE", mcp, session, "")
	moves(living, 0)
	moves(closes+`confirmed"}`, 1)

	session = open(t, mcp)
	s.Set(func(b *browser.Behavior) { b.DeleteStatus = 403 })
	send(t.Context(), "DELETE", mcp, session, "")
	eventually(t, "refused", func() bool { return seriesOf(t, p, closes+`refused"}`) >= 1 })
	s.Set(func(b *browser.Behavior) { b.DeleteStatus = 0 })
	moves(closes+`confirmed"}`, 2) // the sweeps end what was refused

	session = open(t, mcp)
	srv.CloseClientConnections()
	_ = srv.Listener.Close()
	send(t.Context(), "DELETE", mcp, session, "")
	eventually(t, "unreachable", func() bool { return seriesOf(t, p, closes+`unreachable"}`) >= 1 })
}

// seriesOf is a series' value, 0 where there is none.
func seriesOf(t *testing.T, p *process.Process, series string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(send(t.Context(), "GET", p.Internal+"/metrics", "", "").body)
	if m == nil {
		return 0
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTheLeasesSeriesBeginAtZeroInARealProcess sees all outcomes of the operator's
// leases before anything has happened, and then two of them move: a broken inline
// lease, and an idle one.
func TestTheLeasesSeriesBeginAtZeroInARealProcess(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(browser.New(browser.Behavior{}))
	defer srv.Close()
	docs := documentsFor(srv.URL+"/mcp", "user: 1")
	docs["acme/thesis/_vance/server-tools/broken.yaml"] = "type: mcp_server\nparameters: {url: \"" + srv.URL + "/mcp\", lease: {name: shell, levels: {user: 0}}}\n"
	docs["_vance/_tenant/_vance/config/lease/short.yaml"] = "levels: {user: 1}\nttlSeconds: 1\nwaitMs: 0\n"
	docs["_vance/_tenant/_vance/server-tools/short.yaml"] = "type: mcp_server\nparameters: {url: \"" + srv.URL + "/mcp\", lease: short}\n"
	docs["_vance/_tenant/_vance/config/lease/own.yaml"] = "levels: {user: 1}\nwaitMs: 0\n"
	docs["_vance/_tenant/_vance/server-tools/own.yaml"] = "type: mcp_server\nparameters: {url: \"" + srv.URL + "/mcp\", lease: own}\n"
	p := process.Start(t, process.Config{Documents: docs})
	moves := func(series string, to float64) {
		t.Helper()
		eventually(t, series, func() bool { return seriesOf(t, p, series) == to })
	}
	begins := func(series string) {
		t.Helper()
		eventually(t, series+" from the start", func() bool {
			return strings.Contains(send(t.Context(), "GET", p.Internal+"/metrics", "", "").body, series+" 0\n")
		})
	}
	for _, resource := range []string{"browser", "tex2pdf", "short", "other"} {
		for _, outcome := range []string{"success", "busy", "noop", "unavailable"} {
			begins(`vance_lease_acquire_total{outcome="` + outcome + `",resource="` + resource + `"}`)
		}
		for _, outcome := range []string{"ok", "lost", "unavailable"} {
			begins(`vance_lease_check_total{outcome="` + outcome + `",resource="` + resource + `"}`)
		}
		for _, outcome := range []string{"ok", "already-released", "error"} {
			begins(`vance_lease_release_total{outcome="` + outcome + `",resource="` + resource + `"}`)
		}
	}
	for _, reason := range []string{"idle", "pod", "revoke"} {
		begins(`vance_lease_reap_total{reason="` + reason + `"}`)
	}
	if body := send(t.Context(), "GET", p.Internal+"/metrics", "", "").body; strings.Contains(body, `reason="close"`) {
		t.Error("the reap has a reason that cannot move")
	}

	a := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/broken", "", initialize)
	if a.status != 200 || a.code != "LEASE_UNAVAILABLE" || !strings.Contains(a.body, `"permanent":true`) ||
		!strings.Contains(a.message, "the lease shell is not valid: parameters.lease.levels.user in the project layer: at least 1 is wanted") {
		t.Errorf("a broken inline lease: %+v", a)
	}
	moves(`vance_lease_acquire_total{outcome="unavailable",resource="other"}`, 1)
	eventually(t, "the refusal is an event", func() bool {
		return strings.Contains(send(t.Context(), "GET", p.Internal+"/internal/lease/admin/events", "", "", "X-Vance-Internal-Token: "+process.Token).body, `"lease":"shell"`)
	})
	// A session that makes place for one of the same user was refused to nobody.
	open(t, p.URL+"/mcp/acme/thesis/own")
	open(t, p.URL+"/mcp/acme/thesis/own")
	moves(`vance_lease_acquire_total{outcome="success",resource="own"}`, 2)
	if n := seriesOf(t, p, `vance_lease_acquire_total{outcome="busy",resource="own"}`); n != 0 {
		t.Errorf("%v busy for opens that succeeded", n)
	}
	if body := send(t.Context(), "GET", p.Internal+"/internal/lease/admin/events", "", "", "X-Vance-Internal-Token: "+process.Token).body; strings.Contains(body, "LEASE_BUSY") {
		t.Errorf("a refusal of an open that succeeded: %s", body)
	}

	lost := open(t, p.URL+"/mcp/acme/thesis/short")
	moves(`vance_lease_reap_total{reason="idle"}`, 1) // and its line in the log is read when the test ends
	if a := send(t.Context(), "POST", p.URL+"/mcp/acme/thesis/short", lost, toolCall("snapshot", "{}")); !strings.Contains(a.body, "LEASE_LOST") {
		t.Errorf("a call after the idle reap: %+v", a)
	}
	moves(`vance_lease_check_total{outcome="lost",resource="short"}`, 1)
	eventually(t, "the sweep is in the log", func() bool { return strings.Contains(p.Log(), `"msg":"swept"`) })
}
