package main

import (
	"encoding/json"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/testservers/browser"
	"github.com/vancetope/mcp-lease-gateway/testservers/modern"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// doctored is a test server that the doctor visits.
func doctored(t *testing.T, b browser.Behavior) (*browser.Server, string) {
	t.Helper()
	s := browser.New(b)
	up := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Close()
		up.CloseClientConnections()
		up.Close()
	})
	return s, up.URL + "/mcp"
}

// says demands the exit code and words of an output.
func says(t *testing.T, wantCode int, want []string, args ...string) string {
	t.Helper()
	code, out, errs := command(t, append([]string{"doctor"}, args...)...)
	if code != wantCode {
		t.Errorf("exit code %d, want %d", code, wantCode)
	}
	for _, w := range want {
		if !strings.Contains(out+errs, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	if t.Failed() {
		t.Logf("out:\n%serr:\n%s", out, errs)
	}
	return out + errs
}

func TestDoctorSaysWhatAClientSees(t *testing.T) {
	t.Run("of a server with sessions", func(t *testing.T) {
		s, url := doctored(t, browser.Behavior{})
		says(t, 0, []string{"browser 1.0.0 speaks 2025-11-25, with a session", "11 tools: ask", "navigate: at http://x/",
			"opens beside the first", "ended (HTTP 200)", "falls back to a session of 2025-11-25", "-32022"},
			url, "--tool", "navigate", "--args", `{"url": "http://x/"}`)
		if st := s.Stats(); st.Live != 0 || st.Deleted != 3 {
			t.Errorf("it left %d sessions and deleted %d of 3", st.Live, st.Deleted)
		}
	})
	t.Run("of a server without sessions", func(t *testing.T) {
		up := httptest.NewServer(modern.New())
		defer up.Close()
		says(t, 0, []string{"speaks 2025-11-25, without a session", "there is no session to end", "works without a session"}, up.URL+"/mcp")
	})
	t.Run("of a tool that fails", func(t *testing.T) {
		_, url := doctored(t, browser.Behavior{})
		says(t, 1, []string{"snapshot: no page is open", "1 step failed"}, url, "--tool", "snapshot")
	})
	t.Run("of a server that asks for a credential", func(t *testing.T) {
		_, url := doctored(t, browser.Behavior{Auth: browser.Bearer("a-secret")})
		says(t, 1, []string{"HTTP 401: credentials, please", "--token-file"}, url)
	})
	t.Run("of an address where nothing is", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		url := "http://" + l.Addr().String() + "/mcp"
		l.Close()
		says(t, 4, []string{"it cannot be reached: ", "connection refused"}, url)
	})
	t.Run("of a server that does not answer", func(t *testing.T) {
		_, url := doctored(t, browser.Behavior{Faults: map[string]string{"initialize": "hang"}})
		says(t, 4, []string{"no answer within 100ms"}, url, "--timeout", "100ms")
	})
}

func TestDoctorShowsNoSecret(t *testing.T) {
	s, url := doctored(t, browser.Behavior{Auth: browser.Bearer("a-secret")})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, output := range []string{"text", "json"} {
		out := says(t, 0, []string{"Authorization", "[hidden]"},
			url+"?key=another-secret", "--token-file", token, "--header", "X-Key: third-secret", "--tool", "whoami", "-o", output)
		if strings.Contains(out, "-secret") {
			t.Errorf("a secret was printed:\n%s", out)
		}
	}
	if st := s.Stats(); st.Live != 0 || st.UnauthorizedDeletes != 0 {
		t.Errorf("%d sessions are left; %d DELETEs carried no credential", st.Live, st.UnauthorizedDeletes)
	}
}

func TestDoctorPrintsJSON(t *testing.T) {
	_, url := doctored(t, browser.Behavior{})
	var d diagnosis
	if err := json.Unmarshal([]byte(says(t, 0, nil, url, "-o", "json")), &d); err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, f := range d.Steps {
		steps = append(steps, f.Step)
	}
	if got := strings.Join(steps, ", "); !d.OK || d.URL != url || got != "open, list, second session, close, 2026-07-28 first" {
		t.Errorf("%+v", d)
	}
}

func TestDoctorAtAGateway(t *testing.T) {
	_, url := doctored(t, browser.Behavior{})
	server := func(name, more string) string {
		return "name: " + name + "\ntype: mcp_server\nparameters:\n  transport: http\n  url: " + url + "\n  lease: " + name + "\n" + more
	}
	p := process.Start(t, process.Config{Documents: map[string]string{
		"_vance/_tenant/_vance/config/lease/refusing.yaml":    "name: refusing\nlevels: {user: 1}\nwaitMs: 100\n",
		"_vance/_tenant/_vance/server-tools/refusing.yaml":    server("refusing", "  onBusy: refuse\n"),
		"_vance/_tenant/_vance/config/lease/replacing.yaml":   "name: replacing\nlevels: {user: 1}\nwaitMs: 100\n",
		"_vance/_tenant/_vance/server-tools/replacing.yaml":   server("replacing", "  onBusy: replaceOwn\n"),
		"_vance/_tenant/_vance/config/lease/wide.yaml":        "name: wide\nlevels: {user: 5}\n",
		"_vance/_tenant/_vance/server-tools/wide.yaml":        server("wide", ""),
		"_vance/_tenant/_vance/server-tools/unreachable.yaml": "name: unreachable\ntype: mcp_server\nparameters: {transport: http, url: 'http://127.0.0.1:1/mcp'}\n",
	}})
	base := p.URL + "/mcp/acme/thesis/"
	t.Run("a second session is refused in words", func(t *testing.T) {
		says(t, 0, []string{"refused: LEASE_BUSY: the user limit of refusing is reached: 1 of 1 in use", "may try again", "ended (HTTP 204)", "falls back to a session"}, base+"refusing")
	})
	t.Run("a second session replaces the first", func(t *testing.T) {
		says(t, 0, []string{"takes the place of the first, which reads: ", "ended (HTTP 204)"}, base+"replacing")
	})
	t.Run("a second session opens where there is room", func(t *testing.T) {
		says(t, 0, []string{"opens beside the first", "ended (HTTP 204)"}, base+"wide")
	})
	t.Run("a server behind it is down", func(t *testing.T) {
		says(t, 1, []string{"UPSTREAM_UNAVAILABLE"}, base+"unreachable")
	})
	t.Run("there is no such server", func(t *testing.T) {
		says(t, 1, []string{"HTTP 404: there is no such server in this project", "no MCP server at this address"}, base+"nothing")
	})
}

func TestDoctorRefusesAWrongUsage(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no URL", nil, "name one URL"},
		{"a URL without a host", []string{"/mcp"}, "must be one that a client would use"},
		{"a password in the URL", []string{"http://u:a-secret@h/mcp"}, "--token-file or --header"},
		{"an output that is unknown", []string{"http://h/", "-o", "xml"}, "must be text or json"},
		{"arguments that are no object", []string{"http://h/", "--tool", "t", "--args", "[1]"}, "JSON object"},
		{"arguments without a tool", []string{"http://h/", "--args", `{"a":1}`}, "belongs to --tool"},
		{"a header without a value", []string{"http://h/", "--header", "a-secret"}, "'Name: value'"},
		{"no time", []string{"http://h/", "--timeout", "0s"}, "above 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out := says(t, 2, []string{c.want}, c.args...); strings.Contains(out, "a-secret") {
				t.Errorf("a secret was printed: %s", out)
			}
		})
	}
}
