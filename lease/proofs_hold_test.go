package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

const (
	checkKeeps             = "a lease that is checked lives, and one that is not is reaped after its TTL"
	lostIsNotUnreachable   = "a store out of reach does not lose a lease, and a lost lease stays lost"
	lossHasItsReason       = "LEASE_LOST tells why: idle, pod, revoke"
	peekDoesNotTouch       = "a peek sees the loss and does not touch"
	releaseIsIdempotent    = "a release counts once, and its handler never runs"
	releaseOutlivesCaller  = "a release runs to its end although its caller has gone"
	unconfirmedIsKept      = "an unconfirmed close gives the slot back and is closed by the sweeps"
	unconfirmedStaysMark   = "a release after an unconfirmed close whose mark failed marks and does not delete"
	correctedIsGivenBack   = "a lease whose counter was corrected meanwhile gives its slot back"
	revokeDispatches       = "a revocation gives the slot back, runs the handler and is told"
	revokeOfTenant         = "an admin of one tenant cannot revoke another's lease"
	revokeTwice            = "who revokes twice is told that there is nothing"
	revokePodTakesAll      = "every lease of a pod can be revoked"
	matrixHere             = "a revoked lease of this pod is handled here"
	matrixPeer             = "a revoked lease of another living pod is handled there"
	matrixDead             = "a dead pod's lease is handled by the reaping pod"
	matrixDeadBound        = "a dead pod's podBound lease is released and nothing runs"
	matrixUnreachableBound = "a podBound lease of a pod that lives and is out of reach is handled when it is back"
	matrixUnreachable      = "a lease of a pod that lives and is out of reach is handled by the pod that took it"
	loweredCapDrains       = "a cap that was lowered lets holders drain, and each gives back what it listed"
	removedRegistersAgain  = "a living pod whose registration somebody removed registers again"
	handlerRunsAgain       = "a handler that failed runs again until it has run"
	handlerSurvivesReaper  = "a reaper that dies after its mark loses no handler"
	panicIsAFailure        = "a handler that panics is run again"
	failuresHideNothing    = "marks whose handlers go on failing do not hide newer ones"
	handlersAreBounded     = "no more handlers run at once than allowed, and none is lost"
	pendingHasNoHandler    = "a reaped acquirer that held nothing has no handler to run"
	listingIsNotTrusted    = "a holder that became HELD after the listing is handled"
	ownPodAlive            = "a pod is alive in its own eyes whatever its registration says"
	deadPodIsReaped        = "a dead pod's leases are reaped without waiting for their TTL"
	newPodIsNotReaped      = "a pod that registers while a sweep runs is not taken for dead"
	frozenPodIsNotReaped   = "a pod that comes back while a sweep runs keeps its leases"
	outageCostsNothing     = "an outage of the store costs no living lease"
	startIsPatient         = "a pod that has just started reaps nobody for what it did not see"
	singlePodIsSure        = "on a store of one pod the earlier incarnation is dead at once"
	handoverIsLeft         = "a pod that has handed over leaves its sessions to the others"
	jobsAreAdopted         = "a dead pod's jobs are adopted and not reaped"
	checkTakesOver         = "a check of a lease that is not podBound makes the checking pod its pod"
	marksArePurged         = "a handled mark stays an hour"
	reconcileMends         = "reconcile mends old drift, removes what nobody books and leaves fresh drift alone"
	busyIsMended           = "a counter in constant use that crashes have left too high is put right"
	passingDriftIsLeft     = "drift that is gone with the next pass begins no audit"
	askedAuditsAtOnce      = "a reconcile pass that is asked for begins an audit at once and says so"
	auditEndsExactly       = "a release in the middle of an audit's end keeps no drift alive"
	takenDuringAudit       = "a lease that was taken during an audit gives its slot back after it"
	deadRegistrationsGo    = "registrations of dead pods that nobody names are removed"
	forceNeedsNoPod        = "a forced revocation needs no pod, and a later pod runs the handler"
	viewCounts             = "a view shows a counter with what books it"
	labelsStayFew          = "drift is told under names that may be labels"
	movedLives             = "a lease that moved to a living pod between listing and mark lives"
	handleRevokedAnswers   = "a peer's request runs the handler once and answers for it"
)

func (w *world) release(l *lease.Lease) {
	if err := l.Release(context.Background()); err != nil {
		w.fatalf("release: %v", err)
	}
}

func bound(r lease.Request) lease.Request { r.PodBound = true; return r }

// refusing and hanging are peers that cannot be reached.
type refusing struct{}

func (refusing) Revoked(context.Context, lease.Pod, lease.Token) error {
	return errors.New("connection refused")
}

type hanging struct{}

func (hanging) Revoked(ctx context.Context, _ lease.Pod, _ lease.Token) error {
	<-ctx.Done()
	return ctx.Err()
}

func job(r lease.Request) lease.Request { r.Type = "job"; return r }

