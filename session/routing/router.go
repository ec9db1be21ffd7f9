package routing

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
	"github.com/vancetope/mcp-lease-gateway/session/wire"
)

// ErrEnded is how the body of a POST's response ends when the peer has ended
// without having answered.
var ErrEnded = errors.New("routing: the server has ended before its answer")

// How long the id of a request stays taken whose POST has ended before its
// response: a late response must not pass for that of a new request. A cancelled
// request is not answered as a rule.
const (
	keptAbandoned = 10 * time.Minute
	keptCancelled = 10 * time.Second
	maxAbandoned  = 1024 // ids
)

// Router takes the peer's messages to the streams of its client. It is safe for
// concurrent use, but for Deliver, which one goroutine calls.
type Router struct {
	opt Options

	mu        sync.Mutex
	waiting   map[string]*mailbox  // by MatchKey of a request's id
	progress  map[string]*mailbox  // by MatchKey of a progress token
	posts     []*mailbox           // in flight, oldest first
	listener  *mailbox             // the newest GET
	general   queue                // what belongs to no POST
	abandoned map[string]time.Time // by MatchKey: until when a late response may come
	dropped   int

	over chan struct{} // closed by End
}

// Options are a Router's settings.
type Options struct {
	// Slow is how long a POST waits for its answer before its response begins as an
	// event stream, for a client that takes one; 0 means 25 s.
	Slow time.Duration
	// SlowStart is Slow for an initialize; 0 means 4 s. Clients that give up, give
	// up about then; a start that fails does so earlier as a rule.
	SlowStart time.Duration
	// Log takes what the client is not told; it must not be nil.
	Log *ratelog.Log
}

// New makes a Router.
func New(o Options) *Router {
	if o.Slow == 0 {
		o.Slow = 25 * time.Second
	}
	if o.SlowStart == 0 {
		o.SlowStart = 4 * time.Second
	}
	return &Router{
		opt: o, waiting: make(map[string]*mailbox), progress: make(map[string]*mailbox),
		abandoned: make(map[string]time.Time), over: make(chan struct{}),
	}
}

// End says that no message comes any more. What waits in streams can still be
// read. It is called once, after the last Deliver.
func (r *Router) End() { close(r.over) }

func (r *Router) ended() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// Deliver takes what the peer has said to its streams; body is kept. It waits
// while the stream of a POST is full, until ctx ends. The error says that body is
// no message.
func (r *Router) Deliver(ctx context.Context, body []byte) error {
	env, err := wire.ScanServer(body)
	if err != nil {
		return err
	}
	for i := range env.Messages {
		r.deliver(ctx, &env.Messages[i], body)
	}
	return nil
}

func (r *Router) deliver(ctx context.Context, m *wire.Message, body []byte) {
	for {
		r.mu.Lock()
		full := r.place(m, body)
		r.mu.Unlock()
		if full == nil {
			return
		}
		select {
		case <-full.room:
		case <-full.left:
		case <-ctx.Done():
			return
		}
	}
}

// place puts a message into a stream's queue and returns nil, or the stream that
// has no room for it.
func (r *Router) place(m *wire.Message, body []byte) (full *mailbox) {
	if m.Response() {
		return r.answer(m, body)
	}
	message := item{message: m.All.Of(body)}
	if to := r.progressOf(m, body); to != nil {
		if !to.events {
			to.active()
			return nil // its client can read nothing but the result
		}
		return r.put(to, message)
	}
	if to := r.target(); to != nil {
		return r.put(to, message)
	}
	r.keep(message)
	return nil
}

func (r *Router) put(to *mailbox, message item) (full *mailbox) {
	if !to.queue.fits(message) {
		return to
	}
	to.queue.push(message)
	to.active()
	signal(to.wake)
	return nil
}

