package main

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
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
	value := func(series string) float64 {
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
	moves := func(series string, to float64) {
		t.Helper()
		eventually(t, series, func() bool { return value(series) == to })
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
	eventually(t, "refused", func() bool { return value(closes+`refused"}`) >= 1 })
	s.Set(func(b *browser.Behavior) { b.DeleteStatus = 0 })
	moves(closes+`confirmed"}`, 2) // the sweeps end what was refused

	session = open(t, mcp)
	srv.CloseClientConnections()
	_ = srv.Listener.Close()
	send(t.Context(), "DELETE", mcp, session, "")
	eventually(t, "unreachable", func() bool { return value(closes+`unreachable"}`) >= 1 })
}
