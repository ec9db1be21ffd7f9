package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
	"github.com/vancetope/mcp-lease-gateway/lease/storetest"
)

// knownDefinitions resolves one name.
type knownDefinitions struct{ definition.Resolver }

func (knownDefinitions) Resolve(_ context.Context, tenant, _, name string) (*definition.Definition, error) {
	switch name {
	case "browser":
		d := *browser(only(definition.Project, 1))
		d.Resource = tenant + "-browser"
		return &d, nil
	case "away":
		return nil, &definition.Error{Lease: name, Transient: true, Err: errors.New("dial tcp 10.0.0.1:27017: connection refused")}
	}
	return nil, &definition.Error{Lease: name, Unknown: true}
}

func named(o *lease.Options) {
	quiet(o)
	o.Definitions = knownDefinitions{}
}

func TestAcquireNamed(t *testing.T) {
	request := wants(nil, "u1")
	for name, tc := range map[string]struct {
		named     lease.Named
		why       string // of the refusal
		permanent bool
	}{
		"a lease that no layer defines":              {lease.Named{Name: "typo"}, "the lease typo is not defined in any layer", true},
		"a definition out of reach":                  {lease.Named{Name: "away"}, "the definition of the lease away could not be read", false},
		"an inline definition that is not valid":     {lease.Named{Err: &definition.Error{Lease: "mine", Layer: "project", Field: "levels.user"}}, "the definition of the lease mine is not valid: levels.user in the project layer", true},
		"a setting that could not be read":           {lease.Named{Err: &lease.UnavailableError{Why: "the setting could not be read"}}, "the setting could not be read", false},
		"an error without words for a client":        {lease.Named{Name: "x", Err: errors.New("10.0.0.1 says no")}, "the definition of the lease x could not be read", false},
		"an inline definition with a cap of nothing": {lease.Named{Inline: &definition.Definition{Name: "mine", Resource: "mcp-inline:acme/thesis/mine", Inline: true, TTL: time.Minute, Caps: only(definition.User, 0)}}, "the lease mine has a cap below 1 on the level user", true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range show(t, proof{run: func(w *world) {
				m := w.pod("a", named)
				_, err := m.AcquireNamed(context.Background(), tc.named, request)
				un, ok := errors.AsType[*lease.UnavailableError](err)
				w.check(ok && un.Why == tc.why && un.Permanent == tc.permanent, "%v", err)
				w.check(len(w.events) == 1, "recorded: %+v", w.events)
				e := w.events[0]
				w.check(e.Kind == "refused" && e.Reason == lease.CodeUnavailable && e.Tenant == "acme" && e.Project == "thesis" && e.User == "u1" && e.Type == "t", "recorded: %+v", e)
				w.check(len(w.outcomes) == 1, "counted: %v", w.outcomes)
			}}, nil) {
				t.Error(f)
			}
		})
	}
	for _, p := range []proof{
		{"a name is resolved in the scope of the request", func(w *world) {
			l, err := w.pod("a", named).AcquireNamed(context.Background(), lease.Named{Name: "browser"}, request)
			w.check(err == nil && !l.Noop(), "%v", err)
			h, _ := w.holder(l.Ref().Token)
			w.check(h.Resource == "acme-browser" && lease.RefOf(h) == l.Ref(), "%+v", h)
		}},
		{"no name, none and no caps are a lease that holds nothing", func(w *world) {
			m := w.pod("a", named)
			for _, n := range []lease.Named{{}, {Name: "none"}, {Inline: &definition.Definition{Name: "mine"}}} {
				l, err := m.AcquireNamed(context.Background(), n, request)
				w.check(err == nil && l.Noop() && l.Ref() == lease.Ref{} && l.Check(context.Background()) == nil && l.Release(context.Background()) == nil, "%+v: %v", n, err)
			}
		}},
		{"a caller that has gone was not refused", func(w *world) {
			ctx, leave := context.WithCancel(context.Background())
			leave()
			_, err := w.pod("a", named).AcquireNamed(ctx, lease.Named{Name: "typo"}, request)
			w.check(err != nil && len(w.events) == 0, "%v %+v", err, w.events)
		}},
		{"a caller that asks again is refused without a record where a level is full, and only there", func(w *world) {
			m := w.pod("a", named)
			ctx := context.Background()
			first, err := m.AcquireNamed(ctx, lease.Named{Name: "browser"}, request)
			w.check(err == nil, "%v", err)
			again := request
			again.Retried, again.MaxWait = true, lease.NoWait
			_, err = m.AcquireNamed(ctx, lease.Named{Name: "browser"}, again)
			w.check(lease.RefusalOf(err).Data.Code == lease.CodeBusy && len(w.events) == 0 && !w.saw("acquire browser busy"), "%v %+v", err, w.events)
			_, err = m.AcquireNamed(ctx, lease.Named{Name: "typo"}, again)
			w.check(err != nil && len(w.events) == 1, "%v %+v", err, w.events)
			w.check(first.Release(ctx) == nil, "release")
		}},
	} {
		t.Run(p.says, func(t *testing.T) {
			for _, f := range show(t, p, nil) {
				t.Error(f)
			}
		})
	}
}