// answer hands a response to the POST that waits for it. An error without an id,
// the word on a request that the peer could not read, is that on the only request
// in flight.
func (r *Router) answer(m *wire.Message, body []byte) (full *mailbox) {
	message := item{message: m.All.Of(body), answer: true}
	key := wire.MatchKey(m.ID.Of(body))
	if (key == "" || key == "null") && !m.Error.None() && len(r.waiting) == 1 {
		for only := range r.waiting {
			key = only
		}
	}
	to := r.waiting[key]
	if to == nil {
		if _, late := r.abandoned[key]; !late {
			r.opt.Log.Write(context.Background(), slog.LevelWarn, "a server's response answers no request in flight", slog.Int("bytes", len(message.message)))
		}
		delete(r.abandoned, key)
		return nil
	}
	if full := r.put(to, message); full != nil {
		return full
	}
	delete(r.waiting, key)
	if to.pending--; to.pending == 0 {
		r.settle(to)
	}
	return nil
}

// settle keeps further messages away from a stream.
func (r *Router) settle(b *mailbox) {
	for k, v := range r.progress {
		if v == b {
			delete(r.progress, k)
		}
	}
	if i := slices.Index(r.posts, b); i >= 0 {
		r.posts = slices.Delete(r.posts, i, i+1)
	}
}

func (r *Router) progressOf(m *wire.Message, body []byte) *mailbox {
	if m.Method != "notifications/progress" {
		return nil
	}
	var params struct {
		ProgressToken json.RawMessage `json:"progressToken"`
	}
	if json.Unmarshal(m.Params.Of(body), &params) != nil || len(params.ProgressToken) == 0 {
		return nil
	}
	return r.progress[wire.MatchKey(params.ProgressToken)]
}

// target is the stream of a message that belongs to no request: nil is the GET
// stream, or the next one.
func (r *Router) target() *mailbox {
	var last *mailbox
	open := 0
	for _, b := range r.posts {
		if b.events {
			last = b
			open++
		}
	}
	if open == 1 || open > 1 && r.listener == nil {
		return last
	}
	return nil
}

// keep queues a message for the GET stream. Nothing waits behind a client that
// does not read it: the oldest go.
func (r *Router) keep(message item) {
	for !r.general.fits(message) {
		r.general.pop()
		r.dropped++
		r.opt.Log.Write(context.Background(), slog.LevelWarn,
			"messages of a server that belong to no call are dropped: no client reads them", slog.Int("dropped", r.dropped))
	}
	r.general.push(message)
	if r.listener != nil {
		signal(r.listener.wake)
	}
}

// until has a stream left when ctx ends.
func (r *Router) until(ctx context.Context, b *mailbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.stop = context.AfterFunc(ctx, func() { r.leave(b, true) })
}

// leave takes a stream out. abandoned says that the peer has its requests and may
// still answer them.
func (r *Router) leave(b *mailbox, abandoned bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	close(b.left)
	if b.stop != nil {
		b.stop()
	}
	if r.listener == b {
		r.listener = nil
	}
	r.settle(b)
	for _, id := range b.ids {
		if r.waiting[id] == b {
			delete(r.waiting, id)
			switch {
			case b.cancelled:
				r.abandon(id, keptCancelled)
			case abandoned:
				r.abandon(id, keptAbandoned)
			}
		}
	}
	if b.queue == &r.general {
		return // the next GET finds it
	}
	for len(b.queue.items) > 0 {
		if left := b.queue.pop(); !left.answer {
			r.reroute(left)
		}
	}
}

// reroute finds the stream that a message would go to now.
func (r *Router) reroute(message item) {
	if to := r.target(); to == nil || r.put(to, message) != nil {
		r.keep(message)
	}
}

// abandon keeps an id from being used again before its late response has come.
func (r *Router) abandon(id string, d time.Duration) {
	now := time.Now()
	for k, until := range r.abandoned {
		if now.After(until) || len(r.abandoned) >= maxAbandoned {
			delete(r.abandoned, k)
		}
	}
	r.abandoned[id] = now.Add(d)
}

// cancelled takes note of a notification with which the client has given a
// request up.
func (r *Router) cancelled(params []byte) {
	var p struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil || len(p.RequestID) == 0 {
		return
	}
	key := wire.MatchKey(p.RequestID)
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.waiting[key]; b != nil && len(b.ids) == 1 {
		b.cancelled = true
		r.settle(b)
	} else if _, ok := r.abandoned[key]; ok {
		r.abandon(key, keptCancelled)
	}
}
