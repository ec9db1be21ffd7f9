package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/h1"
	"github.com/vancetope/mcp-lease-gateway/internal/loopback"
	"github.com/vancetope/mcp-lease-gateway/internal/principal"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/internal/tracing"
)

// MCP serves MCP requests; *session.Proxy is one.
type MCP interface {
	Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, server string)
}

// Tex serves TeX requests; *texproxy.Proxy is one.
type Tex interface {
	Serve(w http.ResponseWriter, r *http.Request, c principal.Caller, service, rest string)
}

// Options wires a Server. A handler that is nil answers 404.
type Options struct {
	Config *config.Gateway // as the pod started with it
	Live   *Live
	MCP    MCP
	Tex    Tex
	Tenant http.Handler // /brain/{tenant}/admin/leases…; judges credentials itself
	Page   http.Handler // /insights/{tenant}/leases…; judges credentials itself
	// PageAdmin names the tenant's admin who is signed in to the page with the
	// request, "" for nobody. It may be nil.
	PageAdmin func(r *http.Request, tenant string) string
	Admin     http.Handler // /internal/lease/admin/…; judges credentials itself
	// Signed checks a call that another pod has signed instead of sending the
	// internal token; nil takes none.
	Signed func(w http.ResponseWriter, r *http.Request) error
	// Peers serves the calls of other pods; signature or internal token have been
	// checked.
	Peers http.Handler
	// Certificate is nil where the listeners are plain.
	Certificate *Certificate
	Gatherer    prometheus.Gatherer
	// OwnHop reports whether the value of headers.Hop is a mark of this gateway:
	// then a server document leads to the gateway itself. It may be nil.
	OwnHop func(mark string) bool
	// Ready says why the pod is not ready, or nil.
	Ready func() error
	Log   *slog.Logger
}

// Server is the pod's two listeners.
type Server struct {
	opt            Options
	bounds         bounds
	loopback       bool        // the client listener is bound to loopback
	strangers      *quota.Pool // requests of which no caller is known
	admins         *quota.Pool // requests of tenants' admins
	bodies         *bodyBudget
	lines          *failureLines
	badCredentials *ratelog.Log // callers refused
	badTokens      *ratelog.Log // internal calls refused
	metrics        http.Handler // one for all scrapes, which it bounds together
	stopping       atomic.Bool
	client         *h1.Server
	internal       *h1.Server
	handler        http.Handler // of client
	listener       net.Listener // client
	inside         net.Listener // internal
}

// Listen binds both listeners, so that an address in use is an error before
// anything else has started. Serve answers on them.
func Listen(ctx context.Context, opt Options) (*Server, error) {
	return listen(ctx, opt, usualBounds())
}

func listen(ctx context.Context, opt Options, b bounds) (*Server, error) {
	s := &Server{opt: opt, bounds: b, strangers: newStrangers(), admins: newAdmins(), lines: newFailureLines(opt.Log),
		badCredentials: ratelog.New(opt.Log), badTokens: ratelog.New(opt.Log),
		metrics: promhttp.HandlerFor(opt.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})}
	s.bodies = newBodyBudget(func() config.Limits { return s.opt.Live.Limits() }) // Live comes with Wire
	var lc net.ListenConfig
	var err error
	if s.listener, err = lc.Listen(ctx, "tcp", opt.Config.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if s.inside, err = lc.Listen(ctx, "tcp", opt.Config.Internal.Listen); err != nil {
		_ = s.listener.Close()
		return nil, fmt.Errorf("internal.listen: %w", err)
	}
	s.loopback = loopback.Addr(s.listener.Addr())
	s.listener = progressListener{s.listener, b.stall}
	s.inside = progressListener{s.inside, b.stall}
	client := s.server(s.logged("client", s.serveClient))
	s.handler = client.Handler
	s.client = h1.NewServer(client)
	s.internal = h1.NewServer(s.server(s.logged("internal", s.serveInternal)))
	return s, nil
}

// ClientAddr is the address of the client listener.
func (s *Server) ClientAddr() string { return s.listener.Addr().String() }

// InternalAddr is the address of the internal listener.
func (s *Server) InternalAddr() string { return s.inside.Addr().String() }

// ClientHandler is what answers on the client listener.
func (s *Server) ClientHandler() http.Handler { return s.handler }

// Loopback reports whether the client listener is bound to loopback.
func (s *Server) Loopback() bool { return s.loopback }

// Abandon frees the listeners of a Server that will not serve.
func (s *Server) Abandon() {
	_ = s.listener.Close()
	_ = s.inside.Close()
}

// Wire sets what was not known when the listeners were bound. It must come
// before Serve.
func (s *Server) Wire(change func(*Options)) { change(&s.opt) }

// Serve answers until CloseClients and CloseInternal; then it returns nil.
func (s *Server) Serve() error {
	failed := make(chan error, 2)
	go func() { failed <- s.internal.Serve(s.inside) }()
	go func() { failed <- s.client.Serve(s.listener) }()
	for range 2 {
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
	return nil
}

func (s *Server) server(h http.Handler) *http.Server {
	var conf *tls.Config
	if s.opt.Certificate != nil {
		conf = s.opt.Certificate.config()
	}
	return &http.Server{
		Handler:           tracing.Handler(h),
		TLSConfig:         conf,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.opt.Log.Handler(), slog.LevelDebug),
	}
}
