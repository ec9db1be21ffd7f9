package texproxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/tex"
)

// A service's answers come from the gateway's address, where its page is.
func TestNothingOfAServiceRunsInABrowser(t *testing.T) {
	for contentType, sandboxed := range map[string]bool{
		"application/pdf": false, "application/json; charset=utf-8": false, "text/plain": false, "image/png": false, "": false,
		"text/html": true, "text/html; charset=utf-8": true, "TEXT/HTML": true, "image/svg+xml": true, "application/xhtml+xml": true,
		"text/xml": true, "application/xml": true, "application/mathml+xml": true, "text/x-unheard-of": true, "text/html, application/pdf": true, "no type": true,
	} {
		t.Run(contentType, func(t *testing.T) {
			p, _, _ := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Content-Type"] = []string{contentType}
				if contentType == "" {
					w.Header()["Content-Type"] = nil
				}
				w.Header().Set("Content-Security-Policy", "default-src 'self'")
				io.WriteString(w, "<svg onload=alert(1)>")
			})
			for _, r := range []reply{get(t, p.url+"/status"), do(t, request1(t, "POST", p.url+"/render", nil))} {
				policies := r.header.Values("Content-Security-Policy")
				if got := len(policies) == 2 && policies[1] == "sandbox"; got != sandboxed || policies[0] != "default-src 'self'" {
					t.Errorf("the policies are %q; sandboxed has to be %t", policies, sandboxed)
				}
				if r.header.Get("X-Content-Type-Options") != "nosniff" {
					t.Error("a browser may guess the type")
				}
			}
		})
	}
}

func TestNoOrderOfAServiceReachesTheBrowser(t *testing.T) {
	orders := []string{"Clear-Site-Data", "Refresh", "X-Accel-Redirect", "X-Sendfile", "Service-Worker-Allowed", "NEL", "Report-To", "Set-Cookie", "Access-Control-Allow-Origin"}
	p, up, _ := syncPod(t, "texd", func(w http.ResponseWriter, r *http.Request) {
		for _, k := range orders {
			w.Header().Set(k, "x")
		}
		pdf(w, r)
	})
	r := get(t, p.url+"/status", "X-Original-URL", "/x", "X-Method-Override", "DELETE", "Proxy", "http://x", "Remote-User", "root", "CF-Connecting-IP", "1.1.1.1", "X_Api_Key", "x")
	for _, k := range orders {
		if v := r.header.Get(k); v != "" {
			t.Errorf("%s came down: %q", k, v)
		}
	}
	for _, k := range []string{"X-Original-Url", "X-Method-Override", "Proxy", "Remote-User", "Cf-Connecting-Ip", "X_Api_Key"} {
		if v := up.seen()[0].Header.Get(k); v != "" {
			t.Errorf("%s went up: %q", k, v)
		}
	}
}

// deadlines notes how long a writer is given.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.last = t; return nil }

func TestEveryAnswerHasAWriteDeadline(t *testing.T) {
	p, _, _ := onePod(t, nil)
	given := func(d *deadlines) time.Duration { return time.Until(d.last) }
	refused := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	q := &request{p: p.Proxy, w: refused, r: httptest.NewRequest("GET", "/", nil), s: p.services["tex2pdf"]}
	q.refuse(errNotFound)
	if d := given(refused); d <= 0 || d > uploadSilence {
		t.Errorf("a refusal has %s", d)
	}
	up := newUpstream(t)
	up.script(pdf)
	s, err := newService(tex.Service{Name: "s", Preset: "rbehzadan", Upstream: up.URL})
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := p.exchange(t.Context(), s, call{method: "GET", path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	relayed := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	q = &request{p: p.Proxy, w: relayed, r: httptest.NewRequest("GET", "/", nil), s: s}
	q.relay(a)
	if d := given(relayed); d <= 0 || d > uploadSilence {
		t.Errorf("what is buffered when an answer ends has %s", d)
	}
}

func TestAnUploadHasALongestTime(t *testing.T) {
	b := &pacedBody{body: &zeroReader{1 << 20}, rc: http.NewResponseController(httptest.NewRecorder()), start: time.Now().Add(-uploadLongest - time.Second)}
	if n, err := b.Read(make([]byte, 10)); n != 0 || err != errSlow {
		t.Errorf("after %s it gave %d bytes and %v", uploadLongest, n, err)
	}
}
