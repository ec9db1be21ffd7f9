package ratelog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// maxKinds bounds how many kinds of lines have a pace of their own; those that
// come later share one.
const maxKinds = 1024

// NewHandler makes a slog.Handler that passes the lines of each kind on to next at
// the pace of a Log. A line's kind is its message and, where it has one, the value
// of its attribute "tenant", so that no tenant's lines hide another's. Lines below
// level Warn are passed on as they come: what a program says has a pace of its own.
func NewHandler(next slog.Handler) slog.Handler {
	return &handler{next: next, kinds: &kinds{of: map[string]*pace{}, others: newPace()}}
}

type handler struct {
	next  slog.Handler
	kinds *kinds
}

type kinds struct {
	mu     sync.Mutex
	of     map[string]*pace
	others *pace
}

// pace is how fast lines of one kind may come.
type pace struct {
	limiter *rate.Limiter
	left    atomic.Int64 // out since the last count
}

func newPace() *pace { return &pace{limiter: rate.NewLimiter(PerSecond, Burst)} }

func (k *kinds) get(kind string) *pace {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.of[kind]
	switch {
	case p != nil:
	case len(k.of) >= maxKinds:
		p = k.others
	default:
		p = newPace()
		k.of[kind] = p
	}
	return p
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.next.Handle(ctx, r)
	}
	var tenant slog.Attr
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "tenant" {
			tenant = a
		}
		return tenant.Key == ""
	})
	p := h.kinds.get(r.Message + "\x00" + tenant.Value.String())
	if p.limiter.Allow() {
		return h.next.Handle(ctx, r)
	}
	if p.left.Add(1) > 1 {
		return nil // whoever left the first one out has seen to the count
	}
	time.AfterFunc(Later, func() {
		count := slog.NewRecord(time.Now(), r.Level, r.Message, 0)
		if tenant.Key != "" {
			count.AddAttrs(tenant)
		}
		count.AddAttrs(slog.Int64("leftOut", p.left.Swap(0)))
		_ = h.next.Handle(context.Background(), count)
	})
	return nil
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{next: h.next.WithAttrs(attrs), kinds: h.kinds}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{next: h.next.WithGroup(name), kinds: h.kinds}
}
