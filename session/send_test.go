package session

import (
	"io"
	"net/http"
	"testing"
)

// go-sdk, for one, refuses an unknown method with HTTP 400 and a sentence.
func TestAnUpstreamsRefusalInPlainTextPasses(t *testing.T) {
	for _, c := range []struct {
		name        string
		status      int
		contentType string
		passes      bool
	}{
		{"a sentence", 400, "text/plain; charset=utf-8", true},
		{"a sentence without a type", 422, "", true},
		{"a page", 400, "text/html", false},
		{"a sentence of a broken server", 500, "text/plain", false},
		{"a sentence that refuses the credential", 403, "text/plain", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			id := r.open()
			const body = `<b>no such method "no/such/method"</b>`
			r.up.mu.Lock()
			r.up.onCall = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) bool {
				w.Header()["Content-Type"] = nil
				if c.contentType != "" {
					w.Header().Set("Content-Type", c.contentType)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, body)
				return true
			}
			r.up.mu.Unlock()
			a := r.do("POST", id, call(7, "echo"))
			if c.passes {
				if a.status != c.status || a.body != body || a.header.Get("Content-Type") != c.contentType {
					t.Errorf("HTTP %d %q %s", a.status, a.header.Get("Content-Type"), a.body)
				}
				return
			}
			if a.status != 200 || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("HTTP %d %s", a.status, a.body)
			}
		})
	}
}
