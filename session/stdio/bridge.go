package stdio

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/session/routing"
)

// endTimeout bounds the end of the tree of a program that has ended by itself.
const endTimeout = 15 * time.Second

// process is what a Bridge needs of a [Process].
type process interface {
	Send(ctx context.Context, line []byte) error
	Next(ctx context.Context) ([]byte, error)
	Err() error
	Close(ctx context.Context) error
}

// Bridge is a program that answers as an MCP server over HTTP does, as an
// http.RoundTripper. The address and most headers of a request do not matter, its
// context ends what is under way.
//
//   - POST: see [routing.Router.Post]. A message over [MaxLine] is [ErrTooLong], and
//     the program has seen none of it.
//   - GET: the event stream of what belongs to no call. A newer one takes over.
//   - DELETE: ends the program and all its descendants; 204 when they are gone, 503
//     when that is not known.
//   - After the program's end every request is answered as by a server that does
//     not know the session: 404, with an error that says so.
//
// The program's output is read all the time. Only a POST whose client does not
// read holds it up, once routing.MaxQueued messages wait for it.
type Bridge struct {
	process process
	router  *routing.Router
	log     *ratelog.Log
	ctx     context.Context // ends the reader
	stop    context.CancelFunc
	gone    chan struct{}
}

// BridgeOptions are a Bridge's settings.
type BridgeOptions struct {
	// Slow and SlowStart are those of [routing.Options].
	Slow, SlowStart time.Duration
	// Log takes the lines that are no message, at a bounded rate and without what
	// they say; nil drops them.
	Log *slog.Logger
}

// NewBridge serves p, which is the Bridge's from here on. Close must be called,
// also after Gone.
func NewBridge(p *Process, o BridgeOptions) *Bridge { return newBridge(p, o) }

func newBridge(p process, o BridgeOptions) *Bridge {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{process: p, log: ratelog.New(log), gone: make(chan struct{})}
	b.router = routing.New(routing.Options{Slow: o.Slow, SlowStart: o.SlowStart, Log: b.log})
	b.ctx, b.stop = context.WithCancel(context.Background())
	go b.read()
	return b
}

// read takes the program's messages to their streams until it ends.
func (b *Bridge) read() {
	defer b.stop()
	for {
		line, err := b.process.Next(b.ctx)
		switch {
		case err == nil:
			if err := b.router.Deliver(b.ctx, line); err != nil {
				b.unusable(err, len(line))
			}
			continue
		case errors.Is(err, ErrTooLong):
			b.unusable(err, MaxLine)
			continue
		case !errors.Is(err, io.EOF) && b.ctx.Err() == nil:
			b.log.Write(b.ctx, slog.LevelWarn, "reading from an MCP server failed", slog.Any("error", err))
		}
		break
	}
	b.router.End()
	close(b.gone)
	// It may have closed its output only, or left descendants.
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if err := b.process.Close(ctx); err != nil {
		b.log.Write(ctx, slog.LevelError, "an MCP server's program could not be ended", slog.Any("error", err))
	}
}

// unusable says that a line is no message. What it says may be a secret.
func (b *Bridge) unusable(why error, bytes int) {
	b.log.Write(b.ctx, slog.LevelWarn, "a line on an MCP server's standard output is no message", slog.String("why", why.Error()), slog.Int("bytes", bytes))
}

// RoundTrip answers a request, see [Bridge].
func (b *Bridge) RoundTrip(req *http.Request) (*http.Response, error) {
	switch req.Method {
	case http.MethodPost:
		resp, err := b.router.Post(req, b.process.Send)
		if errors.Is(err, ErrClosed) {
			return routing.Gone(req), nil
		}
		return resp, err
	case http.MethodGet:
		return b.router.Listen(req), nil
	case http.MethodDelete:
		return b.delete(req), nil
	}
	return routing.Refuse(req, http.StatusMethodNotAllowed, "a session takes POST, GET and DELETE"), nil
}

func (b *Bridge) delete(req *http.Request) *http.Response {
	select {
	case <-b.gone:
		return routing.Gone(req)
	default:
	}
	if err := b.Close(req.Context()); err != nil {
		b.log.Write(req.Context(), slog.LevelError, "an MCP server's program could not be ended", slog.Any("error", err))
		return routing.Refuse(req, http.StatusServiceUnavailable, "the end of the server's program is not confirmed")
	}
	return routing.Empty(req, http.StatusNoContent)
}

// Gone is closed when no message can come any more: the program has ended, or has
// closed its output, and is then ended.
func (b *Bridge) Gone() <-chan struct{} { return b.gone }

// Err is [Process.Err].
func (b *Bridge) Err() error { return b.process.Err() }

// Close ends the program and all its descendants as [Process.Close] does. It may
// be called again, and each call waits for the same end.
func (b *Bridge) Close(ctx context.Context) error {
	err := b.process.Close(ctx)
	b.stop()
	<-b.gone
	return err
}
