//go:build external

package chaos

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

func seed(t *testing.T) uint64 {
	n := rand.Uint64()
	if s := os.Getenv("CHAOS_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}
	}
	t.Logf("seed %d (CHAOS_SEED=%d repeats the decisions, not the timing)", n, n)
	return n
}

// run lets everybody live while events happens, then stops the clients, waits
// until all is given back, and prints the figures.
func (w *world) run(t *testing.T, seed uint64, events func(ctx context.Context, r *rand.Rand)) {
	j := newJudge(t, w)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var lives, looks sync.WaitGroup
	for n := range clients {
		lives.Go(func() { w.live(ctx, n, seed, false) })
	}
	for n := range 3 {
		lives.Go(func() { w.live(ctx, n, seed, true) })
	}
	looks.Go(func() {
		for ctx.Err() == nil {
			j.look(context.WithoutCancel(ctx))
			pause(ctx, 150*time.Millisecond)
		}
	})
	began := time.Now()
	// The caps must be near before anything goes wrong, and enough must happen
	// for a run to prove anything. How long that takes is the machine's affair;
	// a bad network also costs slots until their counter has been audited.
	await := func(what string, ok func() bool) {
		for begun := time.Now(); !ok(); pause(ctx, 100*time.Millisecond) {
			if time.Since(begun) > 2*time.Minute {
				t.Errorf("too little happened for the run to prove anything: not %s", what)
				return
			}
		}
	}
	await("half the slots taken at once", func() bool { return j.peak.Load() >= capGlobal/2 })
	events(ctx, rand.New(rand.NewPCG(seed, 1<<63)))
	await("40 sessions opened", func() bool { return w.opened.Load() >= 40 })
	await("a client refused", func() bool { return w.refused.Load() > 0 })
	await("30 looks by the judge", func() bool { return j.looks.Load() >= 30 })
	stop()
	lives.Wait()
	looks.Wait()

	// TTL, staleAfter, the margin and two sweeps, and twice that for a machine
	// that is busy: it answers as soon as all is given back.
	patience := 2*(ttl+staleAfter+margin+2*sweep) + ttl
	deadline := time.Now().Add(patience)
	settling := time.Now()
	left, orphans := j.settled(t.Context())
	for len(left) > 0 && time.Now().Before(deadline) {
		pause(t.Context(), 100*time.Millisecond)
		left, orphans = j.settled(t.Context())
	}
	for _, l := range left {
		t.Errorf("after %s: %s", patience, l)
	}
	st := w.upstream.Stats()
	t.Logf("%s of load: %d opened, %d refused busy, %d calls, %d ended, %d abandoned, %d lost, %d unavailable, %d requests cut; %d pods killed",
		settling.Sub(began).Round(time.Second), w.opened.Load(), w.refused.Load(), w.calls.Load(), w.ended.Load(), w.abandoned.Load(),
		w.lost.Load(), w.unavailable.Load(), w.cut.Load(), w.kills.Load())
	t.Logf("upstream: %d opened, peak %d alive, %d ended by DELETE; %d looks by the judge (%d while the store was away), at most %d counted sessions of %d; all given back after %s; %d sessions whose id died with the pod that had just opened them",
		st.Opened, st.Peak, st.Deleted, j.looks.Load(), j.missed, j.peak.Load(), capGlobal, time.Since(settling).Round(100*time.Millisecond), orphans)
	// A pod can die with at most as many opens between the upstream's answer
	// and the store's as run in it at that instant; one in three is generous.
	if orphans > int(w.kills.Load())/3+1 {
		t.Errorf("%d sessions that nobody knows for %d killed pods", orphans, w.kills.Load())
	}
}

func TestCapsHoldWhilePodsDieAndTheStoreGoesAway(t *testing.T) {
	w := newWorld(t, false)
	w.run(t, seed(t), func(ctx context.Context, r *rand.Rand) {
		for began := time.Now(); time.Since(began) < 20*time.Second; {
			w.killOne(ctx, r)
			pause(ctx, time.Duration(1+r.IntN(2))*time.Second)
		}
		// Let the last dead pod be found dead before the store's absence is judged.
		pause(ctx, staleAfter+3*sweep)

		w.losses()
		w.store.Stop(t)
		away := time.Now()
		pause(ctx, ttl+2*time.Second) // longer than the TTL and staleAfter
		w.store.Restart(t)
		t.Logf("the store was away for %s", time.Since(away).Round(100*time.Millisecond))
		pause(ctx, 6*time.Second)
		for reason, n := range w.losses() {
			t.Errorf("the store's absence cost %d living sessions (reason %s)", n, reason)
		}

		i, frozen := w.take(r)
		if err := w.freeze(frozen); err != nil {
			t.Fatal(err)
		}
		pause(ctx, ttl+staleAfter)
		if err := frozen.Thaw(); err != nil {
			t.Fatal(err)
		}
		w.put(i, frozen)
		pause(ctx, 4*time.Second)
		t.Logf("lost while a pod was frozen for longer than its TTL: %v", w.losses())
		w.killOne(ctx, r)
		w.killOne(ctx, r)
	})
}

func TestCapsHoldOnABadNetworkToTheStore(t *testing.T) {
	w := newWorld(t, true)
	w.run(t, seed(t), func(ctx context.Context, r *rand.Rand) {
		for began := time.Now(); time.Since(began) < 30*time.Second; {
			f := w.flaky[r.IntN(len(w.flaky))]
			switch r.IntN(4) {
			case 0:
				f.Delay(time.Duration(5+r.IntN(60)) * time.Millisecond)
				pause(ctx, time.Second)
				f.Delay(0)
			case 1:
				f.Cut()
			case 2:
				f.BlackHole(true)
				pause(ctx, time.Duration(500+r.IntN(2500))*time.Millisecond)
				f.BlackHole(false)
				f.Cut()
			case 3:
				f.Refuse(true)
				f.Cut()
				pause(ctx, time.Duration(200+r.IntN(1000))*time.Millisecond)
				f.Refuse(false)
			}
			pause(ctx, time.Duration(r.IntN(700))*time.Millisecond)
		}
	})
}
