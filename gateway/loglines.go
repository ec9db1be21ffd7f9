package gateway

import (
	"context"
	"log/slog"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/internal/ratelog"
)

// maxLogSenders bounds how many tenants and credentials have a rate of their own
// for their lines; those that come later share one.
const maxLogSenders = 256

// failureLines writes the lines of requests that failed: whoever may cause them
// from outside must neither fill the disk nor hide the lines of others. What is
// left out is counted, and the count is written.
type failureLines struct {
	log       *slog.Logger
	strangers *ratelog.Log
	others    *ratelog.Log // beyond maxLogSenders

	mu      sync.Mutex
	senders map[string]*ratelog.Log
}

func newFailureLines(log *slog.Logger) *failureLines {
	return &failureLines{log: log, strangers: ratelog.New(log), others: ratelog.New(log), senders: map[string]*ratelog.Log{}}
}

// write writes a line, or counts it where its sender has had too many.
func (f *failureLines) write(ctx context.Context, e *exchange, level slog.Level, attrs []slog.Attr) {
	switch {
	case e.issuer == "":
		f.strangers.Write(ctx, level, requestLine, attrs...)
	case e.tenant == "": // a credential that counts, for something else than it asked for
		f.of(e.issuer).Write(ctx, level, requestLine, attrs...)
	default:
		f.of(e.tenant).Write(ctx, level, requestLine, attrs...)
	}
}

// of returns the log of one tenant or one credential.
func (f *failureLines) of(sender string) *ratelog.Log {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.senders[sender]
	switch {
	case log != nil:
	case len(f.senders) >= maxLogSenders:
		log = f.others
	default:
		log = ratelog.New(f.log.With("sender", sender))
		f.senders[sender] = log
	}
	return log
}