func TestALossIsCounted(t *testing.T) {
	lost := func(w *world) (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, o := range w.outcomes {
			if o == "check browser lost" {
				n++
			}
		}
		return n
	}
	for _, p := range []proof{
		{"where a use, a look or a change of the payload finds it", func(w *world) {
			a, b := w.pod("a", quiet), w.pod("b", quiet)
			ctx := context.Background()
			for i, find := range []func(*lease.Lease) error{
				func(l *lease.Lease) error { return l.Check(ctx) },
				func(l *lease.Lease) error { return l.Peek(ctx) },
				func(l *lease.Lease) error { return l.UpdatePayload(ctx, nil) },
			} {
				l := w.acquire(a, wants(browser(nil), "u1"))
				_, err := b.Revoke(ctx, l.Ref().Token, lease.Cause{Reason: lease.ReasonRevoke})
				w.check(err == nil, "%v", err)
				for n := range 2 { // found, and known
					reason, gone := lease.Lost(find(l))
					w.check(gone && reason == lease.ReasonRevoke && lost(w) == 2*i+n+1, "%d: %q, counted %d", i, reason, lost(w))
				}
			}
		}},
		{"where its consumer knows of it already, with the reason of the mark and without the store", func(w *world) {
			a, b := w.pod("a", quiet), w.pod("b", quiet)
			ctx := context.Background()
			l := w.acquire(a, wants(browser(nil), "u1"))
			_, err := a.Revoke(ctx, l.Ref().Token, lease.Cause{Reason: lease.ReasonRevoke})
			w.check(err == nil, "%v", err)
			before := w.calls.of("holder")
			w.check(l.Loss(ctx).Reason == lease.ReasonRevoke && w.calls.of("holder") == before && lost(w) == 1, "counted %d", lost(w))
			w.check(b.Attach(l.Ref()).Loss(ctx).Reason == lease.ReasonRevoke && lost(w) == 2, "on another pod: counted %d", lost(w))
			w.check((&lease.Lease{}).Loss(ctx).Reason == "" && lost(w) == 2, "a NOOP lease counts")
		}},
	} {
		t.Run(p.says, func(t *testing.T) {
			for _, f := range show(t, p, nil) {
				t.Error(f)
			}
		})
	}
}

func TestAStoreThatDoesNotAnswerIsToldWithinFiveSeconds(t *testing.T) {
	for _, p := range []proof{
		{"a pod that has just been in touch", func(*world) {}},
		{"a pod that others may call dead", func(*world) { time.Sleep(time.Hour) }},
		{"where others wait for the same", func(w *world) { time.Sleep(time.Second) }},
	} {
		t.Run(p.says, func(t *testing.T) {
			for _, f := range show(t, proof{run: func(w *world) {
				var hangs atomic.Bool
				store := lease.NewAround(w.mem, func(ctx context.Context, _ string, call func(context.Context) error) error {
					if hangs.Load() {
						<-ctx.Done()
						return ctx.Err()
					}
					return call(ctx)
				})
				m := w.pod("a", quiet, func(o *lease.Options) { o.Store = store })
				d := browser(only(definition.Global, 1))
				d.Wait = 10 * time.Minute
				held := w.acquire(m, wants(d, "u1"))
				waits := make(chan struct{})
				go func() {
					defer close(waits)
					_, _ = m.Acquire(context.Background(), wants(d, "u2"))
				}()
				time.Sleep(time.Second)
				hangs.Store(true)
				p.run(w)
				begun := time.Now()
				w.refused(m, wants(d, "u3"))
				w.check(time.Since(begun) < 5*time.Second, "it took %s", time.Since(begun))
				<-waits
				hangs.Store(false)
				_ = held.Release(context.Background())
			}}, nil) {
				t.Error(f)
			}
		})
	}
}

