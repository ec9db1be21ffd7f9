package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/egress"
	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
)

func client(t *testing.T, allow ...string) *Client {
	t.Helper()
	p, err := egress.New(allow)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(func() *egress.Policy { return p })
	t.Cleanup(c.CloseIdle)
	return c
}

func serve(t *testing.T, h http.HandlerFunc) *url.URL {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestRequestsAreMarkedAsTheGatewaysOwn(t *testing.T) {
	got := make(chan []string, 1)
	u := serve(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header["X-Vance-Hop"] })
	for _, mark := range []string{"", "a-mark"} {
		c := client(t)
		c.Hop = mark
		resp, err := c.Do(&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}, false)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if marks := <-got; strings.Join(marks, ",") != mark {
			t.Errorf("marks %q, want %q", marks, mark)
		}
	}
}

func TestAuthorize(t *testing.T) {
	c := client(t)
	for _, v := range []struct {
		auth         config.Auth
		caller       string
		header, want string
	}{
		{config.Auth{}, "x", "Authorization", ""},
		{config.Auth{Type: "none"}, "x", "Authorization", ""},
		{config.Auth{Type: "bearer", Token: "t"}, "x", "Authorization", "Bearer t"},
		{config.Auth{Type: "basic", User: "u", Password: "p"}, "x", "Authorization", "Basic dTpw"},
		{config.Auth{Type: "apiKey", HeaderName: "x-api-key", Value: "v"}, "x", "X-Api-Key", "v"},
		{config.Auth{Type: "forward"}, "Bearer mine", "Authorization", "Bearer mine"},
		{config.Auth{Type: "forward"}, "", "Authorization", ""},
	} {
		h := http.Header{}
		if err := c.Authorize(t.Context(), h, v.auth, v.caller, false); err != nil || h.Get(v.header) != v.want {
			t.Errorf("%s: %q, %v", v.auth.Type, h.Get(v.header), err)
		}
	}
	if err := c.Authorize(t.Context(), http.Header{}, config.Auth{Type: "kerberos"}, "", false); err == nil {
		t.Error("an unknown kind passed")
	}
}

