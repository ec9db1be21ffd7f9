package routing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// JSON-RPC error codes of the router's own answers.
const (
	codeInvalid = -32600
	codeParse   = -32700
	codeServer  = -32000
	codeSession = -32001
)

// Post takes a client's messages to the peer, each with one call of send, and
// answers as MCP's HTTP transport does: 202 where no request is among them; one
// JSON value where the responses come before anything else, or the client takes no
// events; an event stream where something else comes first or it takes long (see
// Options). It returns when that is known.
//
// A request whose id is that of one in flight (see [wire.MatchKey]), or of one
// that was left and whose late response may still come, is refused with HTTP 400
// and -32600 before the peer sees anything: nobody could tell the responses apart.
// After End every answer is [Gone].
//
// The error is send's, or the cause of the request's context. The request's body
// is closed on return; the response's body ends with the request's context.
func (r *Router) Post(req *http.Request, send func(ctx context.Context, message []byte) error) (*http.Response, error) {
	defer func() { _ = req.Body.Close() }()
	body, err := bytesOf(req.Body)
	if err != nil {
		return nil, err
	}
	env, err := wire.Scan(body)
	if err != nil {
		code := codeInvalid
		if errors.Is(err, wire.ErrSyntax) {
			code = codeParse
		}
		return refusal(req, http.StatusBadRequest, nil, code, err.Error()), nil
	}
	b := newMailbox(req)
	if id := r.enter(b, env, body); id != nil {
		return refusal(req, http.StatusBadRequest, id, codeInvalid, "another request of this session with this id has no response yet, and their responses could not be told apart"), nil
	}
	ctx := req.Context()
	r.until(ctx, b)
	for i := range env.Messages {
		m := &env.Messages[i]
		if m.Method == "notifications/cancelled" {
			r.cancelled(m.Params.Of(body))
		}
		if r.ended() {
			err = ErrEnded
		} else {
			err = send(ctx, m.All.Of(body))
		}
		if err != nil {
			r.leave(b, i > 0 || ctx.Err() != nil)
			if r.ended() {
				return Gone(req), nil
			}
			return nil, err
		}
	}
	if len(b.ids) == 0 {
		r.leave(b, false)
		return Empty(req, http.StatusAccepted), nil
	}
	return r.begin(req, b)
}

// Listen answers a GET with the stream of what belongs to no POST, beginning with
// what was kept for it. It takes over from the stream of an earlier GET, which
// ends. After End the answer is [Gone].
func (r *Router) Listen(req *http.Request) *http.Response {
	if r.ended() {
		return Gone(req)
	}
	b := newMailbox(req)
	b.queue = &r.general
	r.mu.Lock()
	earlier := r.listener
	r.listener = b
	r.mu.Unlock()
	if earlier != nil {
		signal(earlier.wake)
	}
	r.until(req.Context(), b)
	return respondEvents(req, &events{r: r, b: b, ctx: req.Context()})
}

// enter registers a POST. It returns the id of a request that may not be sent.
func (r *Router) enter(b *mailbox, env *wire.Envelope, body []byte) (taken []byte) {
	b.batch = env.Batch
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for i := range env.Messages {
		m := &env.Messages[i]
		if !m.Request() {
			continue
		}
		id := m.ID.Of(body)
		key := wire.MatchKey(id)
		if r.waiting[key] != nil || now.Before(r.abandoned[key]) {
			for _, k := range b.ids {
				delete(r.waiting, k)
			}
			r.settle(b)
			return id
		}
		delete(r.abandoned, key)
		r.waiting[key] = b
		b.ids = append(b.ids, key)
		b.pending++
		if !m.ProgressToken.None() {
			r.progress[wire.MatchKey(m.ProgressToken.Of(body))] = b
		}
		b.opening = b.opening || m.Method == "initialize"
	}
	// What belongs to no request does not go to a stream that opens the session.
	if b.pending > 0 && !b.opening {
		r.posts = append(r.posts, b)
	}
	return nil
}

// begin waits until it is known how a POST is answered.
func (r *Router) begin(req *http.Request, b *mailbox) (*http.Response, error) {
	patience := r.opt.Slow
	if b.opening {
		patience = r.opt.SlowStart
	}
	slow := time.NewTimer(patience)
	defer slow.Stop()
	var timeout <-chan time.Time
	if b.events {
		timeout = slow.C
	}
	var answers [][]byte
	size := 0
	for {
		next, err := r.take(req.Context(), b, timeout)
		stream := &events{r: r, b: b, ctx: req.Context()}
		switch {
		case err == nil && next.answer && (!b.events || !b.batch):
			answers = append(answers, next.message)
			if size += len(next.message); size > maxCollected && len(answers) > 1 {
				r.leave(b, true)
				return nil, fmt.Errorf("routing: the responses to a batch are longer than %d MiB", maxCollected>>20)
			}
		case err == nil:
			stream.write(next.message)
			return respondEvents(req, stream), nil
		case errors.Is(err, errSlow):
			return respondEvents(req, stream), nil
		case errors.Is(err, io.EOF):
			r.leave(b, false)
			return respondJSON(req, http.StatusOK, join(answers, b.batch)), nil
		case errors.Is(err, ErrEnded):
			r.leave(b, false)
			return Gone(req), nil
		default:
			r.leave(b, true)
			return nil, err
		}
	}
}