func TestKeep(t *testing.T) {
	for _, p := range []proof{
		{"a lease that is kept outlives its TTL, and not after the end", func(w *world) {
			m := w.pod("a")
			l := w.acquire(m, wants(browser(nil), "u1"))
			stop := l.Keep(context.Background(), func(err error) { w.errorf("%v", err) })
			time.Sleep(10 * l.Ref().TTL)
			w.lives(l)
			stop()
			time.Sleep(2 * l.Ref().TTL)
			w.lost(l, lease.ReasonIdle)
		}},
		{"a loss is told once, a store out of reach each time and never as a loss", func(w *world) {
			store := storetest.NewFaulty(w.mem)
			m := w.pod("a", quiet, func(o *lease.Options) { o.Store = store })
			l := w.acquire(m, wants(browser(nil), "u1"))
			var away, lost atomic.Int32
			stop := l.Keep(context.Background(), func(err error) {
				reason, gone := lease.Lost(err)
				switch {
				case !gone:
					away.Add(1)
				case reason == lease.ReasonRevoke:
					lost.Add(1)
				}
			})
			store.Fail(storetest.ErrDown)
			time.Sleep(l.Ref().TTL + time.Second)
			w.check(away.Load() == 3 && lost.Load() == 0, "away %d, lost %d", away.Load(), lost.Load())
			store.Fail(nil)
			_, err := m.Revoke(context.Background(), l.Ref().Token, lease.Cause{Reason: lease.ReasonRevoke})
			w.check(err == nil, "%v", err)
			time.Sleep(10 * l.Ref().TTL)
			w.check(away.Load() == 3 && lost.Load() == 1, "away %d, lost %d", away.Load(), lost.Load())
			stop()
		}},
		{"after stop nothing is told, also of a touch under way", func(w *world) {
			store := storetest.NewFaulty(w.mem)
			m := w.pod("a", quiet, func(o *lease.Options) { o.Store = store })
			l := w.acquire(m, wants(browser(nil), "u1"))
			stop := l.Keep(context.Background(), func(err error) { w.errorf("told: %v", err) })
			arrived, open := store.Hold("touch")
			<-arrived
			stop()
			open()
			time.Sleep(l.Ref().TTL)
		}},
		{"a keeper that does not use the lease lets its TTL run", func(w *world) {
			m := w.pod("a")
			l := w.acquire(m, wants(browser(nil), "u1"))
			k := lease.NewKeeper(l, false, time.Now())
			for range 3 {
				w.check(k.Tick(context.Background(), time.Now()) == nil, "it was due before its time, or lost")
				time.Sleep(time.Until(k.Next()))
				w.check(k.Tick(context.Background(), time.Now()) == nil, "it was lost within its TTL")
			}
			time.Sleep(l.Ref().TTL)
			reason, gone := lease.Lost(k.Tick(context.Background(), time.Now()))
			w.check(gone && reason == lease.ReasonIdle, "%v %q", gone, reason)
			none := lease.NewKeeper(&lease.Lease{}, true, time.Now())
			w.check(none.Next().IsZero() && none.Tick(context.Background(), time.Now()) == nil, "a NOOP lease is due")
		}},
	} {
		t.Run(p.says, func(t *testing.T) {
			for _, f := range show(t, p, nil) {
				t.Error(f)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		err     error
		message string
		after   time.Duration
		data    string
	}{
		"a level of the tenant's own": {&lease.BusyError{Resource: "browser", Level: definition.User, Cap: 1, Count: 1, RetryAfter: 2 * time.Second, Waited: time.Second},
			"LEASE_BUSY: the user limit of browser is reached: 1 of 1 in use, the oldest for 0 s; waited 1.0 s, try again in about 2 s", 2 * time.Second,
			`{"code":"LEASE_BUSY","resource":"browser","level":"user","cap":1,"count":1,"retryAfterMs":2000,"oldestAgeSeconds":0}`},
		"the global level tells no figures": {&lease.BusyError{Resource: "browser", Level: definition.Global, Cap: 7, Count: 7, Oldest: time.Hour, RetryAfter: time.Second},
			"LEASE_BUSY: all slots of browser are in use; waited 0.0 s, try again in about 1 s", time.Second,
			`{"code":"LEASE_BUSY","resource":"browser","level":"global","retryAfterMs":1000}`},
		"a store that cannot be reached": {&lease.UnavailableError{Why: "the lease store could not be reached; try again", Err: errors.New("10.0.0.1")},
			"LEASE_UNAVAILABLE: the lease store could not be reached; try again in about 5 s", 5 * time.Second,
			`{"code":"LEASE_UNAVAILABLE","retryAfterMs":5000}`},
		"what waiting does not mend": {&lease.UnavailableError{Why: "the lease x is limited per user", Level: definition.User, Permanent: true},
			"LEASE_UNAVAILABLE: the lease x is limited per user", 0, `{"code":"LEASE_UNAVAILABLE","level":"user","permanent":true}`},
		"an error of something else": {errors.New("10.0.0.1 says no"),
			"LEASE_UNAVAILABLE: it is not known whether there is a free slot; try again in about 5 s", 5 * time.Second, `{"code":"LEASE_UNAVAILABLE","retryAfterMs":5000}`},
		"a lost lease": {&lease.LostError{Reason: lease.ReasonIdle},
			"LEASE_LOST: the lease was not used for longer than its TTL, so its slot was given back", 0, `{"code":"LEASE_LOST","reason":"idle"}`},
		"a lease that was closed": {&lease.LostError{Reason: lease.ReasonClose}, "LEASE_LOST: the lease has ended", 0, `{"code":"LEASE_LOST","reason":"unknown"}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := lease.RefusalOf(tc.err)
			data, err := json.Marshal(r.Data)
			if r.Message != tc.message || r.RetryAfter != tc.after || string(data) != tc.data {
				t.Errorf("%q %s %s %v", r.Message, r.RetryAfter, data, err)
			}
		})
	}
}
