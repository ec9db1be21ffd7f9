package session

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/internal/quota"
	"github.com/vancetope/mcp-lease-gateway/session/stdio"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// process is what a session needs of a program that speaks MCP over its
// standard streams; *stdio.Process is one.
type process interface {
	Send(ctx context.Context, line []byte) error
	Next(ctx context.Context) ([]byte, error)
	Done() <-chan struct{}
	Err() error
	Close(ctx context.Context) error
}

func startProcess(ctx context.Context, c stdio.Command) (process, error) {
	p, err := stdio.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// The queue for messages that no stream is open for; beyond it the oldest go.
const (
	maxQueued      = 256
	maxQueuedBytes = 4 << 20
)

// child is a stdio server's program and where its messages go: answers to the
// POST that asked, progress to the POST whose token it names, other messages to
// the only call in flight, else to the GET stream. No message goes to two
// streams. One goroutine reads; a client that reads slowly holds the program up
// and nobody else.
type child struct {
	proc   process
	ctx    context.Context // ends the reader
	cancel context.CancelFunc
	ended  chan struct{} // the reader has returned
	once   sync.Once     // closing
	who    quota.Key     // has its place among what runs in the pod

	mu       sync.Mutex
	waiting  map[string]*mailbox // by id of the request
	progress map[string]*mailbox // by progress token
	posts    []*mailbox          // in flight, oldest first
	listener *mailbox
	queue    [][]byte
	queued   int
}

// mailbox is a stream that takes a child's messages.
type mailbox struct {
	ch     chan []byte
	gone   chan struct{} // nobody reads ch any more
	events bool          // the client takes an event stream
}

func newMailbox(events bool) *mailbox {
	return &mailbox{ch: make(chan []byte), gone: make(chan struct{}), events: events}
}

func newChild(proc process) *child {
	c := &child{proc: proc, ended: make(chan struct{}), waiting: make(map[string]*mailbox), progress: make(map[string]*mailbox)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// read takes the program's messages to their streams until it ends.
func (c *child) read() error {
	defer close(c.ended)
	for {
		line, err := c.proc.Next(c.ctx)
		if errors.Is(err, stdio.ErrTooLong) {
			continue // its request runs into timeoutSeconds
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		env, err := wire.Scan(line)
		if err != nil {
			continue // programs print other things on their standard output
		}
		for i := range env.Messages {
			c.route(&env.Messages[i], line)
		}
	}
}

func (c *child) route(m *wire.Message, line []byte) {
	message := m.All.Of(line)
	for {
		to := c.target(m, line, message)
		if to == nil {
			return
		}
		select {
		case to.ch <- message:
			return
		case <-to.gone:
			// The stream ended before it took the message: it goes to the one that
			// it would go to now. An answer has nobody else who waits for it.
			if m.Response() {
				return
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// target chooses the stream of a message, or keeps it for the next GET.
func (c *child) target(m *wire.Message, line, message []byte) *mailbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Response() {
		key := wire.Answered(c.waiting, m.ID.Of(line))
		to := c.waiting[key]
		delete(c.waiting, key)
		return to
	}
	if m.Method == "notifications/progress" {
		var params struct {
			ProgressToken json.RawMessage `json:"progressToken"`
		}
		if json.Unmarshal(m.Params.Of(line), &params) == nil {
			if to := c.progress[wire.Answered(c.progress, params.ProgressToken)]; to != nil {
				if to.events {
					return to
				}
				return nil // the client can read nothing but the result
			}
		}
	}
	var open []*mailbox
	for _, b := range c.posts {
		if b.events {
			open = append(open, b)
		}
	}
	switch {
	case len(open) == 1:
		return open[0]
	case c.listener != nil:
		return c.listener
	case len(open) > 1:
		return open[len(open)-1]
	}
	c.enqueue(message)
	return nil
}

func (c *child) enqueue(message []byte) {
	c.queue = append(c.queue, message)
	c.queued += len(message)
	for len(c.queue) > maxQueued || c.queued > maxQueuedBytes && len(c.queue) > 1 {
		c.queued -= len(c.queue[0])
		c.queue = c.queue[1:]
	}
}

// post registers the stream of a POST. Server messages that belong to no call
// do not go to one that opens the session.
func (c *child) post(b *mailbox, body []byte, env *wire.Envelope, opening bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range env.Messages {
		m := &env.Messages[i]
		if !m.Request() {
			continue
		}
		c.waiting[wire.IDKey(m.ID.Of(body))] = b
		if !m.ProgressToken.None() {
			c.progress[wire.IDKey(m.ProgressToken.Of(body))] = b
		}
	}
	if !opening {
		c.posts = append(c.posts, b)
	}
}

// leave takes a stream out.
func (c *child) leave(b *mailbox) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(b.gone) // when it is out: what was on its way looks for another
	for k, v := range c.waiting {
		if v == b {
			delete(c.waiting, k)
		}
	}
	for k, v := range c.progress {
		if v == b {
			delete(c.progress, k)
		}
	}
	if i := slices.Index(c.posts, b); i >= 0 {
		c.posts = slices.Delete(c.posts, i, i+1)
	}
	if c.listener == b {
		c.listener = nil
	}
}

// listen registers the stream of a GET and returns what was kept for it; false
// where there is one already.
func (c *child) listen(b *mailbox) (kept [][]byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listener != nil {
		return nil, false
	}
	c.listener = b
	kept, c.queue, c.queued = c.queue, nil, 0
	return kept, true
}

func (s *live) getChild() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

func (s *live) hasChild() bool { return s.getChild() != nil }

// takeChild takes the child out for closing.
func (s *live) takeChild() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.child
	s.child = nil
	return c
}

// closeChild ends a child's whole tree and waits until it is gone.
func (p *Proxy) closeChild(ctx context.Context, tenant string, c *child) {
	c.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), childTimeout)
		defer cancel()
		outcome := "confirmed"
		if err := c.proc.Close(ctx); err != nil {
			outcome = "unreachable"
			p.opt.Log.ErrorContext(ctx, "a stdio server's program could not be ended", "error", err)
		}
		p.opt.Observer.Closed(outcome)
		c.cancel()
		p.table.dropChild(tenant)
		p.traffic.exit(c.who, false)
	})
	<-c.ended
}

// relayChild passes a child's answers to a POST: as JSON where the answer comes
// first, as an event stream where something else comes before it or it takes
// long.
func (t *turn) relayChild(s *live, x *exchange, waits bool) {
	p := t.p
	c := s.getChild()
	if c == nil {
		t.gone(s, waits)
		return
	}
	b := newMailbox(acceptsEvents(t.r.Header))
	c.post(b, t.body.B, t.env, false)
	defer c.leave(b)
	for i := range t.env.Messages {
		if err := c.proc.Send(x.ctx, t.env.Messages[i].All.Of(t.body.B)); err != nil {
			t.childFailed(s, x, err, waits)
			return
		}
	}
	if !waits {
		t.w.WriteHeader(http.StatusAccepted)
		return
	}
	err := t.collect(x, c, b)
	if err == nil {
		return
	}
	if !x.hasBegun() {
		t.childFailed(s, x, err, waits)
		return
	}
	x.finish(err, func(cause error) *refusal {
		var isLost *lostCause
		if errors.As(cause, &isLost) {
			return lost(http.StatusOK, isLost.reason)
		}
		return p.failed(x.ctx, t, cause)
	}, t.body.B, t.env)
}
