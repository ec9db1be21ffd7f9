package ratelog

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// The pace of a Log: Burst lines at once, then PerSecond. The number of those left
// out is written Later after the first of them.
const (
	Burst     = 20
	PerSecond = 2
	Later     = 10 * time.Second
)

// Log writes lines of one kind. It is safe for concurrent use.
type Log struct {
	out     *slog.Logger
	limiter *rate.Limiter
	left    atomic.Int64 // out since the last count
}

// New makes a Log that writes to out.
func New(out *slog.Logger) *Log {
	return &Log{out: out, limiter: rate.NewLimiter(PerSecond, Burst)}
}

// Write writes a line, or counts it where there were too many.
func (l *Log) Write(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	if l.limiter.Allow() {
		l.out.LogAttrs(ctx, level, message, attrs...)
		return
	}
	if l.left.Add(1) > 1 {
		return // whoever left the first one out has seen to the count
	}
	time.AfterFunc(Later, func() {
		l.out.LogAttrs(context.Background(), level, message, slog.Int64("leftOut", l.left.Swap(0)))
	})
}
