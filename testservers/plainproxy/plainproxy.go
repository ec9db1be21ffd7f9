// Package plainproxy is httputil.ReverseProxy as a user would set it up in front
// of an MCP server: what the gateway is measured against.
package plainproxy

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// New makes a proxy to a server's root; paths pass unchanged. It has what makes
// a ReverseProxy fast: a Transport that keeps enough connections, and buffers
// from a pool.
func New(to *url.URL) http.Handler { return handler(to, &buffers{}) }

// WithoutPool is New without the pool, which few set up: every answer is copied
// through a fresh buffer of 32 KiB.
func WithoutPool(to *url.URL) http.Handler { return handler(to, nil) }

func handler(to *url.URL, pool httputil.BufferPool) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{
			MaxIdleConns:        0, // no limit
			MaxIdleConnsPerHost: 4096,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
		BufferPool: pool,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// net/http closes a request's body before it writes the answer. An upstream
		// that answers at once is faster than the Transport's look for the body's
		// end, which then fails and cuts the answer off. Full duplex leaves the
		// body open.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}

// buffers lends the 32 KiB buffers that bodies are copied through.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
