package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

// racers is how many goroutines race.
const racers = 32

// race runs f in n goroutines that start together and returns how many said yes.
func (c *contract) race(n int, f func(i int) (bool, error)) int {
	c.Helper()
	var wins atomic.Int64
	var failed atomic.Value
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			ok, err := f(i)
			if err != nil {
				failed.Store(err)
			}
			if ok {
				wins.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	if err, _ := failed.Load().(error); err != nil {
		c.Fatal(err)
	}
	return int(wins.Load())
}

var raceTests = map[string]func(*contract){
	"checks in a crowd are each answered for their own holder, and one that has begun after a mark finds nothing": func(c *contract) {
		var held, gone []lease.Holder
		for range racers / 2 {
			held = append(held, c.held(long, []lease.CounterID{globalCounter}))
			gone = append(gone, c.held(long, []lease.CounterID{globalCounter}))
		}
		var marked [racers / 2]atomic.Bool
		c.race(2*racers, func(i int) (bool, error) {
			for n := range 8 {
				at := (i/2 + n) % len(held)
				if i%2 == 0 {
					if ok, err := c.Touch(c.ctx, held[at].Token, held[at].Pod); err != nil || !ok {
						return false, fmt.Errorf("a check of a lease that is held says %v: %w", ok, err)
					}
					continue
				}
				if n == 0 && i/2 < len(gone) {
					if _, _, err := c.MarkHolder(c.ctx, gone[i/2].Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}}); err != nil {
						return false, err
					}
					marked[i/2].Store(true)
				}
				was := marked[at].Load()
				ok, err := c.Touch(c.ctx, gone[at].Token, gone[at].Pod)
				if err != nil || ok && was {
					return false, fmt.Errorf("a check after the mark says %v: %w", ok, err)
				}
			}
			return true, nil
		})
		for _, h := range gone {
			c.no("after all")(c.Touch(c.ctx, h.Token, h.Pod))
		}
	},
	"first use by many creates one counter and fills it to its cap": func(c *contract) {
		for _, limit := range []int{1, 7} {
			id := lease.CounterID(fmt.Sprintf("tex|user|acme/u%d", limit))
			var gens sync.Map
			wins := c.race(racers, func(i int) (bool, error) {
				if err := c.EnsureCounter(c.ctx, id, lease.Gen(fmt.Sprint("g", i))); err != nil {
					return false, err
				}
				gen, count, ok, err := c.Increment(c.ctx, id, definition.Cap(limit))
				if ok {
					gens.Store(gen, true)
					if count < 1 || count > limit {
						return true, fmt.Errorf("count %d with cap %d", count, limit)
					}
				}
				return ok, err
			})
			got := c.count(id)
			if wins != limit || got.Count != limit {
				c.Fatalf("cap %d: %d won, count %d", limit, wins, got.Count)
			}
			gens.Range(func(gen, _ any) bool {
				if gen != got.Gen {
					c.Fatalf("an increment saw generation %v, the counter's is %s", gen, got.Gen)
				}
				return true
			})
		}
	},
	"increments and decrements in a crowd never pass cap or floor and lose nothing": func(c *contract) {
		const limit = 5
		c.counter(userCounter, 0)
		var balance atomic.Int64
		c.race(racers, func(int) (bool, error) {
			for range 8 {
				_, count, ok, err := c.Increment(c.ctx, userCounter, limit)
				if err != nil {
					return false, err
				}
				if !ok {
					continue
				}
				if count < 1 || count > limit {
					return false, fmt.Errorf("count %d", count)
				}
				balance.Add(1)
				if ok, err := c.Decrement(c.ctx, userCounter, "g1", "g1"); err != nil || !ok {
					return false, fmt.Errorf("what was taken cannot be given back: %v, %v", ok, err)
				}
				balance.Add(-1)
			}
			return true, nil
		})
		if n := c.count(userCounter).Count; n != 0 || balance.Load() != 0 {
			c.Fatalf("count %d, balance %d", n, balance.Load())
		}
	},
	"as many decrements win as there is to give back": func(c *contract) {
		c.counter(userCounter, 9)
		if wins := c.race(racers, func(int) (bool, error) { return c.Decrement(c.ctx, userCounter, "g1", "g1") }); wins != 9 {
			c.Fatalf("%d decrements of 9 won", wins)
		}
	},
	"deletes and marks of one holder have one winner": func(c *contract) {
		for _, h := range []lease.Holder{c.held(long, nil), c.pending()} {
			wins := c.race(racers, func(i int) (bool, error) {
				if i%2 == 0 {
					_, ok, err := c.DeleteHolder(c.ctx, h.Token)
					return ok, err
				}
				return c.markOK(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}})
			})
			if wins != 1 {
				c.Fatalf("%d winners", wins)
			}
		}
	},
	"a handler's end has one winner": func(c *contract) {
		h := c.revoked()
		if wins := c.race(racers, func(int) (bool, error) { return c.MarkHandled(c.ctx, h.Token) }); wins != 1 {
			c.Fatalf("%d winners", wins)
		}
	},
	"pushes of one counter have one winner": func(c *contract) {
		h := c.pending()
		if wins := c.race(racers, func(int) (bool, error) { return c.PushLevel(c.ctx, h.Token, booking(userCounter), long) }); wins != 1 {
			c.Fatalf("%d winners", wins)
		}
		c.same("levels", c.read(h.Token).Levels, []lease.Booking{booking(userCounter)})
	},
	"a mark that meets the last push sees the holder before it or after it": func(c *contract) {
		for range 10 {
			h := c.pending()
			c.yes("push")(c.PushLevel(c.ctx, h.Token, booking(userCounter), long))
			var before lease.Holder
			var pushed, marked bool
			c.race(2, func(i int) (ok bool, err error) {
				if i == 0 {
					pushed, err = c.PushLast(c.ctx, h.Token, booking(globalCounter), []lease.CounterID{userCounter}, long, long)
					return pushed, err
				}
				before, marked, err = c.MarkHolder(c.ctx, h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonPod}})
				return marked, err
			})
			if !marked {
				c.Fatal("the mark found nothing")
			}
			if want := map[bool]lease.State{true: lease.Held, false: lease.Pending}[pushed]; before.State != want || len(before.Levels) != map[bool]int{true: 2, false: 1}[pushed] {
				c.Fatalf("pushed %v, and the mark saw %s with %d levels", pushed, before.State, len(before.Levels))
			}
			if handled := !c.read(h.Token).Revocation.HandledAt.IsZero(); handled == pushed {
				c.Fatalf("pushed %v, handled %v", pushed, handled)
			}
		}
	},
	"a touch that answered yes is not followed by an idle reap within the TTL": func(c *contract) {
		const ttl = 60 * msec
		expired := lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}, Expired: true}
		for range 6 {
			h := c.held(ttl, nil)
			c.eventually("it expires", func() bool {
				got, err := c.Expired(c.ctx, "tex", 0, 10)
				c.must(err)
				return len(got) == 1
			})
			begin := time.Now()
			var touched, marked atomic.Bool
			c.race(8, func(i int) (bool, error) {
				if i%2 == 0 {
					ok, err := c.Touch(c.ctx, h.Token, h.Pod)
					if ok {
						touched.Store(true)
					}
					return ok, err
				}
				ok, err := c.markOK(h.Token, expired)
				if ok {
					marked.Store(true)
				}
				return ok, err
			})
			if touched.Load() && marked.Load() && time.Since(begin) < ttl/2 {
				c.Fatal("both a touch and an idle reap won")
			}
			if !touched.Load() && !marked.Load() {
				c.Fatal("neither a touch nor an idle reap won")
			}
			_, err := c.markOK(h.Token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}})
			c.must(err)
		}
	},
	"a correction never swallows an increment": func(c *contract) {
		for i := range 6 {
			id := lease.CounterID(fmt.Sprintf("tex|user|acme/u%d", i))
			was := c.counter(id, 2)
			c.old(was)
			var corrected atomic.Bool
			wins := c.race(9, func(i int) (bool, error) {
				if i == 0 {
					ok, err := c.CorrectCounter(c.ctx, was, 0, "g2", 0)
					corrected.Store(ok)
					return false, err
				}
				_, _, ok, err := c.Increment(c.ctx, id, 100)
				return ok, err
			})
			want := 2 + wins
			if corrected.Load() {
				want = wins
			}
			if got := c.count(id).Count; got != want || wins != 8 {
				c.Fatalf("corrected %v, %d increments: count %d, want %d", corrected.Load(), wins, got, want)
			}
		}
	},
	"a removal and an increment have one winner": func(c *contract) {
		for i := range 6 {
			id := lease.CounterID(fmt.Sprintf("tex|user|acme/u%d", i))
			was := c.counter(id, 0)
			c.old(was)
			var removed atomic.Bool
			wins := c.race(9, func(i int) (bool, error) {
				if i == 0 {
					ok, err := c.RemoveCounter(c.ctx, was, 0)
					removed.Store(ok)
					return false, err
				}
				_, _, ok, err := c.Increment(c.ctx, id, 100)
				return ok, err
			})
			if removed.Load() == (wins > 0) {
				c.Fatalf("removed %v and %d increments", removed.Load(), wins)
			}
		}
	},
	"claims of one record agree": func(c *contract) {
		var owners sync.Map
		c.race(racers, func(i int) (bool, error) {
			r, err := c.ClaimRecord(c.ctx, lease.Record{Kind: "job", Key: "7", Value: map[string]string{"owner": fmt.Sprint(i)}, TTL: long})
			owners.Store(r.Value["owner"], true)
			return true, err
		})
		n := 0
		owners.Range(func(_, _ any) bool { n++; return true })
		if n != 1 {
			c.Fatalf("%d owners", n)
		}
	},
}

// old waits until the counter is older than a margin of zero.
func (c *contract) old(was lease.Counter) {
	c.Helper()
	c.eventually("the counter is old enough", func() bool {
		got, err := c.ListCounters(c.ctx, "", "", 100)
		c.must(err)
		for _, x := range got {
			if x.ID == was.ID {
				return x.Age > msec
			}
		}
		return false
	})
}
