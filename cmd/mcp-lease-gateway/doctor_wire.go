package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// maxDoctorBody is the longest answer that the doctor reads, and maxDoctorText the
// most that it reads of a refusal.
const (
	maxDoctorBody = 64 << 20
	maxDoctorText = 4 << 10
)

// doctorWire is the HTTP below the doctor's client. It adds the credential, which
// mcp-go leaves out of a DELETE, and keeps what mcp-go makes its own words of: the
// status and the text of a refusal, and the answer to a DELETE.
type doctorWire struct {
	host   string
	header http.Header

	mu      sync.Mutex
	refused doctorRefusal
	deleted int // HTTP status of the latest DELETE, 0 before one
}

// doctorRefusal is an answer with an HTTP status of 400 or more.
type doctorRefusal struct {
	status int
	code   int    // JSON-RPC, 0 where it has none
	text   string // the error's own where it is JSON
}

func newDoctorWire(host string, header http.Header) *doctorWire {
	return &doctorWire{host: host, header: header}
}

// client is an HTTP client on the wire. A credential follows no redirect.
func (w *doctorWire) client() *http.Client {
	return &http.Client{
		Transport:     w,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// RoundTrip implements http.RoundTripper.
func (w *doctorWire) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != w.host {
		return nil, errors.New("the doctor asks no host but the URL's")
	}
	r = r.Clone(r.Context())
	for name, values := range w.header {
		r.Header[name] = values
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Method == http.MethodDelete {
		w.deleted = resp.StatusCode
	}
	if resp.StatusCode < http.StatusBadRequest {
		resp.Body = &boundedBody{io.LimitReader(resp.Body, maxDoctorBody), resp.Body}
		return resp, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDoctorText))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	w.refused = readRefusal(resp.StatusCode, text)
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp, nil
}

// boundedBody is a body of which no more than its limit is read.
type boundedBody struct {
	io.Reader
	io.Closer
}

func readRefusal(status int, body []byte) doctorRefusal {
	f := doctorRefusal{status: status, text: strings.TrimSpace(string(body))}
	var message struct {
		Error struct {
			Code    int
			Message string
		}
	}
	if json.Unmarshal(body, &message) == nil && message.Error.Message != "" {
		f.code, f.text = message.Error.Code, message.Error.Message
	}
	return f
}

// forget makes the next refusal the only one that is known.
func (w *doctorWire) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused, w.deleted = doctorRefusal{}, 0
}

func (w *doctorWire) refusal() doctorRefusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

func (w *doctorWire) deleteStatus() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deleted
}

// secrets are the values that nothing may print, in the forms that a server could
// quote them in.
func (w *doctorWire) secrets() []string {
	var all []string
	for _, values := range w.header {
		for _, v := range values {
			all = append(all, v)
			if _, credential, found := strings.Cut(v, " "); found {
				all = append(all, credential)
			}
		}
	}
	return all
}