func TestOAuth2(t *testing.T) {
	var fetched atomic.Int32
	status := atomic.Int32{}
	status.Store(200)
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		_ = r.ParseForm()
		if r.Form.Get("grant_type") != "client_credentials" || r.Form.Get("audience") != "aud" || r.Form.Get("scope") != "a b" {
			t.Errorf("%v", r.Form)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, `{"access_token":"tok","token_type":"bearer","expires_in":3600,"echo":"s3cret"}`)
	})
	auth := config.Auth{Type: "oauth2", TokenURL: u.String(), ClientID: "id", ClientSecret: "s3cret", Scopes: []string{"a", "b"}, Audience: "aud"}
	c := client(t)
	for range 3 {
		h := http.Header{}
		if err := c.Authorize(t.Context(), h, auth, "", false); err != nil || h.Get("Authorization") != "Bearer tok" {
			t.Fatalf("%v, %v", h, err)
		}
	}
	if fetched.Load() != 1 {
		t.Errorf("%d fetches for three uses", fetched.Load())
	}
	c.Rejected(auth, false)
	status.Store(401)
	err := c.Authorize(t.Context(), http.Header{}, auth, "", false)
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(Why(err), "HTTP 401") {
		t.Errorf("%v", err)
	}
	t.Run("a token URL of an untrusted document obeys egress", func(t *testing.T) {
		before := fetched.Load()
		err := c.Authorize(t.Context(), http.Header{}, auth, "", true)
		if err == nil || fetched.Load() != before || !strings.Contains(Why(err), "egress.allow") {
			t.Errorf("%v", err)
		}
		if strings.Contains(Why(err), "127.0.0.1") {
			t.Errorf("an address in %q", Why(err))
		}
	})
	t.Run("a redirect is not followed", func(t *testing.T) {
		away := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the secret went to another place") })
		from := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, away.String(), http.StatusTemporaryRedirect)
		})
		a := auth
		a.TokenURL = from.String()
		if err := c.Authorize(t.Context(), http.Header{}, a, "", false); err == nil {
			t.Error("no error")
		}
	})
	t.Run("a caller that leaves does not wait", func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		slow := serve(t, func(http.ResponseWriter, *http.Request) { <-hang })
		a := auth
		a.TokenURL = slow.String()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Authorize(ctx, http.Header{}, a, "", false); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

func TestEgress(t *testing.T) {
	var hits atomic.Int32
	u := serve(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	get := func(c *Client, untrusted bool) error {
		req, err := http.NewRequestWithContext(t.Context(), "GET", u.String(), nil)
		if err != nil {
			return err
		}
		resp, err := c.Do(req, untrusted)
		if err == nil {
			httpbody.Drain(resp.Body)
		}
		return err
	}
	var denied *egress.Error
	if err := get(client(t), true); !errors.As(err, &denied) || hits.Load() != 0 {
		t.Errorf("a private address: %v", err)
	}
	if err := get(client(t), false); err != nil {
		t.Errorf("the operator's own document: %v", err)
	}
	policy, err := egress.New([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(func() *egress.Policy { return policy })
	defer c.CloseIdle()
	if err := get(c, true); err != nil {
		t.Errorf("an allowed address: %v", err)
	}
	if policy, err = egress.New(nil); err != nil {
		t.Fatal(err)
	}
	if err := get(c, true); !errors.As(err, &denied) {
		t.Errorf("a pooled connection outlived its policy: %v", err)
	}
}

func TestEnd(t *testing.T) {
	for _, v := range []struct {
		status int
		body   string
		want   Outcome
	}{
		{200, "", Confirmed}, {204, "", Confirmed}, {404, "", Confirmed}, {405, "", Confirmed}, {410, "", Confirmed},
		{400, `{"error":{"message":"Bad Request: No valid session ID provided"}}`, Confirmed}, {400, "something else", Refused},
		{401, "", Refused}, {403, "", Refused}, {302, "", Refused}, {500, "", Unreachable}, {503, "", Unreachable},
	} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "DELETE" || r.Header.Get(HeaderSession) != "sid" || r.Header.Get("Authorization") != "Bearer t" {
				t.Errorf("%s %v", r.Method, r.Header)
			}
			w.WriteHeader(v.status)
			_, _ = io.WriteString(w, v.body)
		})
		got, err := client(t).End(t.Context(), Ending{URL: u, Session: "sid", Auth: config.Auth{Type: "bearer", Token: "t"}})
		if got != v.want || (err == nil) != (got == Confirmed) {
			t.Errorf("%d: %s, %v", v.status, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "sid") {
			t.Errorf("a session id in %v", err)
		}
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	u, _ := url.Parse(gone.URL)
	gone.Close()
	if got, err := client(t).End(t.Context(), Ending{URL: u, Session: "sid"}); got != Unreachable || err == nil {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := client(t).End(t.Context(), Ending{URL: u}); got != Confirmed || err != nil {
		t.Errorf("no session: %s, %v", got, err)
	}
}

func TestGone(t *testing.T) {
	for body, want := range map[string]bool{
		`{"message":"Bad Request: No valid session ID provided"}`: true, `Invalid session ID`: true, `Session not found`: true,
		`unknown session`: true, `session has expired`: true, "Invalid session\n": true, `No session`: true, `Session terminated.`: true,
		`{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}`:          true,
		`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Not Found: Invalid or expired session ID"}}`: true,
		`{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}`:                                            true,
		`{"error":"Invalid or missing session ID"}`:                                                                          true,
		`{"error":"No transport found for sessionId"}`:                                                                       true,
		`Session 0a1b-2c not found`:                            true,
		`Session ID "0a1b" does not exist`:                     true,
		`Session not found or expired; please initialize anew`: true,
		`Could not find session`:                               true,
		`The session is no longer active (restart)`:            true,
		`session closed`:                                       true,

		`{"message":"invalid params"}`: false, `no such tool`: false, ``: false, `null`: false, `{`: false, `[]`: false, `{"error":null}`: false,
		`{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"Session not found"}}`:                          false, // a tool's own
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"tool login: the session not found in db"}}`: false,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"x","data":"session not found"}}`:                false,
		`{"jsonrpc":"2.0","id":7,"result":{"text":"Session not found"}}`:                                          false,
		`user 7: shopping session not found`:                                                                      false,
		`the argument session is invalid for a database login`:                                                    false,
		`Session not found ` + strings.Repeat("x", 600):                                                           false,
	} {
		if Gone(400, []byte(body)) != want {
			t.Errorf("%q is gone: %v", body, !want)
		}
	}
	if !Gone(404, nil) || !Gone(410, nil) || Gone(500, []byte("session not found")) {
		t.Error("status")
	}
}

func TestSessionIDs(t *testing.T) {
	for id, want := range map[SessionID]bool{"abc-~!": true, "": true, "a b": false, "ü": false, "a\n": false, SessionID(strings.Repeat("x", 17<<10)): false} {
		if id.Valid() != want {
			t.Errorf("%.20q", id)
		}
	}
}
