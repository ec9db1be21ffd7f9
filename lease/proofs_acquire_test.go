package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// The sentences of TestProofs. Mutants name those that kill them.
const (
	noopNeedsNoStore       = "a lease without caps makes no store call"
	unknownTypeIsRefused   = "a type that nobody can clean up after is refused for good"
	noScopeIsRefused       = "a capped level without its scope is refused by its name, never skipped"
	inlineIsApart          = "no ordinary definition reaches an inline definition's counter"
	busyNamesTheLevel      = "a refusal names the level that was full, how full, and since when"
	globalIsPrivate        = "a refusal by the global level tells no figures"
	fullRollsBack          = "a refused acquire leaves nothing behind"
	firstUseIsNotRefused   = "the first use of a counter is not refused, whoever else comes first"
	expiredCallerRollsBack = "a caller whose time is up leaves no holder behind"
	lostPushRollsBack      = "a last push whose reply is lost leaves no HELD holder behind"
	levelIsListedOnce      = "a level whose entry reaches the store twice is listed and given back once"
	scopesAreApart         = "scopes whose names join to the same text have a counter each"
	crashedAcquirerFrees   = "an acquirer that crashed blocks its slot for the pending TTL and not for the lease's"
	storeDownRefuses       = "a store out of reach refuses within one operation"
	answersInTime          = "an acquire answers within its wait and one operation, whenever the store begins to hang"
	notBeforeRegistered    = "a pod takes no lease before it has seen its registration"
	drainingRefuses        = "a pod that drains takes no new lease, refuses who waits, and keeps its leases"
	waitsAtMost            = "a full level is waited for as long as the definition says and no longer"
	waitEndsAtItsLevel     = "who has waited in vain is told of the level that was full last"
	maxWaitCuts            = "a request can cut the wait, and not wait at all"
	waitersGoInOrder       = "waiters behind one counter go in the order of arrival, newcomers last"
	ownGhostBlocksNobody   = "who waits for its own slot does not keep others from theirs"
	releaseWakes           = "a release in the same pod wakes who waits for the slot"
	waitingCostsOneRead    = "however many wait, a look is one read"
	lazySweepFrees         = "who wants a slot sweeps its resource, and the handler runs"
	waitersAreBounded      = "there is a bound on who waits, and the refusal names it"
	callerGoneStopsWaiting = "a caller that goes away stops waiting"
	callerGoneTakesNothing = "a caller that goes away while it takes a lease leaves neither a holder nor a count"
	roundTripsAreFew       = "round trips: acquire 6, busy look 1, check 1, release 2, old release 3"
	refusalIsAnEvent       = "a refusal is told to the observer and kept in the store"
	payloadIsBounded       = "a payload over its bound is refused"
	frozenPodBeatsFirst    = "a pod that was frozen beats before it takes a lease"
	storeDownWhileWaiting  = "a store that goes away while somebody waits refuses it at once"
)

var proofs = append(acquireProofs, holdProofs...)