// maxCollected bounds the responses to a batch of a client that takes no events.
const maxCollected = 32 << 20

func join(answers [][]byte, batch bool) []byte {
	if !batch {
		return answers[0]
	}
	return append(append([]byte{'['}, bytes.Join(answers, []byte{','})...), ']')
}

var (
	errSlow = errors.New("routing: nothing has come yet")
	errLeft = errors.New("routing: read of a closed body")
)

// take returns the next message of a stream. io.EOF is its proper end: a POST has
// all its responses, another GET has taken over, or the peer has ended while
// nothing but the GET stream waited.
func (r *Router) take(ctx context.Context, b *mailbox, slow <-chan time.Time) (item, error) {
	for {
		over := r.ended() // asked first: nothing is added after it
		if next, err := r.next(ctx, b, over); err != nil || next.message != nil {
			return next, err
		}
		select {
		case <-b.wake:
		case <-r.over:
		case <-b.left:
		case <-ctx.Done():
		case <-slow:
			return item{}, errSlow
		}
	}
}

// next is take without waiting: neither a message nor an error means that nothing
// is there.
func (r *Router) next(ctx context.Context, b *mailbox, over bool) (item, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	listens := b.queue == &r.general
	switch {
	case ctx.Err() != nil:
		return item{}, context.Cause(ctx)
	case b.closed:
		return item{}, errLeft
	case listens && r.listener != b:
		return item{}, io.EOF
	case len(b.queue.items) > 0:
		next := b.queue.pop()
		signal(b.room)
		return next, nil
	case over && !listens && b.pending > 0:
		return item{}, ErrEnded
	case over || !listens && b.pending == 0:
		return item{}, io.EOF
	}
	return item{}, nil
}

// events is the body of an event stream.
type events struct {
	r    *Router
	b    *mailbox
	ctx  context.Context
	rest []byte // of the event under way
}

func (e *events) write(message []byte) {
	e.rest = wire.AppendEvent(make([]byte, 0, len(message)+32), message)
}

func (e *events) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		next, err := e.r.take(e.ctx, e.b, nil)
		if err != nil {
			e.r.leave(e.b, true)
			return 0, err
		}
		e.write(next.message)
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// Close leaves the stream; a Read under way returns.
func (e *events) Close() error {
	e.r.leave(e.b, true)
	return nil
}

// bytesOf reads a request's body, whose length is limited by who made it.
func bytesOf(body io.Reader) ([]byte, error) {
	if whole, ok := body.(interface{ Bytes() []byte }); ok {
		return whole.Bytes(), nil
	}
	return io.ReadAll(body)
}

// Gone answers as a server does that does not know the session any more.
func Gone(req *http.Request) *http.Response {
	closeBody(req)
	return refusal(req, http.StatusNotFound, nil, codeSession, "Session not found: the server has ended")
}

// Refuse answers with an HTTP status and, in JSON-RPC, why.
func Refuse(req *http.Request, status int, why string) *http.Response {
	closeBody(req)
	return refusal(req, status, nil, codeServer, why)
}

// Empty answers with an HTTP status only.
func Empty(req *http.Request, status int) *http.Response {
	closeBody(req)
	return respond(req, status, nil)
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

func refusal(req *http.Request, status int, id json.RawMessage, code int, message string) *http.Response {
	if id == nil {
		id = json.RawMessage("null")
	}
	type rpcError struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	body, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   rpcError        `json:"error"`
	}{"2.0", id, rpcError{code, message}})
	if err != nil {
		panic(err) // an id that was scanned and two texts
	}
	return respondJSON(req, status, body)
}

func respond(req *http.Request, status int, body []byte) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header),
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}
}

func respondJSON(req *http.Request, status int, body []byte) *http.Response {
	resp := respond(req, status, body)
	resp.Header.Set("Content-Type", "application/json")
	return resp
}

func respondEvents(req *http.Request, stream *events) *http.Response {
	resp := respond(req, http.StatusOK, nil)
	resp.Header.Set("Content-Type", "text/event-stream")
	resp.Header.Set("Cache-Control", "no-cache")
	resp.Body, resp.ContentLength = stream, -1
	return resp
}
