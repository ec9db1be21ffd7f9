package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/internal/httpbody"
	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/session/routing"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// maxEvent bounds one message of a server on its event stream, in bytes.
const maxEvent = 32 << 20

// SSE is a session with a server of the HTTP+SSE transport (revision 2024-11-05),
// which is asked as one of Streamable HTTP, as an http.RoundTripper.
//
// The first POST opens the server's event stream, with its own headers, and waits
// for the address to which messages are posted. That address must have the origin
// of the stream's. What the server says on the stream goes to the requests that it
// belongs to, see package routing; GET listens to the rest, DELETE closes the
// stream. A status other than 2xx, of the stream or of a POST, is the answer. When
// the stream has ended, the server has no session any more: every answer is then
// that of [routing.Gone].
type SSE struct {
	client    *Client
	at        *url.URL
	untrusted bool
	router    *routing.Router
	log       *ratelog.Log
	ctx       context.Context // of the stream
	stop      context.CancelFunc
	gone      chan struct{}

	err error // why the stream has broken; set before gone is closed

	mu      sync.Mutex // held while the stream is being opened
	post    *url.URL   // where messages go; nil before
	reading bool       // read ends the session, or Close has
}

// NewSSE makes a session that is opened by its first POST. Close must be called.
func NewSSE(c *Client, at *url.URL, untrusted bool, log *slog.Logger) *SSE {
	s := &SSE{client: c, at: at, untrusted: untrusted, log: ratelog.New(log), gone: make(chan struct{})}
	s.router = routing.New(routing.Options{Log: s.log})
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// RoundTrip answers a request, see [SSE].
func (s *SSE) RoundTrip(req *http.Request) (*http.Response, error) {
	switch req.Method {
	case http.MethodPost:
		return s.roundTripPost(req)
	case http.MethodGet:
		return s.router.Listen(req), nil
	case http.MethodDelete:
		select {
		case <-s.gone:
			return routing.Gone(req), nil
		default:
		}
		return routing.Empty(req, http.StatusNoContent), s.Close(req.Context())
	}
	return routing.Refuse(req, http.StatusMethodNotAllowed, "a session takes POST, GET and DELETE"), nil
}

func (s *SSE) roundTripPost(req *http.Request) (*http.Response, error) {
	resp, err := s.posted(req)
	var answered *refusedError
	if errors.As(err, &answered) {
		return answered.resp, nil
	}
	return resp, err
}

func (s *SSE) posted(req *http.Request) (*http.Response, error) {
	to, err := s.open(req)
	if err != nil {
		_ = req.Body.Close()
		return nil, err
	}
	return s.router.Post(req, func(ctx context.Context, message []byte) error { return s.send(ctx, req, to, message) })
}

// open returns the address for messages. The first caller opens the stream, which
// outlives its request: that only bounds the wait for its beginning.
func (s *SSE) open(req *http.Request) (*url.URL, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.post != nil {
		return s.post, nil
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	undo := context.AfterFunc(req.Context(), func() { cancel(context.Cause(req.Context())) })
	to, err := s.connect(ctx, req.Header)
	if !undo() && err == nil {
		err = context.Cause(ctx) // the request has ended, and the stream with it
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	s.post = to
	return to, nil
}

// connect opens the stream, reads the address for messages and starts the reader.
func (s *SSE) connect(ctx context.Context, header http.Header) (*url.URL, error) {
	header = header.Clone()
	header.Del("Content-Type")
	header.Set("Accept", "text/event-stream")
	get := &http.Request{Method: http.MethodGet, URL: s.at, Host: s.at.Host, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	resp, err := s.client.Do(get.WithContext(ctx), s.untrusted)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, refused(resp)
	}
	events := wire.NewEventReader(resp.Body, maxEvent)
	to, err := s.endpoint(resp, events)
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	s.reading = true
	go s.read(resp.Body, events)
	return to, nil
}

// endpoint reads the stream up to the address for messages.
func (s *SSE) endpoint(resp *http.Response, events *wire.EventReader) (*url.URL, error) {
	if media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(media), "text/event-stream") {
		return nil, &ServerError{What: "it has no event stream at this address, so it does not speak the transport sse there"}
	}
	for {
		ev, err := events.Next()
		if err != nil {
			return nil, err
		}
		if ev.Type != "endpoint" {
			continue
		}
		to, err := s.at.Parse(strings.TrimSpace(string(ev.Data)))
		if err != nil || !sameOrigin(to, s.at) || to.User != nil {
			return nil, &ServerError{What: "the address that it names for messages is not at the host of its document's url"}
		}
		return to, nil
	}
}

func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" || u.Scheme != "https" {
			return cmp.Or(p, "80")
		}
		return "443"
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// send posts one message with the headers of the client's request.
func (s *SSE) send(ctx context.Context, req *http.Request, to *url.URL, message []byte) error {
	post := &http.Request{Method: http.MethodPost, URL: to, Host: to.Host, Header: req.Header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(bytes.NewReader(message)), ContentLength: int64(len(message))}
	resp, err := s.client.Do(post.WithContext(ctx), s.untrusted)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return refused(resp)
	}
	httpbody.Drain(resp.Body)
	return nil
}

// read takes the server's messages to their streams until the stream ends.
func (s *SSE) read(body io.Closer, events *wire.EventReader) {
	defer func() { _ = body.Close() }()
	for {
		ev, err := events.Next()
		if err != nil {
			s.end(err)
			return
		}
		if len(ev.Data) == 0 || ev.Type != "" && ev.Type != "message" {
			continue
		}
		if err := s.router.Deliver(s.ctx, ev.Data); err != nil {
			s.log.Write(s.ctx, slog.LevelWarn, "an event of an MCP server is no message", slog.String("why", err.Error()), slog.Int("bytes", len(ev.Data)))
		}
	}
}

func (s *SSE) end(err error) {
	if !errors.Is(err, io.EOF) && s.ctx.Err() == nil {
		s.err = err
	}
	s.router.End()
	close(s.gone)
}

// Gone is closed when no message can come any more.
func (s *SSE) Gone() <-chan struct{} { return s.gone }

// Err says why the stream has broken, once Gone is closed; nil where the server or
// Close has ended it.
func (s *SSE) Err() error {
	select {
	case <-s.gone:
		return s.err
	default:
		return nil
	}
}

// Close ends the session by closing its stream, as this transport has it. It may
// be called again.
func (s *SSE) Close(context.Context) error {
	s.stop()
	s.mu.Lock()
	if !s.reading {
		s.reading = true // nobody opens it any more: s.ctx has ended
		s.end(nil)
	}
	s.mu.Unlock()
	<-s.gone
	return nil
}

// refusedError is a status that the server has answered with.
type refusedError struct{ resp *http.Response }

func (e *refusedError) Error() string {
	return fmt.Sprintf("upstream: it answered HTTP %d", e.resp.StatusCode)
}

// refused keeps the beginning of an answer and gives its connection back.
func refused(resp *http.Response) error {
	beginning := httpbody.Drain(resp.Body)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(beginning)), int64(len(beginning))
	return &refusedError{resp}
}