var holdProofs = []proof{
	{checkKeeps, func(w *world) {
		m := w.pod("a")
		l := w.acquire(m, wants(browser(nil), "u1"))
		w.used(l, 20*time.Minute)
		time.Sleep(2*time.Minute - time.Second)
		w.lives(l)
		w.lives(l) // twice in one millisecond
		time.Sleep(2*time.Minute + 31*time.Second)
		w.lost(l, lease.ReasonIdle)
		w.check(w.handledBy("a", l.Ref().Token) == 1, "handled %d times", w.handledBy("a", l.Ref().Token))
		w.check(w.saw("check browser ok") && w.saw("check browser lost") && w.saw("reap idle"), "not counted")
		w.balanced()
	}},
	{lostIsNotUnreachable, func(w *world) {
		m := w.pod("a", quiet)
		l := w.acquire(m, wants(browser(nil), "u1"))
		w.calls.set(func() { w.calls.down = true })
		err := l.Check(context.Background())
		var u *lease.UnavailableError
		var lost *lease.LostError
		w.check(errors.As(err, &u) && !errors.As(err, &lost), "check: %v", err)
		w.check(errors.As(l.Peek(context.Background()), &u), "peek is not told apart")
		w.check(errors.As(l.UpdatePayload(context.Background(), nil), &u), "payload is not told apart")
		w.check(errors.As(l.Release(context.Background()), &u), "release does not say that it failed")
		w.calls.set(func() { w.calls.down = false })
		w.lives(l)
		_, err = m.Revoke(context.Background(), l.Ref().Token, lease.Cause{By: "op"})
		w.check(err == nil, "%v", err)
		w.lost(l, lease.ReasonRevoke)
		w.calls.set(func() { w.calls.down = true })
		w.lost(l, lease.ReasonRevoke)
		w.calls.set(func() { w.calls.down = false })
		w.check(w.saw("check browser unavailable"), "not counted")
	}},
	{lossHasItsReason, func(w *world) {
		m, other := w.pod("a", quiet), w.pod("b")
		time.Sleep(time.Minute)
		idle := w.acquire(m, wants(browser(nil), "u1"))
		dead := w.acquire(m, bound(wants(browser(nil), "u2")))
		time.Sleep(110 * time.Second)
		w.lives(dead)
		w.kill(m)
		time.Sleep(100 * time.Second)
		w.check(other.LostReason(context.Background(), idle.Ref().Token) == lease.ReasonIdle || other.LostReason(context.Background(), idle.Ref().Token) == lease.ReasonPod,
			"idle: %q", other.LostReason(context.Background(), idle.Ref().Token))
		w.lost(other.Attach(dead.Ref()), lease.ReasonPod)
		w.lost(other.Attach(lease.Ref{Token: "nobody", TTL: time.Minute}), "")
	}},
	{peekDoesNotTouch, func(w *world) {
		m := w.pod("a")
		l := w.acquire(m, wants(browser(nil), "u1"))
		for range 4 {
			time.Sleep(25 * time.Second)
			w.check(l.Peek(context.Background()) == nil, "peek fails")
		}
		time.Sleep(2 * time.Minute)
		var lost *lease.LostError
		w.check(errors.As(l.Peek(context.Background()), &lost) && lost.Reason == lease.ReasonIdle, "peek touched")
	}},
	{releaseIsIdempotent, func(w *world) {
		m := w.pod("a")
		l := w.acquire(m, wants(browser(nil), "u1"))
		elsewhere := lease.Ref(l.Ref())
		w.release(l)
		w.release(l)
		w.release(m.Attach(elsewhere))
		w.lost(l, "")
		time.Sleep(5 * time.Minute)
		w.check(w.handledAnywhere(l.Ref().Token) == 0, "its handler ran")
		w.check(w.saw("release browser ok") && w.saw("release browser already-released"), "not counted: %v", w.outcomes)
		w.balanced()
	}},
	{releaseOutlivesCaller, func(w *world) {
		m := w.pod("a", quiet)
		l := w.acquire(m, wants(browser(nil), "u1"))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		w.check(l.Release(ctx) == nil, "it failed")
		w.check(w.living() == 0, "the holder stands")
		w.balanced()
	}},
	{unconfirmedIsKept, func(w *world) {
		m := w.pod("a")
		d := browser(only(definition.User, 1))
		l := w.acquire(m, wants(d, "u1"))
		w.check(l.ReleaseUnconfirmed(context.Background()) == nil, "it failed")
		r := wants(d, "u1")
		r.MaxWait = lease.NoWait
		n := w.acquire(m, r) // the slot is free
		w.fails(l.Ref().Token, 1)
		time.Sleep(5 * time.Minute / 2)
		w.check(w.handledBy("a", l.Ref().Token) == 2, "the handler ran %d times", w.handledBy("a", l.Ref().Token))
		w.check(w.event("closed", "close"), "not told: %+v", w.events)
		h, _ := w.holder(l.Ref().Token)
		w.check(!h.Revocation.HandledAt.IsZero(), "not handled")
		_ = n
	}},
	{"a release with a reason leaves it to whoever comes later, for the life of a mark, and no handler runs", func(w *world) {
		m := w.pod("a", func(o *lease.Options) { o.MarkLife = 3 * time.Hour })
		d := browser(only(definition.User, 1))
		l := w.acquire(m, wants(d, "u1"))
		w.check(l.ReleaseAs(context.Background(), lease.ReasonShutdown, true) == nil, "it failed")
		w.lost(m.Attach(l.Ref()), lease.ReasonShutdown)
		r := wants(d, "u1")
		r.MaxWait = lease.NoWait
		w.release(w.acquire(m, r)) // the slot is free
		time.Sleep(2 * time.Hour)
		w.check(m.LostReason(context.Background(), l.Ref().Token) == lease.ReasonShutdown, "the reason is forgotten")
		w.check(w.handledBy("a", l.Ref().Token) == 0, "a handler ran")
		w.check(w.event("closed", "shutdown"), "not told: %+v", w.events)
		time.Sleep(2 * time.Hour)
		_, ok := w.holder(l.Ref().Token)
		w.check(!ok, "the mark stays for ever")
		w.balanced()
	}},
	{unconfirmedStaysMark, func(w *world) {
		m := w.pod("a")
		l := w.acquire(m, wants(browser(nil), "u1"))
		w.calls.set(func() { w.calls.down = true })
		w.check(l.ReleaseUnconfirmed(context.Background()) != nil, "it did not fail")
		w.calls.set(func() { w.calls.down = false })
		w.release(l)
		h, ok := w.holder(l.Ref().Token)
		w.check(ok && h.State == lease.Revoked && h.Revocation.Reason == lease.ReasonClose, "it was deleted")
		time.Sleep(time.Minute)
		w.check(w.handledBy("a", l.Ref().Token) == 1, "it was not closed")
	}},
	{correctedIsGivenBack, func(w *world) {
		m := w.pod("a")
		d := browser(only(definition.Global, 3))
		l := w.acquire(m, wants(d, "u1"))
		id, _ := lease.NewCounterID("browser", definition.Global, lease.Scope{})
		_, _, _, _ = w.mem.Increment(context.Background(), id, 9) // a crash between increment and entry
		w.used(l, 5*time.Minute)
		w.check(w.counts()[id] == 1 && w.saw("reconcile corrected"), "it was not corrected")
		time.Sleep(7 * time.Second) // not beside a sweep, which would mend it
		w.release(l)
		w.check(w.counts()[id] == 0, "the counter is %d", w.counts()[id])
	}},
	{revokeDispatches, func(w *world) {
		m := w.pod("a", quiet)
		l := w.acquire(m, wants(browser(nil), "u1"))
		h, err := m.Revoke(context.Background(), l.Ref().Token, lease.Cause{By: "alice"})
		w.check(err == nil && h.Token == l.Ref().Token, "%v", err)
		synctest.Wait()
		w.check(w.handledBy("a", l.Ref().Token) == 1, "the handler did not run")
		w.lost(l, lease.ReasonRevoke)
		x, _ := w.holder(l.Ref().Token)
		w.check(x.Revocation.By == "alice" && !x.Revocation.HandledAt.IsZero(), "%+v", x.Revocation)
		w.check(w.saw("reap revoke") && w.event("revoked", "revoke"), "not counted")
		w.balanced()
	}},
	{revokeOfTenant, func(w *world) {
		m := w.pod("a", quiet)
		l := w.acquire(m, wants(browser(nil), "u1"))
		_, err := m.Revoke(context.Background(), l.Ref().Token, lease.Cause{By: "mallory", Tenant: "other"})
		w.check(errors.Is(err, lease.ErrNotFound), "%v", err)
		w.lives(l)
	}},
	{revokeTwice, func(w *world) {
		m := w.pod("a", quiet)
		l := w.acquire(m, wants(browser(nil), "u1"))
		_, err := m.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		w.check(err == nil, "%v", err)
		_, err = m.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		w.check(errors.Is(err, lease.ErrNotFound), "%v", err)
		_, err = m.Revoke(context.Background(), "nobody", lease.Cause{})
		w.check(errors.Is(err, lease.ErrNotFound), "%v", err)
		w.balanced()
	}},
	{revokePodTakesAll, func(w *world) {
		m, other := w.pod("a", quiet), w.pod("b", quiet)
		d := browser(only(definition.Global, 9))
		for range 3 {
			w.acquire(m, wants(d, "u"))
		}
		keep := w.acquire(other, wants(d, "u"))
		n, err := other.RevokePod(context.Background(), "a", "op")
		w.check(n == 3 && err == nil, "%d %v", n, err)
		w.lives(keep)
		synctest.Wait()
		w.check(len(w.handled) == 3, "handled: %v", w.handled)
		w.balanced()
	}},
	{matrixHere, func(w *world) {
		m := w.pod("a", quiet)
		l := w.acquire(m, bound(wants(browser(nil), "u1")))
		_, _ = m.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		synctest.Wait()
		w.check(w.handledBy("a", l.Ref().Token) == 1, "%v", w.handled)
	}},
	{matrixPeer, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b", quiet)
		for _, r := range []lease.Request{wants(browser(nil), "u1"), bound(wants(browser(nil), "u2"))} {
			l := w.acquire(a, r)
			_, _ = b.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
			synctest.Wait()
			w.check(w.handledBy("a", l.Ref().Token) == 1 && w.handledBy("b", l.Ref().Token) == 0, "%v", w.handled)
		}
	}},
	{matrixDead, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b")
		l := w.acquire(a, wants(browser(nil), "u1"))
		w.kill(a)
		time.Sleep(2 * time.Minute)
		w.check(w.handledBy("b", l.Ref().Token) == 1, "%v", w.handled)
		w.lost(b.Attach(l.Ref()), lease.ReasonPod)
		w.check(w.saw("reap pod") && w.event("swept", "pod"), "not counted")
	}},
	{matrixDeadBound, func(w *world) {
		a := w.pod("a", quiet)
		w.pod("b")
		l := w.acquire(a, bound(wants(browser(nil), "u1")))
		w.kill(a)
		time.Sleep(2 * time.Minute)
		w.check(w.handledAnywhere(l.Ref().Token) == 0, "%v", w.handled)
		h, _ := w.holder(l.Ref().Token)
		w.check(h.State == lease.Revoked && !h.Revocation.HandledAt.IsZero(), "%+v", h)
		w.balanced()
	}},
	{matrixUnreachableBound, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b")
		l := w.acquire(a, bound(wants(browser(nil), "u1")))
		w.mu.Lock()
		pods := w.pods
		w.pods = pods[1:] // b cannot reach a, which lives and beats
		w.mu.Unlock()
		_, _ = b.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		time.Sleep(10 * time.Second)
		w.check(w.handledAnywhere(l.Ref().Token) == 0, "handled elsewhere: %v", w.handled)
		w.mu.Lock()
		w.pods = pods
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.check(w.handledBy("a", l.Ref().Token) == 1, "%v", w.handled)
	}},
	{matrixUnreachable, func(w *world) {
		a := w.pod("a", quiet)
		for id, peers := range map[string]lease.Peers{"b": refusing{}, "c": hanging{}} {
			b := w.pod(id, quiet, func(o *lease.Options) { o.Peers = peers })
			time.Sleep(2 * time.Minute) // it is sure now who lives
			free, stdio := w.acquire(a, wants(browser(nil), "u1")), w.acquire(a, bound(wants(browser(nil), "u2")))
			_, _ = b.Revoke(context.Background(), free.Ref().Token, lease.Cause{})
			_, _ = b.Revoke(context.Background(), stdio.Ref().Token, lease.Cause{})
			time.Sleep(20 * time.Second) // a peer has 18 s to answer
			w.check(w.handledBy(id, free.Ref().Token) == 1, "%s: its handler ran: %v", id, w.handled)
			h, _ := w.holder(free.Ref().Token)
			w.check(!h.Revocation.HandledAt.IsZero(), "%s: it does not count as handled", id)
			h, _ = w.holder(stdio.Ref().Token)
			w.check(h.Revocation.HandledAt.IsZero() && w.handledAnywhere(stdio.Ref().Token) == 0, "%s: a resource that lives in the other pod counts as ended", id)
		}
	}},
	{loweredCapDrains, func(w *world) {
		m := w.pod("a", quiet)
		before := browser(nil)
		first, second := w.acquire(m, wants(before, "u1")), w.acquire(m, wants(before, "u2"))
		after := browser(map[definition.Level]definition.Cap{definition.Tenant: 3, definition.Global: 1})
		r := wants(after, "u3")
		r.MaxWait = lease.NoWait
		w.check(w.busy(m, r).Level == definition.Global, "the new cap does not count")
		w.lives(first)
		w.lives(second)
		w.release(first)
		w.check(w.busy(m, r).Level == definition.Global, "the new cap does not count")
		time.Sleep(90 * time.Second) // an old release reads what it gives back
		w.lives(second)
		w.release(second)
		for id, n := range w.counts() {
			w.check(n == 0, "counter %s is %d", id, n)
		}
		w.acquire(m, r)
		w.balanced()
	}},
	{removedRegistersAgain, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b", quiet)
		_ = w.mem.RemovePod(context.Background(), "a")
		time.Sleep(16 * time.Second) // a heartbeat
		ps, _ := w.mem.Pods(context.Background())
		w.check(len(ps) == 2 && ps[0].ID == "a" && ps[0].State == lease.PodRunning && b.PodAlive(ps[0]), "%+v", ps)
		w.check(a.Stop(context.Background(), false) == nil, "stop")
		time.Sleep(16 * time.Second)
		ps, _ = w.mem.Pods(context.Background())
		w.check(ps[0].State == lease.PodStopped && !b.PodAlive(ps[0]), "a stopped pod beats: %+v", ps)
	}},
	{handlerRunsAgain, func(w *world) {
		m := w.pod("a")
		l := w.acquire(m, wants(browser(nil), "u1"))
		w.fails(l.Ref().Token, 3)
		_, _ = m.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		time.Sleep(time.Second)
		h, _ := w.holder(l.Ref().Token)
		w.check(h.Revocation != nil && h.Revocation.HandledAt.IsZero(), "it counts as handled before it has run")
		time.Sleep(10 * time.Minute)
		w.check(w.handledBy("a", l.Ref().Token) == 4, "it ran %d times", w.handledBy("a", l.Ref().Token))
		h, _ = w.holder(l.Ref().Token)
		w.check(!h.Revocation.HandledAt.IsZero(), "it never counts as handled")
	}},
	{handlerSurvivesReaper, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b", quiet)
		l := w.acquire(a, wants(browser(nil), "u1"))
		w.calls.set(func() { // b dies right after its mark: its handler never starts
			w.calls.trip = func(op string) (error, error) {
				if op == "pods" || op == "markHandled" {
					return errStoreDown, nil
				}
				return nil, nil
			}
		})
		_, _ = b.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		synctest.Wait()
		w.kill(b)
		w.kill(a)
		w.calls.set(func() { w.calls.trip = nil })
		w.check(w.handledAnywhere(l.Ref().Token) == 0, "it ran: %v", w.handled)
		w.pod("c")
		time.Sleep(3 * time.Minute)
		w.check(w.handledBy("c", l.Ref().Token) == 1, "%v", w.handled)
	}},
	{panicIsAFailure, func(w *world) {
		m := w.newPod("a")
		var n atomic.Int32
		m.Register("bad", handlerFunc(func() error {
			if n.Add(1) == 1 {
				panic("oops")
			}
			return nil
		}))
		w.check(m.Start(context.Background()) == nil, "start")
		r := wants(browser(nil), "u1")
		r.Type = "bad"
		l := w.acquire(m, r)
		_, _ = m.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		time.Sleep(3 * time.Minute)
		w.check(n.Load() == 2, "it ran %d times", n.Load())
	}},
	{handlersAreBounded, func(w *world) {
		m := w.newPod("a", func(o *lease.Options) { o.Handlers = 2 })
		running, most, total := 0, 0, 0
		m.Register("slow", handlerFunc(func() error {
			w.mu.Lock()
			running++
			total++
			most = max(most, running)
			w.mu.Unlock()
			time.Sleep(5 * time.Second)
			w.mu.Lock()
			running--
			w.mu.Unlock()
			return nil
		}))
		w.check(m.Start(context.Background()) == nil, "start")
		d := browser(only(definition.Global, 100))
		for range 40 {
			r := wants(d, "u")
			r.Type = "slow"
			w.acquire(m, r)
		}
		_, _ = m.RevokePod(context.Background(), "a", "op")
		time.Sleep(10 * time.Minute)
		w.mu.Lock()
		ran, peak := total, most
		w.mu.Unlock()
		// The queue's pool and a sweep's may run at the same time.
		w.check(ran == 40 && peak <= 4, "%d handlers ran, up to %d at once", ran, peak)
	}},
	{failuresHideNothing, func(w *world) {
		m := w.newPod("a")
		d := browser(only(definition.Global, 2000))
		m.Register("gone", handlerFunc(func() error { return errors.New("no such host") }))
		w.check(m.Start(context.Background()) == nil, "start")
		for range 600 {
			r := wants(d, "u")
			r.Type = "gone"
			w.acquire(m, r)
		}
		_, _ = m.RevokePod(context.Background(), "a", "op")
		time.Sleep(time.Minute)
		l := w.acquire(m, wants(d, "u"))
		w.check(l.ReleaseUnconfirmed(context.Background()) == nil, "close") // for the sweeps alone
		time.Sleep(2 * time.Minute)
		w.check(w.handledBy("a", l.Ref().Token) == 1, "its handler ran %d times", w.handledBy("a", l.Ref().Token))
	}},
	{pendingHasNoHandler, func(w *world) {
		a := w.pod("a", quiet)
		w.calls.set(func() {
			w.calls.trip = func(op string) (error, error) {
				if op == "pushLast" || op == "deleteHolder" {
					return errStoreDown, nil
				}
				return nil, nil
			}
		})
		w.refused(a, wants(browser(nil), "u1"))
		a.Settle()
		w.calls.set(func() { w.calls.trip = nil })
		time.Sleep(time.Minute)
		swept, err := a.Sweep(context.Background())
		w.check(err == nil && swept.Idle == 1, "%+v %v", swept, err)
		time.Sleep(time.Minute)
		w.check(len(w.handled) == 0, "%v", w.handled)
		w.check(!w.saw("reap idle"), "it counts as a lease that was taken away")
	}},
	{listingIsNotTrusted, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b", quiet)
		d := browser(only(definition.Global, 1))
		d.TTL = time.Second
		var l *lease.Lease
		// The listing sees the holder PENDING; before its mark it becomes HELD and
		// idle. The store is asked to do so between the two.
		w.calls.set(func() { w.calls.slow = time.Millisecond })
		go func() {
			r := wants(d, "u1")
			l, _ = a.Acquire(context.Background(), r)
		}()
		time.Sleep(2500 * time.Microsecond) // created; the increment is under way
		hs, _ := w.mem.Holders(context.Background(), lease.Filter{})
		w.check(len(hs) == 1 && hs[0].State == lease.Pending, "%+v", hs)
		w.calls.set(func() { w.calls.slow = 0 })
		_, _ = b.RevokePod(context.Background(), "nobody", "op")
		time.Sleep(time.Second)
		// The revocation by an operator has no condition on time, so the two steps
		// can be told apart: listed PENDING, marked HELD.
		r := &relisting{Store: w.mem, as: hs[0]}
		c, err := lease.New(lease.Options{Store: r, Pod: lease.Pod{ID: "c", Endpoint: "c:1"}, Peers: w, Observer: watcher{w}, ReapInterval: 1000 * time.Hour})
		w.check(err == nil, "%v", err)
		c.Register("t", handler{w, "c"})
		w.check(c.Start(context.Background()) == nil, "start")
		synctest.Wait()
		defer func() { _ = c.Stop(context.Background(), false) }()
		_, err = c.Revoke(context.Background(), hs[0].Token, lease.Cause{})
		w.check(err == nil, "%v", err)
		synctest.Wait()
		w.check(w.handledAnywhere(hs[0].Token) == 1, "its handler did not run")
		w.balanced()
		_ = l
	}},
	{ownPodAlive, func(w *world) {
		m := w.pod("a")
		w.check(m.PodAlive(lease.Pod{ID: "a"}), "it takes itself for dead")
		l := w.acquire(m, bound(wants(browser(nil), "u1")))
		w.calls.set(func() { // its beats are lost
			w.calls.trip = func(op string) (error, error) {
				if op == "beatPod" || op == "putPod" {
					return errStoreDown, nil
				}
				return nil, nil
			}
		})
		w.used(l, 10*time.Minute)
		_, _ = m.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		time.Sleep(time.Minute)
		w.check(w.handledBy("a", l.Ref().Token) == 1, "its podBound resource was not handled: %v", w.handled)
	}},
	{deadPodIsReaped, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b")
		d := browser(only(definition.Global, 1))
		d.TTL = time.Hour
		w.acquire(a, wants(d, "u1"))
		time.Sleep(2 * time.Minute)
		w.kill(a)
		time.Sleep(80 * time.Second) // stale after 45 s, swept within 30 s
		r := wants(d, "u2")
		r.MaxWait = lease.NoWait
		w.acquire(b, r)
	}},
	{newPodIsNotReaped, func(w *world) {
		a := w.pod("a", quiet)
		time.Sleep(5 * time.Minute)
		var l *lease.Lease
		w.calls.set(func() {
			w.calls.trip = func(op string) (error, error) {
				// Right before a lists whose leases there are, b starts and takes one.
				if op == "holderPods" && l == nil {
					l = w.acquire(w.pod("b", quiet), wants(browser(nil), "u1"))
				}
				return nil, nil
			}
		})
		_, err := a.Sweep(context.Background())
		w.check(err == nil && l != nil, "%v", err)
		w.lives(l)
	}},
	{frozenPodIsNotReaped, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b", quiet, func(o *lease.Options) { o.Heartbeat, o.StaleAfter = 20*time.Second, 45*time.Second })
		l := w.acquire(b, wants(browser(nil), "u1"))
		time.Sleep(2 * time.Minute)
		w.lives(l)
		// b's beat looks stale at the first reading and is fresh at the next one.
		first := true
		stale := &stalePods{Store: w.mem, first: &first, pod: "b"}
		c, err := lease.New(lease.Options{Store: stale, Pod: lease.Pod{ID: "c", Endpoint: "c:1"}, Peers: w, Observer: watcher{w}, ReapInterval: 1000 * time.Hour})
		w.check(err == nil, "%v", err)
		c.Register("t", handler{w, "c"})
		w.check(c.Start(context.Background()) == nil, "start")
		synctest.Wait()
		defer func() { _ = c.Stop(context.Background(), false) }()
		time.Sleep(time.Minute)
		w.lives(l)
		first = true
		_, err = c.Sweep(context.Background())
		w.check(err == nil, "%v", err)
		w.lives(l)
		_ = a
	}},
	{outageCostsNothing, func(w *world) {
		a, b := w.pod("a"), w.pod("b")
		time.Sleep(10 * time.Minute)
		short := browser(only(definition.User, 1))
		short.TTL = 20 * time.Second
		leases := []*lease.Lease{w.acquire(a, wants(browser(nil), "u1")), w.acquire(b, bound(wants(browser(nil), "u2"))), w.acquire(a, wants(short, "u3"))}
		for _, outage := range []time.Duration{40 * time.Second, 50 * time.Second, 3 * time.Minute, 20 * time.Minute} {
			for range 10 {
				time.Sleep(9 * time.Second)
				for _, l := range leases {
					w.lives(l)
				}
			}
			w.calls.set(func() { w.calls.down = true })
			for begun := time.Now(); time.Since(begun) < outage; time.Sleep(10 * time.Second) {
				for _, l := range leases {
					_ = l.Check(context.Background())
				}
			}
			w.calls.set(func() { w.calls.down = false })
			// Sweeps come before the first beats and checks.
			for _, m := range []*lease.Manager{a, b} {
				_, err := m.Sweep(context.Background())
				w.check(err == nil, "%v", err)
			}
			time.Sleep(9 * time.Second)
			for i, l := range leases {
				if err := l.Check(context.Background()); err != nil {
					w.fatalf("an outage of %s costs lease %d: %v", outage, i, err)
				}
			}
		}
		// The grace ends: what is idle goes.
		time.Sleep(10 * time.Minute)
		w.check(w.living() == 0, "%d holders live for ever", w.living())
	}},
	{startIsPatient, func(w *world) {
		a := w.pod("a", quiet)
		d := browser(nil)
		l := w.acquire(a, wants(d, "u1"))
		w.kill(a)
		time.Sleep(10 * time.Minute) // everything was down
		b := w.pod("b")
		time.Sleep(40 * time.Second)
		w.check(b.Attach(l.Ref()).Peek(context.Background()) == nil, "it was reaped at once")
		w.lives(b.Attach(l.Ref())) // its client comes back
		time.Sleep(time.Minute)
		w.lives(b.Attach(l.Ref()))
	}},
	{singlePodIsSure, func(w *world) {
		w.mem.SetSinglePod(true)
		a := w.pod("a", quiet)
		l := w.acquire(a, wants(browser(nil), "u1"))
		w.kill(a)
		b := w.pod("b", quiet)
		synctest.Wait()
		w.check(w.handledBy("b", l.Ref().Token) == 1, "%v", w.handled)
		w.lost(b.Attach(l.Ref()), lease.ReasonPod)
		w.balanced()
	}},
	{handoverIsLeft, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b")
		d := browser(only(definition.Global, 9))
		l := w.acquire(a, wants(d, "u1"))
		stdio := w.acquire(a, bound(wants(d, "u2")))
		w.check(a.Stop(context.Background(), true) == nil, "stop")
		time.Sleep(90 * time.Second)
		l = b.Attach(l.Ref())
		w.lives(l)
		w.lost(b.Attach(stdio.Ref()), lease.ReasonPod)
		w.used(l, 10*time.Minute)
		h, _ := w.holder(l.Ref().Token)
		w.check(h.Pod == "b", "its pod is %s", h.Pod)
		w.check(w.handledAnywhere(l.Ref().Token) == 0, "its handler ran")
		time.Sleep(3 * time.Minute)
		w.lost(l, lease.ReasonIdle)
	}},
	{jobsAreAdopted, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b")
		l := w.acquire(a, job(wants(browser(nil), "u1")))
		sync := w.acquire(a, bound(job(wants(browser(nil), "u2"))))
		w.kill(a)
		time.Sleep(90 * time.Second)
		w.check(w.wasAdopted("b", l.Ref().Token) && w.handledAnywhere(l.Ref().Token) == 0, "adopted %v, handled %v", w.adopted, w.handled)
		h, _ := w.holder(l.Ref().Token)
		w.check(h.Pod == "b" && h.State == lease.Held, "%+v", h)
		w.lives(b.Attach(l.Ref()))
		w.lost(b.Attach(sync.Ref()), lease.ReasonPod)
	}},
	{checkTakesOver, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b")
		time.Sleep(5 * time.Minute)
		l, stdio := w.acquire(a, wants(browser(nil), "u1")), w.acquire(a, bound(wants(browser(nil), "u2")))
		w.lives(b.Attach(l.Ref()))
		w.lives(b.Attach(stdio.Ref()))
		w.kill(a)
		time.Sleep(100 * time.Second)
		w.lives(b.Attach(l.Ref()))
		w.lost(b.Attach(stdio.Ref()), lease.ReasonPod)
	}},
	{marksArePurged, func(w *world) {
		m := w.pod("a")
		l := w.acquire(m, wants(browser(nil), "u1"))
		_, _ = m.Revoke(context.Background(), l.Ref().Token, lease.Cause{})
		time.Sleep(59 * time.Minute)
		w.check(m.LostReason(context.Background(), l.Ref().Token) == lease.ReasonRevoke, "it is forgotten")
		time.Sleep(2 * time.Minute)
		_, ok := w.holder(l.Ref().Token)
		w.check(!ok, "it stays for ever")
	}},
	{reconcileMends, func(w *world) {
		m := w.pod("a", quiet)
		d := browser(only(definition.Global, 9))
		l := w.acquire(m, wants(d, "u1"))
		id, _ := lease.NewCounterID("browser", definition.Global, lease.Scope{})
		unbooked, _ := lease.NewCounterID("tex", definition.Global, lease.Scope{})
		_ = w.mem.EnsureCounter(context.Background(), unbooked, "g")
		_, _, _, _ = w.mem.Increment(context.Background(), id, 9)
		done, err := m.Reconcile(context.Background())
		w.check(err == nil && done.Corrected == 0 && done.Removed == 0, "%+v %v", done, err)
		w.check(len(done.Drift) == 1 && done.Drift[0].ID == id && done.Drift[0].Count == 2 && done.Drift[0].Booked == 1, "%+v", done.Drift)
		time.Sleep(61 * time.Second)
		done, err = m.Reconcile(context.Background())
		w.check(err == nil && done.Corrected == 1 && done.Removed == 1, "%+v %v", done, err)
		w.check(w.counts()[id] == 1 && len(w.counts()) == 1, "%v", w.counts())
		w.release(l)
		time.Sleep(61 * time.Second)
		done, _ = w.withoutPod().Reconcile(context.Background())
		w.check(done.Removed == 1 && len(w.counts()) == 0, "%+v %v", done, w.counts())
	}},
	{movedLives, func(w *world) {
		a, b := w.pod("a", quiet), w.pod("b", quiet)
		l := w.acquire(a, wants(browser(nil), "u1"))
		w.kill(a)
		time.Sleep(100 * time.Second)
		w.calls.set(func() {
			w.calls.trip = func(op string) (error, error) {
				if op == "markHolder" {
					w.lives(b.Attach(l.Ref()))
				}
				return nil, nil
			}
		})
		swept, err := b.Sweep(context.Background())
		w.check(err == nil && swept.Pod == 0, "%+v %v", swept, err)
		w.lives(b.Attach(l.Ref()))
	}},
	{busyIsMended, func(w *world) {
		m, d := w.pod("a"), browser(only(definition.Global, 4))
		id := must(lease.NewCounterID("browser", definition.Global, lease.Scope{}))
		long := w.acquire(m, wants(d, "u1"))
		for range 2 { // crashes between increment and entry
			_, _, _, _ = w.mem.Increment(context.Background(), id, 9)
		}
		for range 40 { // never quiet for longer than ten seconds
			l := w.acquire(m, wants(d, "u2"))
			w.lives(long)
			time.Sleep(5 * time.Second)
			w.release(l)
			time.Sleep(5*time.Second + 7*time.Millisecond)
		}
		w.check(w.counts()[id] == 1, "one holds it, and the counter is %d", w.counts()[id])
		w.check(w.saw("reconcile corrected"), "not counted")
		w.release(long)
		w.check(w.counts()[id] == 0, "nobody holds it, and the counter is %d", w.counts()[id])
	}},
	{passingDriftIsLeft, func(w *world) {
		m, d := w.pod("a", quiet), browser(only(definition.Global, 4))
		id := must(lease.NewCounterID("browser", definition.Global, lease.Scope{}))
		pass := func() lease.Reconciled { return must(m.ReconcilePeriodically(context.Background())) }
		w.acquire(m, wants(d, "u1"))
		for range 5 {
			gen, _, _, _ := w.mem.Increment(context.Background(), id, 9) // it is on its way
			done := pass()
			w.check(len(done.Drift) == 1 && !done.Drift[0].Audited, "%+v", done)
			_, _ = w.mem.Decrement(context.Background(), id, gen, gen)
			pass()
		}
		w.check(w.calls.of("openAudit") == 0, "an audit has begun")
		_, _, _, _ = w.mem.Increment(context.Background(), id, 9)
		pass()
		done := pass()
		w.check(len(done.Drift) == 1 && done.Drift[0].Audited, "no audit has begun: %+v", done)
	}},
	{askedAuditsAtOnce, func(w *world) {
		m, d := w.pod("a", quiet), browser(only(definition.Global, 6))
		id := must(lease.NewCounterID("browser", definition.Global, lease.Scope{}))
		for _, asked := range []func() lease.Reconciled{
			func() lease.Reconciled { return must(m.Reconcile(context.Background())) },
			func() lease.Reconciled {
				return must(w.withoutPod().Reconcile(context.Background()))
			},
		} {
			old, forced := w.acquire(m, wants(d, "u1")), w.acquire(m, wants(d, "u2"))
			w.used(old, 2*time.Minute)
			w.used(forced, 2*time.Minute)
			_, _, _, _ = w.mem.Increment(context.Background(), id, 9)
			done := asked()
			w.check(done.Corrected == 0 && len(done.Drift) == 1 && done.Drift[0].Audited && done.Drift[0].Count == 3 && done.Drift[0].Booked == 2, "%+v", done)
			time.Sleep(30 * time.Second)
			_, err := w.withoutPod().ForceRevoke(context.Background(), forced.Ref().Token, lease.Cause{By: "op"})
			w.check(err == nil, "%v", err)
			done = asked()
			w.check(done.Corrected == 0 && len(done.Drift) == 1 && done.Drift[0].Audited && done.Drift[0].Count == 2, "within the margin: %+v", done)
			time.Sleep(31 * time.Second)
			l := w.acquire(m, wants(d, "u3"))
			done = asked()
			w.check(done.Corrected == 1 && len(done.Drift) == 0, "after the margin: %+v", done)
			w.check(w.counts()[id] == 2, "two hold it, and the counter is %d", w.counts()[id])
			w.release(l)
			w.lives(old)
			w.release(old)
			w.check(w.counts()[id] == 0, "nobody holds it, and the counter is %d", w.counts()[id])
		}
	}},
	{auditEndsExactly, func(w *world) {
		m, d := w.pod("a", quiet), browser(only(definition.Global, 6))
		id := must(lease.NewCounterID("browser", definition.Global, lease.Scope{}))
		old := w.acquire(m, wants(d, "u1"))
		_, _, _, _ = w.mem.Increment(context.Background(), id, 9)
		_ = must(m.Reconcile(context.Background()))
		w.used(old, 2*time.Minute)
		l := w.acquire(m, wants(d, "u2"))
		counted, given := false, false
		w.calls.set(func() {
			w.calls.trip = func(op string) (before, after error) {
				switch op { // a heartbeat may come at the same time
				case "bookedBefore":
					counted = true
				case "counters", "closeAudit": // the step after the bookings were counted
					if counted && !given {
						given = true
						w.release(old)
					}
				}
				return nil, nil
			}
		})
		done := must(m.Reconcile(context.Background()))
		w.check(given, "the audit has not come to its end")
		w.check(done.Corrected == 1 && len(done.Drift) == 0, "%+v", done)
		w.check(w.counts()[id] == 1, "one holds it, and the counter is %d", w.counts()[id])
		w.release(l)
	}},
	{takenDuringAudit, func(w *world) {
		m, d := w.pod("a", quiet), browser(only(definition.Global, 6))
		id := must(lease.NewCounterID("browser", definition.Global, lease.Scope{}))
		leak := func() { _, _, _, _ = w.mem.Increment(context.Background(), id, 9) }
		asked := func() lease.Reconciled { return must(m.Reconcile(context.Background())) }
		first := w.acquire(m, wants(d, "u1"))
		leak()
		asked()
		w.release(first) // young, and older than the audit
		w.check(w.counts()[id] == 1, "the leak is left, and the counter is %d", w.counts()[id])
		time.Sleep(50 * time.Second)
		l := w.acquire(m, wants(d, "u2"))
		time.Sleep(11 * time.Second)
		done := asked()
		w.check(done.Corrected == 1 && w.counts()[id] == 1, "%+v, and the counter is %d", done, w.counts()[id])
		leak()
		done = asked() // its audit would begin too soon
		w.check(len(done.Drift) == 1 && !done.Drift[0].Audited, "%+v", done)
		w.release(l)
		w.check(w.counts()[id] == 1, "the second leak is left, and the counter is %d", w.counts()[id])
	}},
	{deadRegistrationsGo, func(w *world) {
		a, _ := w.pod("a", quiet), w.pod("b")
		w.kill(a)
		time.Sleep(50 * time.Minute)
		ps, _ := w.mem.Pods(context.Background())
		w.check(len(ps) == 2, "%+v", ps)
		time.Sleep(20 * time.Minute)
		ps, _ = w.mem.Pods(context.Background())
		w.check(len(ps) == 1 && ps[0].ID == "b", "%+v", ps)
	}},
	{forceNeedsNoPod, func(w *world) {
		a := w.pod("a", quiet)
		d := browser(only(definition.Global, 9))
		l, n := w.acquire(a, wants(d, "u1")), w.acquire(a, wants(d, "u2"))
		w.kill(a)
		v := w.withoutPod()
		_, err := v.ForceRevoke(context.Background(), l.Ref().Token, lease.Cause{By: "op", Tenant: "other"})
		w.check(errors.Is(err, lease.ErrNotFound), "%v", err)
		_, err = v.ForceRevoke(context.Background(), l.Ref().Token, lease.Cause{By: "op"})
		w.check(err == nil, "%v", err)
		w.balanced()
		w.check(w.handledAnywhere(l.Ref().Token) == 0, "%v", w.handled)
		es, _ := v.Events(context.Background(), "", 10)
		w.check(len(es) == 1 && es[0].Kind == "forced" && es[0].By == "op", "%+v", es)
		k, err := v.ForceRevokePod(context.Background(), "a", "op")
		w.check(k == 1 && err == nil, "%d %v", k, err)
		w.balanced()
		w.pod("b")
		time.Sleep(3 * time.Minute)
		w.check(w.handledBy("b", l.Ref().Token) == 1 && w.handledBy("b", n.Ref().Token) == 1, "%v", w.handled)
		revoked := 0
		for _, o := range w.outcomes {
			if o == "reap revoke" {
				revoked++
			}
		}
		w.check(revoked == 2, "two leases were revoked, and counted are %d", revoked)
	}},
	{viewCounts, func(w *world) {
		a := w.pod("a", quiet)
		d := browser(only(definition.Global, 9))
		w.acquire(a, wants(d, "u1"))
		w.acquire(a, wants(d, "u2"))
		os, err := a.Occupancies(context.Background(), lease.OccupancyFilter{Resource: "browser"})
		w.check(err == nil && len(os) == 1 && os[0].Booked == 2 && os[0].Count == 2 && os[0].Level == definition.Global && os[0].Scope == "*", "%+v %v", os, err)
	}},
	{labelsStayFew, func(w *world) {
		var l labelled
		x, err := lease.New(lease.Options{Store: w.mem, Pod: lease.Pod{ID: "x", Endpoint: "x:1"}, Observer: &l, ReapInterval: 1000 * time.Hour})
		w.check(err == nil, "%v", err)
		x.Register("t", handler{w, "x"})
		w.check(x.Start(context.Background()) == nil, "start")
		defer func() { _ = x.Stop(context.Background(), false) }()
		secret := browser(only(definition.Project, 1))
		secret.Resource, secret.Label = "a-tenants-name", "other"
		inline := browser(only(definition.Project, 1))
		inline.Inline, inline.Resource, inline.Label = true, "mcp-inline:acme/thesis/x", "mcp-inline"
		for _, d := range []*definition.Definition{browser(nil), secret, inline} {
			w.acquire(x, wants(d, "u1"))
		}
		_, _ = x.Reconcile(context.Background())
		for _, n := range l.names {
			w.check(n == "browser" || n == "mcp-inline" || n == "other", "label %q", n)
		}
		w.check(len(l.names) >= 6, "%v", l.names)
	}},
	{handleRevokedAnswers, func(w *world) {
		m := w.pod("a", quiet)
		l := w.acquire(m, wants(browser(nil), "u1"))
		t := l.Ref().Token
		w.check(errors.Is(m.HandleRevoked(context.Background(), t), lease.ErrNotFound), "a living lease was handled")
		w.check(errors.Is(m.HandleRevoked(context.Background(), "nobody"), lease.ErrNotFound), "nobody was handled")
		_, _, _ = w.mem.MarkHolder(context.Background(), t, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}})
		w.fails(t, 1)
		w.check(m.HandleRevoked(context.Background(), t) != nil, "a failed handler counts as done")
		w.check(m.HandleRevoked(context.Background(), t) == nil, "it failed")
		w.check(m.HandleRevoked(context.Background(), t) == nil, "it failed")
		w.check(w.handledBy("a", t) == 2, "it ran %d times", w.handledBy("a", t))
	}},
}

