package lease

import (
	"testing"
	"time"
)

func TestGrace(t *testing.T) {
	zero := time.Unix(1_000_000, 0)
	at := func(s int) time.Time { return zero.Add(time.Duration(s) * time.Second) }
	fresh := func() *contact { return &contact{long: 30 * time.Second, stale: 45 * time.Second} }

	t.Run("answers in a row are no gap", func(t *testing.T) {
		c := fresh()
		for s := range 100 {
			c.succeeded(at(s))
		}
		if c.idleGrace(at(100), time.Second) || c.podGrace(at(100)) {
			t.Error("there is a grace")
		}
	})
	t.Run("a failure between two answers close together is no gap", func(t *testing.T) {
		c := fresh()
		c.succeeded(at(0))
		c.failed()
		c.succeeded(at(0).Add(900 * time.Millisecond))
		if c.idleGrace(at(1), time.Second) {
			t.Error("a blip protects")
		}
	})
	t.Run("an outage protects each lease for one TTL, and pods until they can have beaten", func(t *testing.T) {
		c := fresh()
		c.succeeded(at(0))
		c.failed()
		c.succeeded(at(40))
		for _, tc := range []struct {
			now       int
			ttl       time.Duration
			idle, pod bool
		}{
			{41, 2 * time.Minute, true, true},
			{84, 2 * time.Minute, true, true},
			{86, 2 * time.Minute, true, false},
			{159, 2 * time.Minute, true, false},
			{161, 2 * time.Minute, false, false},
			{51, 10 * time.Second, false, true},
		} {
			if got := c.idleGrace(at(tc.now), tc.ttl); got != tc.idle {
				t.Errorf("at %d s, TTL %s: idle grace %v", tc.now, tc.ttl, got)
			}
			if got := c.podGrace(at(tc.now)); got != tc.pod {
				t.Errorf("at %d s: pod grace %v", tc.now, got)
			}
		}
	})
	t.Run("a short outage protects the leases that it could have ended", func(t *testing.T) {
		c := fresh()
		c.succeeded(at(0))
		c.failed()
		c.succeeded(at(12))
		if !c.idleGrace(at(13), 20*time.Second) {
			t.Error("a lease with a TTL of 20 s is not protected from an outage of 12 s")
		}
		if c.idleGrace(at(13), 2*time.Minute) || c.podGrace(at(13)) {
			t.Error("an outage of 12 s protects a lease with a TTL of two minutes")
		}
	})
	t.Run("a silence without a failure counts when it is long", func(t *testing.T) {
		c := fresh()
		c.succeeded(at(0))
		c.succeeded(at(29))
		if c.podGrace(at(29)) {
			t.Error("29 s of silence are a gap")
		}
		c.succeeded(at(60))
		if !c.podGrace(at(60)) {
			t.Error("31 s of silence are none")
		}
	})
	t.Run("gaps are bounded, and the long ones stay", func(t *testing.T) {
		c := fresh()
		c.start(at(0))
		now := at(0)
		for range 1000 {
			c.succeeded(now)
			c.failed()
			now = now.Add(2 * time.Second)
			c.succeeded(now)
		}
		if len(c.gaps) > maxGaps {
			t.Errorf("%d gaps", len(c.gaps))
		}
		if !c.idleGrace(now, 24*time.Hour) {
			t.Error("the start is forgotten")
		}
		c.forget(now.Add(72*time.Hour), 48*time.Hour)
		if len(c.gaps) != 0 {
			t.Errorf("%d gaps after three days", len(c.gaps))
		}
	})
}

func TestPodAlive(t *testing.T) {
	const stale = 45 * time.Second
	good := Pod{ID: "a", Endpoint: "a:1", State: PodRunning, BeatAge: stale - 1}
	for says, tc := range map[string]struct {
		change func(*Pod)
		alive  bool
	}{
		"registered, beating, with an endpoint": {func(*Pod) {}, true},
		"starting":                              {func(p *Pod) { p.State = PodStarting }, true},
		"stopping":                              {func(p *Pod) { p.State = PodStopping }, true},
		"stopped":                               {func(p *Pod) { p.State = PodStopped }, false},
		"stale":                                 {func(p *Pod) { p.BeatAge = stale }, false},
		"without an endpoint":                   {func(p *Pod) { p.Endpoint = "" }, false},
		"not registered":                        {func(p *Pod) { *p = Pod{} }, false},
		"in a state that nobody knows":          {func(p *Pod) { p.State = "PAUSED" }, false},
	} {
		t.Run(says, func(t *testing.T) {
			p := good
			tc.change(&p)
			if PodAlive(p, stale) != tc.alive {
				t.Errorf("alive: %v", !tc.alive)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	good := func() Options { return Options{Store: NewAround(nil, nil), Pod: Pod{ID: "a", Endpoint: "a:1"}} }
	if _, err := New(good()); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*Options){
		"no store":           func(o *Options) { o.Store = nil },
		"one lost beat":      func(o *Options) { o.Heartbeat, o.StaleAfter = time.Second, 1500*time.Millisecond },
		"a negative period":  func(o *Options) { o.PendingTTL = -1 },
		"a negative bound":   func(o *Options) { o.MaxWaiters = -1 },
		"a negative timeout": func(o *Options) { o.OpTimeout = -time.Second },
	} {
		o := good()
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s is taken", says)
		}
	}
	for says, p := range map[string]Pod{"no pod id": {Endpoint: "a:1"}, "no endpoint": {ID: "a"}} {
		o := good()
		o.Pod = p
		if m, err := New(o); err != nil || m.Start(t.Context()) == nil {
			t.Errorf("%s: it was started, or not even made: %v", says, err)
		}
	}
}
