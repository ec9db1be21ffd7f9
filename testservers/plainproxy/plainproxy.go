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

// New makes a proxy to a server's root; paths pass unchanged.
func New(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{
			MaxIdleConns:        0, // no limit
			MaxIdleConnsPerHost: 4096,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
		BufferPool: &buffers{},
	}
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