type handlerFunc func() error

func (f handlerFunc) OnRevoked(context.Context, lease.Holder) error { return f() }

// relisting shows one holder as it was at an earlier time, once.
type relisting struct {
	lease.Store
	as   lease.Holder
	once atomic.Bool
}

func (r *relisting) Holder(ctx context.Context, t lease.Token) (lease.Holder, bool, error) {
	if r.once.CompareAndSwap(false, true) {
		return r.as, true, nil
	}
	return r.Store.Holder(ctx, t)
}

// stalePods shows a pod without its beats at the first reading.
type stalePods struct {
	lease.Store
	first *bool
	pod   lease.PodID
}

func (s *stalePods) Pods(ctx context.Context) ([]lease.Pod, error) {
	ps, err := s.Store.Pods(ctx)
	for i := range ps {
		if ps[i].ID == s.pod && *s.first {
			*s.first = false
			ps[i].BeatAge = time.Hour
		}
	}
	return ps, err
}

// labelled keeps the labels of drift.
type labelled struct{ names []string }

func (l *labelled) Acquired(string, lease.Outcome, time.Duration) {}
func (l *labelled) Checked(string, lease.Outcome)                 {}
func (l *labelled) Released(string, lease.Outcome)                {}
func (l *labelled) Reaped(lease.Reason)                           {}
func (l *labelled) EventLost()                                    {}
func (l *labelled) Reconciled(lease.Outcome)                      {}
func (l *labelled) StoreCalled(string, time.Duration, error)      {}
func (l *labelled) Happened(lease.Event)                          {}
func (l *labelled) Drifted(name string, _ definition.Level, _ int, _ time.Duration) {
	l.names = append(l.names, name)
}
