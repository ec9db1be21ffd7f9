package texproxy

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// uses are the requests that use a lease at this moment, so that a revocation
// can end them. A revocation after the end finds nothing and leaves nothing.
type uses struct {
	mu      sync.Mutex
	byToken map[lease.Token]map[*use]struct{}
}

// use is one request's use of a lease. A nil use is one without a lease.
type use struct {
	all   *uses
	token lease.Token
	abort context.CancelCauseFunc
	stop  func() // the touches
}

func newUses() *uses { return &uses{byToken: map[lease.Token]map[*use]struct{}{}} }

// begin registers the use of a lease by a compile. Its context ends with a
// *lease.LostError when the lease is revoked here or a touch finds it gone.
func (t *uses) begin(ctx context.Context, l *lease.Lease) (context.Context, *use) {
	ctx, u := t.register(ctx, l)
	if u != nil {
		u.stop = l.Keep(ctx, func(err error) {
			if _, lost := lease.Lost(err); lost {
				u.abort(err)
			}
		})
	}
	return ctx, u
}

// beginPoll is begin for a poll, which a lease that has gone does not end: the
// service may say that the job has ended. Only a revocation here does.
func (t *uses) beginPoll(ctx context.Context, l *lease.Lease) (context.Context, *use) {
	ctx, u := t.register(ctx, l)
	if u != nil {
		u.stop = l.Keep(ctx, nil)
	}
	return ctx, u
}

func (t *uses) register(ctx context.Context, l *lease.Lease) (context.Context, *use) {
	if l.Noop() {
		return ctx, nil
	}
	ctx, abort := context.WithCancelCause(ctx)
	u := &use{all: t, token: l.Ref().Token, abort: abort}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byToken[u.token] == nil {
		t.byToken[u.token] = map[*use]struct{}{}
	}
	t.byToken[u.token][u] = struct{}{}
	return ctx, u
}

// settle unregisters the use: whatever is still to be sent to the client does
// not need the lease. The context goes on, for the rest of an answer.
func (u *use) settle() {
	if u == nil {
		return
	}
	u.stop()
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	delete(u.all.byToken[u.token], u)
	if len(u.all.byToken[u.token]) == 0 {
		delete(u.all.byToken, u.token)
	}
}

// abort ends every use of a lease in this pod. Cause is asked for once for each.
func (t *uses) abort(token lease.Token, cause func() error) {
	t.mu.Lock()
	all := slices.Collect(maps.Keys(t.byToken[token]))
	t.mu.Unlock()
	for _, u := range all {
		u.abort(cause())
	}
}

func (t *uses) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byToken)
}
