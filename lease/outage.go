package lease

import (
	"sync"
	"sync/atomic"
	"time"
)

// contact remembers when the store could not be reached. During such a gap
// nobody could touch a lease or beat, so what looks idle or dead right after it
// is neither: without the grace that follows from it an outage longer than a
// TTL would reap everybody.
//
// A gap counts for a lease when it is at least long (two sweeps, or what a pod
// may miss of its beats, whichever is shorter) or half the lease's TTL. The
// time before the process started counts as a gap without a beginning.
type contact struct {
	long  time.Duration
	stale time.Duration

	lastOK atomic.Int64 // unix nanoseconds of the last answer
	broken atomic.Bool  // a failure since then
	mu     sync.Mutex
	gaps   []gap
}

type gap struct {
	length time.Duration
	end    time.Time
}

// forever is the length of the gap before the start.
const forever = time.Duration(1<<63 - 1)

// maxGaps bounds what is remembered; the longest TTL is a day, and a store that
// fails more often than this within one protects whom it last failed.
const maxGaps = 64

func (c *contact) succeeded(now time.Time) {
	last := c.lastOK.Swap(now.UnixNano())
	broken := c.broken.Load()
	if last == 0 {
		return
	}
	length := time.Duration(now.UnixNano() - last)
	if !broken && length < c.long {
		return
	}
	c.broken.Store(false)
	if length < time.Second {
		return
	}
	c.add(gap{length: length, end: now})
}

func (c *contact) failed() { c.broken.Store(true) }

// start ends the gap before the process started.
func (c *contact) start(now time.Time) { c.add(gap{length: forever, end: now}) }

func (c *contact) add(g gap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.gaps) == maxGaps {
		// The shortest goes: the long ones protect more.
		shortest := 0
		for i := range c.gaps {
			if c.gaps[i].length < c.gaps[shortest].length {
				shortest = i
			}
		}
		c.gaps = append(c.gaps[:shortest], c.gaps[shortest+1:]...)
	}
	c.gaps = append(c.gaps, g)
}

// idleGrace reports whether a lease with this TTL must not be idle-reaped now:
// until one whole TTL after a gap.
func (c *contact) idleGrace(now time.Time, ttl time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.gaps {
		if g.length >= min(c.long, ttl/2) && now.Before(g.end.Add(ttl)) {
			return true
		}
	}
	return false
}

// podGrace reports whether no pod may be called dead now: until staleAfter
// after a long gap, since until then nobody has had time to beat.
func (c *contact) podGrace(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.gaps {
		if g.length >= c.long && now.Before(g.end.Add(c.stale)) {
			return true
		}
	}
	return false
}

// forget drops gaps that ended longer than age ago.
func (c *contact) forget(now time.Time, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.gaps[:0]
	for _, g := range c.gaps {
		if now.Sub(g.end) < age {
			kept = append(kept, g)
		}
	}
	c.gaps = kept
}