var acquireProofs = []proof{
	{noopNeedsNoStore, func(w *world) {
		m := w.pod("a", quiet)
		w.calls.reset()
		for _, d := range []*definition.Definition{nil, browser(map[definition.Level]definition.Cap{})} {
			l := w.acquire(m, lease.Request{Type: "t", Definition: d})
			w.check(l.Noop(), "it holds something")
			w.lives(l)
			w.check(l.Peek(context.Background()) == nil && l.UpdatePayload(context.Background(), lease.Payload{"a": "b"}) == nil &&
				l.Release(context.Background()) == nil && l.ReleaseUnconfirmed(context.Background()) == nil, "a NOOP lease fails")
			w.check(m.Attach(l.Ref()).Noop(), "its Ref names something")
		}
		w.check(w.calls.total() == 0, "%d store calls", w.calls.total())
		w.check(w.saw("acquire browser noop"), "the outcome is not counted: %v", w.outcomes)
	}},
	{unknownTypeIsRefused, func(w *world) {
		m := w.pod("a", quiet)
		r := wants(browser(nil), "u1")
		r.Type = "unheard of"
		w.check(w.refused(m, r).Permanent, "not for good")
		w.check(w.living() == 0, "it left a holder")
	}},
	{noScopeIsRefused, func(w *world) {
		m := w.pod("a", quiet)
		w.calls.reset()
		u := w.refused(m, wants(browser(nil), ""))
		w.check(u.Level == definition.User && u.Permanent, "level %q, permanent %v", u.Level, u.Permanent)
		w.check(strings.Contains(u.Why, "per user"), "it says %q", u.Why)
		r := wants(browser(only(definition.Project, 1)), "")
		r.Project = ""
		w.check(w.refused(m, r).Level == definition.Project, "the project level is skipped")
		r.Tenant = ""
		r.Definition = browser(only(definition.Tenant, 1))
		w.check(w.refused(m, r).Level == definition.Tenant, "the tenant level is skipped")
		w.check(w.calls.of("createHolder") == 0, "it reached the store")
		w.check(w.saw("acquire browser unavailable"), "not counted")
	}},
	{inlineIsApart, func(w *world) {
		m := w.pod("a", quiet)
		for _, resource := range []string{"mcp-inline:acme/thesis/x", "mcp-inline:", "mcp-inline:x"} {
			d := browser(only(definition.Project, 1))
			d.Resource = resource
			w.check(w.refused(m, wants(d, "u")).Permanent, "%q was taken", resource)
		}
		d := browser(only(definition.Project, 1))
		d.Inline = true
		w.check(w.refused(m, wants(d, "u")).Permanent, "an inline definition took a shared resource")
		d.Resource = "mcp-inline:acme/thesis/x"
		w.acquire(m, wants(d, "u"))
	}},
	{busyNamesTheLevel, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(nil)
		w.acquire(m, wants(d, "u1"))
		time.Sleep(30 * time.Second)
		r := wants(d, "u1")
		r.MaxWait = lease.NoWait
		b := w.busy(m, r)
		w.check(b.Level == definition.User && b.Cap == 1 && b.Count == 1 && b.Resource == "browser", "%+v", b)
		w.check(b.Oldest >= 30*time.Second && b.Oldest < 31*time.Second, "oldest %s", b.Oldest)
		w.check(b.RetryAfter > 0, "no retry-after")
		w.acquire(m, wants(d, "u2"))
		b = w.busy(m, lease.Request{Type: "t", Definition: d, Tenant: "acme", Project: "thesis", User: "u3", MaxWait: lease.NoWait})
		w.check(b.Level == definition.Project && b.Cap == 2 && b.Count == 2, "%+v", b)
		w.check(w.saw("acquire browser busy"), "not counted")
		w.balanced()
	}},
	{globalIsPrivate, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		w.acquire(m, wants(d, "u1"))
		r := lease.Request{Type: "t", Definition: d, Tenant: "other", MaxWait: lease.NoWait}
		b := w.busy(m, r)
		w.check(b.Level == definition.Global && b.Cap == 0 && b.Count == 0 && b.Oldest == 0, "%+v", b)
	}},
	{firstUseIsNotRefused, func(w *world) {
		m := w.pod("a", quiet)
		w.calls.set(func() { w.calls.slow = time.Millisecond })
		d := browser(only(definition.Global, 20))
		got := make(chan error, 20)
		for range 20 {
			go func() {
				r := wants(d, "u")
				r.MaxWait = lease.NoWait
				_, err := m.Acquire(context.Background(), r)
				got <- err
			}()
		}
		for range 20 {
			if err := <-got; err != nil {
				w.errorf("%v", err)
			}
		}
		w.balanced()
	}},
	{fullRollsBack, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		d.Caps[definition.User] = 1
		w.acquire(m, wants(d, "u1"))
		r := wants(d, "u2")
		r.MaxWait = lease.NoWait
		for range 3 {
			w.busy(m, r)
		}
		m.Settle()
		w.check(w.living() == 1, "%d holders", w.living())
		w.balanced()
	}},
	{expiredCallerRollsBack, func(w *world) {
		for at := 5 * time.Millisecond; at < 60*time.Millisecond; at += 10 * time.Millisecond {
			m := w.pod(at.String(), quiet, func(o *lease.Options) { o.OpTimeout = at })
			w.calls.set(func() { w.calls.slow = 10 * time.Millisecond })
			r := wants(browser(nil), "u1")
			r.MaxWait = lease.NoWait
			_, err := m.Acquire(context.Background(), r)
			var u *lease.UnavailableError
			if err == nil {
				w.fatalf("cut at %s: it was acquired", at)
			}
			w.check(errors.As(err, &u), "cut at %s: %v", at, err)
			m.Settle()
			w.calls.set(func() { w.calls.slow = 0 })
			w.check(w.living() == 0, "cut at %s: %d holders are left", at, w.living())
		}
	}},
	{callerGoneTakesNothing, func(w *world) {
		m := w.pod("a", quiet)
		if err := w.acquire(m, wants(browser(nil), "u1")).Release(context.Background()); err != nil { // the counters are there from now on
			w.fatalf("release: %v", err)
		}
		w.calls.set(func() { w.calls.slow = 10 * time.Millisecond })
		for at := 5 * time.Millisecond; at < 60*time.Millisecond; at += 10 * time.Millisecond {
			ctx, cancel := context.WithTimeout(context.Background(), at)
			_, err := m.Acquire(ctx, wants(browser(nil), "u1"))
			cancel()
			var u *lease.UnavailableError
			if err == nil {
				w.fatalf("gone after %s: it was acquired", at)
			}
			w.check(errors.As(err, &u), "gone after %s: %v", at, err)
			m.Settle()
			w.check(w.living() == 0, "gone after %s: %d holders are left", at, w.living())
			w.balanced()
		}
	}},
	{lostPushRollsBack, func(w *world) {
		m := w.pod("a", quiet)
		w.calls.set(func() {
			w.calls.trip = func(op string) (error, error) {
				if op == "pushLast" {
					return nil, errStoreDown
				}
				return nil, nil
			}
		})
		w.refused(m, wants(browser(nil), "u1"))
		m.Settle()
		w.check(w.living() == 0, "%d holders are left", w.living())
		w.balanced()
	}},
	{levelIsListedOnce, func(w *world) {
		m := w.pod("a", quiet, func(o *lease.Options) { o.Store = repeating{o.Store} })
		w.acquire(m, wants(browser(nil), "u1"))
		l := w.acquire(m, wants(browser(nil), "u2"))
		h, _ := w.holder(l.Ref().Token)
		w.check(len(h.Levels) == 4, "%+v", h.Levels)
		w.check(l.Release(context.Background()) == nil, "release failed")
		w.balanced()
	}},
	{scopesAreApart, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(map[definition.Level]definition.Cap{definition.User: 1, definition.Project: 1, definition.Tenant: 1})
		for _, s := range []lease.Scope{
			{Tenant: "a", Project: "b/c", User: "d/e"},
			{Tenant: "a/b", Project: "c", User: "d"},
			{Tenant: "a%2Fb", Project: "c", User: "d"},
			{Tenant: "a|b", Project: "c", User: "d"},
			{Tenant: "*", Project: "c", User: "d"},
		} {
			w.acquire(m, lease.Request{Type: "t", Definition: d, Tenant: s.Tenant, Project: s.Project, User: s.User, MaxWait: lease.NoWait})
		}
		w.check(len(w.counts()) == 15, "%d counters: %v", len(w.counts()), w.counts())
	}},
	{crashedAcquirerFrees, func(w *world) {
		m, other := w.pod("a", quiet), w.pod("b")
		d := browser(map[definition.Level]definition.Cap{definition.User: 1, definition.Global: 9})
		d.TTL = 10 * time.Minute
		w.calls.set(func() {
			w.calls.trip = func(op string) (error, error) {
				if op == "pushLast" || op == "deleteHolder" {
					return errStoreDown, nil
				}
				return nil, nil
			}
		})
		w.refused(m, wants(d, "u1"))
		m.Settle()
		w.calls.set(func() { w.calls.trip = nil })
		time.Sleep(2 * time.Minute) // less than its TTL
		r := wants(d, "u1")
		r.MaxWait = lease.NoWait
		w.acquire(other, r)
		w.check(w.living() == 1, "%d holders", w.living())
	}},
	{storeDownRefuses, func(w *world) {
		m := w.pod("a", quiet)
		w.calls.set(func() { w.calls.down = true })
		u := w.refused(m, wants(browser(nil), "u1"))
		w.check(errors.Is(u, errStoreDown) && !u.Permanent, "%v", u)
		w.check(!strings.Contains(u.Why, "down"), "the client reads the store's error")
		w.calls.set(func() { w.calls.down, w.calls.slow = false, time.Hour })
		begun := time.Now()
		r := wants(browser(nil), "u1")
		r.MaxWait = lease.NoWait
		w.refused(m, r)
		w.check(time.Since(begun) <= 5*time.Second, "it took %s", time.Since(begun))
		w.calls.set(func() { w.calls.slow = 0 })
		m.Settle()
	}},
	{answersInTime, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		d.TTL = time.Hour
		w.acquire(m, wants(d, "u1"))
		for at := time.Duration(0); at < 12*time.Second; at += 700 * time.Millisecond {
			begun := time.Now()
			done := make(chan error, 1)
			go func() {
				_, err := m.Acquire(context.Background(), wants(d, "u2"))
				done <- err
			}()
			time.Sleep(at)
			w.calls.set(func() { w.calls.slow = time.Hour })
			err := <-done
			took := time.Since(begun)
			w.check(err != nil && took <= 15*time.Second, "the store hangs after %s: %v after %s", at, err, took)
			w.calls.set(func() { w.calls.slow = 0 })
			m.Settle()
			w.check(w.living() <= 1, "%d holders", w.living())
			time.Sleep(10 * time.Second)
		}
	}},
	{notBeforeRegistered, func(w *world) {
		m := w.newPod("a", quiet)
		w.refused(m, wants(browser(nil), "u1"))
		w.check(!m.Ready(), "ready")
		w.calls.set(func() { w.calls.down = true })
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		started := make(chan error, 1)
		go func() { started <- m.Start(ctx) }()
		time.Sleep(20 * time.Second)
		w.check(!m.Ready(), "ready without a store")
		w.calls.set(func() { w.calls.down = false })
		w.check(<-started == nil, "it did not go on trying")
		w.check(m.Ready(), "not ready")
		w.acquire(m, wants(browser(nil), "u1"))
	}},
	{drainingRefuses, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		l := w.acquire(m, wants(d, "u1"))
		waits := make(chan error, 1)
		go func() {
			_, err := m.Acquire(context.Background(), wants(d, "u2"))
			waits <- err
		}()
		time.Sleep(time.Second)
		begun := time.Now()
		w.check(m.Drain(context.Background()) == nil, "drain failed")
		var u *lease.UnavailableError
		w.check(errors.As(<-waits, &u) && time.Since(begun) < time.Second, "who waited was not refused at once")
		w.refused(m, wants(browser(nil), "u3"))
		w.lives(l)
		w.check(l.Release(context.Background()) == nil, "release failed")
		ps, _ := w.mem.Pods(context.Background())
		w.check(len(ps) == 1 && ps[0].State == lease.PodStopping && m.PodAlive(ps[0]), "%+v", ps)
	}},
	{waitsAtMost, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		l := w.acquire(m, wants(d, "u1"))
		begun := time.Now()
		b := w.busy(m, wants(d, "u2"))
		took := time.Since(begun)
		w.check(took >= 10*time.Second && took < 10*time.Second+200*time.Millisecond, "it waited %s", took)
		w.check(b.Waited == took, "it says %s", b.Waited)
		w.lives(l)
	}},
	{waitEndsAtItsLevel, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(map[definition.Level]definition.Cap{definition.User: 1, definition.Project: 2, definition.Global: 9})
		own := w.acquire(m, wants(d, "u1"))
		b := w.busy(m, wants(d, "u1"))
		w.check(b.Level == definition.User && b.Cap == 1 && b.Count == 1, "%+v", b)
		// While it waits, its own slot comes free and the project fills up.
		done := make(chan *lease.BusyError)
		go func() { done <- w.busy(m, wants(d, "u1")) }()
		time.Sleep(time.Second)
		other := browser(only(definition.Project, 2))
		w.acquire(m, wants(other, "u2"))
		id, _ := lease.NewCounterID("browser", definition.Project, lease.Scope{Tenant: "acme", Project: "thesis"})
		w.check(w.counts()[id] == 2, "%v", w.counts())
		_, _, _, _ = w.mem.Increment(context.Background(), id, 9) // another pod's, at a cap of its own
		w.release(own)
		b = <-done
		w.check(b.Level == definition.Project && b.Cap == 2, "%+v", b)
	}},
	{maxWaitCuts, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		w.acquire(m, wants(d, "u1"))
		r := wants(d, "u2")
		r.MaxWait = 4 * time.Second
		begun := time.Now()
		w.busy(m, r)
		w.check(time.Since(begun) < 4200*time.Millisecond, "it waited %s", time.Since(begun))
		r.MaxWait = time.Hour
		begun = time.Now()
		w.busy(m, r)
		w.check(time.Since(begun) < 11*time.Second, "MaxWait lengthened the wait: %s", time.Since(begun))
		r.MaxWait = lease.NoWait
		begun = time.Now()
		w.busy(m, r)
		w.check(time.Since(begun) == 0, "it waited %s", time.Since(begun))
	}},
	{waitersGoInOrder, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		d.Wait = time.Minute
		// Slots come free through another pod, whose releases wake nobody here.
		other := w.pod("b", quiet)
		l := other.Attach(w.acquire(m, wants(d, "u0")).Ref())
		order := make(chan int, 2000)
		for i := range 5 {
			go func() {
				if l, err := m.Acquire(context.Background(), wants(d, "u")); err == nil {
					order <- i
					time.Sleep(300 * time.Millisecond)
					_ = other.Attach(l.Ref()).Release(context.Background())
				}
			}()
			time.Sleep(10 * time.Millisecond)
		}
		// Newcomers at every instant: none gets in before the five.
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 700 {
				go func() {
					if l, err := m.Acquire(context.Background(), wants(d, "late")); err == nil {
						order <- 99
						_ = l.Release(context.Background())
					}
				}()
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(100 * time.Millisecond)
		_ = l.Release(context.Background())
		for i := range 5 {
			got := <-order
			w.check(got == i, "number %d came at place %d", got, i)
		}
		<-done
		time.Sleep(2 * time.Minute)
	}},
	{ownGhostBlocksNobody, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(nil)
		d.Caps[definition.Global] = 2
		d.Caps[definition.Tenant] = 2
		w.acquire(m, wants(d, "u1"))
		other := w.acquire(m, wants(d, "u2"))
		go func() { _, _ = m.Acquire(context.Background(), wants(d, "u1")) }() // waits for itself
		time.Sleep(100 * time.Millisecond)
		got := make(chan time.Time, 1)
		go func() {
			_, err := m.Acquire(context.Background(), wants(d, "u3"))
			if err == nil {
				got <- time.Now()
			}
		}()
		time.Sleep(time.Second)
		freed := time.Now()
		_ = other.Release(context.Background())
		select {
		case at := <-got:
			w.check(at.Sub(freed) < 100*time.Millisecond, "it took %s", at.Sub(freed))
		case <-time.After(5 * time.Second):
			w.fatalf("u3 waits behind u1, who waits for itself")
		}
		time.Sleep(20 * time.Second)
	}},
	{releaseWakes, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		for range 20 {
			l := w.acquire(m, wants(d, "u1"))
			got := make(chan *lease.Lease, 1)
			go func() {
				n, _ := m.Acquire(context.Background(), wants(d, "u2"))
				got <- n
			}()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			freed := time.Now()
			_ = l.Release(context.Background())
			n := <-got
			w.check(time.Since(freed) == 0, "who waited looked %s after the release", time.Since(freed))
			_ = n.Release(context.Background())
		}
	}},
	{waitingCostsOneRead, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		w.acquire(m, wants(d, "u1"))
		for i := range 50 {
			go func() { _, _ = m.Acquire(context.Background(), wants(d, string(rune('a'+i)))) }()
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.check(m.Waiting() == 50, "%d wait", m.Waiting())
		w.calls.reset()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		looks := w.calls.of("counters")
		// 5 s in steps of 20 to 60 ms.
		w.check(looks >= 5000/60-1 && looks <= 5000/20, "%d looks", looks)
		w.check(w.calls.total() <= looks+7, "%d calls beside %d looks: %v", w.calls.total()-looks, looks, w.calls.n)
		time.Sleep(10 * time.Second)
	}},
	{lazySweepFrees, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		l := w.acquire(m, wants(d, "u1"))
		time.Sleep(3 * time.Minute)
		r := wants(d, "u2")
		r.MaxWait = lease.NoWait
		n := w.acquire(m, r)
		synctest.Wait()
		w.check(w.handledBy("a", l.Ref().Token) == 1, "its handler ran %d times", w.handledBy("a", l.Ref().Token))
		w.lost(l, lease.ReasonIdle)
		w.lives(n)
		w.check(w.saw("reap idle") && w.event("swept", "idle"), "not counted")
		w.balanced()
	}},
	{waitersAreBounded, func(w *world) {
		m := w.pod("a", quiet, func(o *lease.Options) { o.MaxWaiters = 2 })
		d := browser(only(definition.Global, 1))
		w.acquire(m, wants(d, "u1"))
		for range 2 {
			go func() { _, _ = m.Acquire(context.Background(), wants(d, "u2")) }()
		}
		time.Sleep(100 * time.Millisecond)
		u := w.refused(m, wants(d, "u3"))
		w.check(strings.Contains(u.Why, "limits.waiters"), "it says %q", u.Why)
		time.Sleep(20 * time.Second)
		w.check(m.Waiting() == 0, "%d still wait", m.Waiting())
	}},
	{callerGoneStopsWaiting, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		w.acquire(m, wants(d, "u1"))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := m.Acquire(ctx, wants(d, "u2"))
			done <- err
		}()
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			w.check(errors.Is(err, context.Canceled), "%v", err)
		default:
			w.fatalf("it waits on")
		}
		w.check(w.living() == 1 && m.Waiting() == 0, "%d holders, %d wait", w.living(), m.Waiting())
	}},
	{roundTripsAreFew, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(map[definition.Level]definition.Cap{definition.User: 9, definition.Project: 9, definition.Tenant: 9, definition.Global: 9})
		w.acquire(m, wants(d, "u1")) // the counters are there from now on
		const trip = 3 * time.Millisecond
		w.calls.set(func() { w.calls.slow = trip })
		took := func(what string, want, commands int, f func()) {
			w.calls.reset()
			begun := time.Now()
			f()
			trips := int(time.Since(begun) / trip)
			w.check(trips == want, "%s: %d round trips, want %d: %v", what, trips, want, w.calls.n)
			w.check(w.calls.total() == commands, "%s: %d commands, want %d: %v", what, w.calls.total(), commands, w.calls.n)
		}
		var l *lease.Lease
		took("acquire", 6, 9, func() { l = w.acquire(m, wants(d, "u1")) })
		took("check", 1, 1, func() { w.lives(l) })
		took("release", 2, 5, func() { w.check(l.Release(context.Background()) == nil, "release") })
		l = w.acquire(m, wants(d, "u1"))
		w.used(l, 2*time.Minute)
		took("old release", 3, 6, func() { w.check(l.Release(context.Background()) == nil, "release") })
		l = w.acquire(m, wants(d, "u1"))
		took("release of an attached lease", 2, 5, func() { w.check(m.Attach(l.Ref()).Release(context.Background()) == nil, "release") })
	}},
	{refusalIsAnEvent, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.User, 1))
		w.acquire(m, wants(d, "u1"))
		r := wants(d, "u1")
		r.MaxWait = lease.NoWait
		w.busy(m, r)
		synctest.Wait()
		w.check(w.event("refused", lease.CodeBusy), "not told: %+v", w.events)
		es, _ := w.mem.Events(context.Background(), "acme", 10)
		w.check(len(es) == 1 && es[0].Level == definition.User && es[0].User == "u1", "not kept: %+v", es)
	}},
	{payloadIsBounded, func(w *world) {
		m := w.pod("a", quiet)
		r := wants(browser(nil), "u1")
		r.Payload = lease.Payload{"k": strings.Repeat("x", lease.MaxPayload)}
		w.check(w.refused(m, r).Permanent, "not for good")
		r.Payload = lease.Payload{lease.PayloadKey: "k1"}
		l := w.acquire(m, r)
		w.check(errors.Is(l.UpdatePayload(context.Background(), lease.Payload{"k": strings.Repeat("x", lease.MaxPayload)}), lease.ErrPayloadTooLarge), "taken")
		w.check(l.UpdatePayload(context.Background(), lease.Payload{lease.PayloadKey: "k2"}) == nil, "refused")
		hs, err := m.Find(context.Background(), lease.Filter{Key: "k2"})
		w.check(err == nil && len(hs) == 1 && hs[0].Token == l.Ref().Token, "%v %v", hs, err)
	}},
	{frozenPodBeatsFirst, func(w *world) {
		m := w.pod("a", quiet, func(o *lease.Options) { o.Heartbeat, o.StaleAfter = 500*time.Hour, 1000*time.Hour })
		time.Sleep(999*time.Hour + 59*time.Minute)
		w.calls.set(func() { w.calls.trip = nil })
		time.Sleep(2 * time.Minute)
		w.acquire(m, wants(browser(nil), "u1"))
		ps, _ := w.mem.Pods(context.Background())
		w.check(ps[0].BeatAge < time.Hour*500, "it took a lease with a beat of %s ago", ps[0].BeatAge)
	}},
	{storeDownWhileWaiting, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 1))
		w.acquire(m, wants(d, "u1"))
		done := make(chan error, 1)
		go func() {
			_, err := m.Acquire(context.Background(), wants(d, "u2"))
			done <- err
		}()
		time.Sleep(time.Second)
		w.calls.set(func() { w.calls.down = true })
		begun := time.Now()
		var u *lease.UnavailableError
		w.check(errors.As(<-done, &u) && time.Since(begun) < time.Second, "it waited %s more", time.Since(begun))
		w.calls.set(func() { w.calls.down = false })
	}},
}

// repeating sends each entry twice, as a network does that delivers again.
type repeating struct{ lease.Store }

func (r repeating) PushLevel(ctx context.Context, t lease.Token, b lease.Booking, maxAge time.Duration) (bool, error) {
	ok, err := r.Store.PushLevel(ctx, t, b, maxAge)
	_, _ = r.Store.PushLevel(ctx, t, b, maxAge)
	return ok, err
}

func (r repeating) PushLast(ctx context.Context, t lease.Token, b lease.Booking, others []lease.CounterID, ttl, maxAge time.Duration) (bool, error) {
	ok, err := r.Store.PushLast(ctx, t, b, others, ttl, maxAge)
	_, _ = r.Store.PushLast(ctx, t, b, others, ttl, maxAge)
	return ok, err
}
