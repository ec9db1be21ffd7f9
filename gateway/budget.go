package gateway

import (
	"io"
	"net/http"
	"sync"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/quota"
)

const (
	// firstPart is how many bytes of a body count among the beginnings of bodies,
	// which have memory of their own: large bodies starve no small ones.
	firstPart = 64 << 10
	// Bytes are taken from the budget in blocks.
	firstBlock = 4 << 10
	restBlock  = 256 << 10

	leastFirst  = 16 << 20 // bytes of all beginnings, however few requests there may be
	restInTotal = 9        // bodies of the greatest length in memory at once
)

// bodyBudget bounds the bytes that bodies of callers hold in memory, over all of
// them. As in every pool, a user gets a third at most and a tenant less than a half.
type bodyBudget struct{ first, rest *quota.Pool }

func newBodyBudget(limits func() config.Limits) *bodyBudget {
	return &bodyBudget{
		first: quota.New(func() int64 { return max(leastFirst, int64(limits().PerPod)*firstPart) }),
		rest:  quota.New(func() int64 { return restInTotal * limits().RequestBody }),
	}
}

// charge makes r's body count for who as it arrives, until release: whoever serves
// the request has it in memory until then. Reads that find no room fail with
// quota.ErrFull.
func (b *bodyBudget) charge(r *http.Request, who quota.Key) (release func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	c := &chargedBody{ReadCloser: r.Body, budget: b, who: who, size: r.ContentLength}
	r.Body = c
	return func() {
		r.Body = c.ReadCloser // what is left of it is read and thrown away, which costs nothing
		c.release()
	}
}

// chargedBody is a body whose bytes count.
type chargedBody struct {
	io.ReadCloser
	budget *bodyBudget
	who    quota.Key
	size   int64 // as announced; -1 where it is not

	mu          sync.Mutex // a read may go on beside release
	arrived     int64
	first, rest int64 // taken
	over        error
}

// Read implements io.Reader.
func (c *chargedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if over := c.count(int64(n)); over != nil {
		return n, over
	}
	return n, err
}

// count takes what n more bytes need: a buffer that grows has room for twice what
// has arrived, though for no more than was announced. What has not found room stays
// refused: the rest of a body is of no use without it.
func (c *chargedBody) count(n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrived += n
	need := 2 * c.arrived
	if c.size >= 0 {
		need = min(need, max(c.size, c.arrived))
	}
	for c.over == nil && c.first < firstPart && c.first < need {
		c.over = c.take(c.budget.first, &c.first, firstBlock)
	}
	for c.over == nil && c.first+c.rest < need {
		c.over = c.take(c.budget.rest, &c.rest, restBlock)
	}
	return c.over
}

func (c *chargedBody) take(p *quota.Pool, taken *int64, block int64) error {
	if !p.Take(c.who, block) {
		return quota.ErrFull
	}
	*taken += block
	return nil
}

// release gives back what the body has taken; it takes nothing any more.
func (c *chargedBody) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first > 0 {
		c.budget.first.Give(c.who, c.first)
	}
	if c.rest > 0 {
		c.budget.rest.Give(c.who, c.rest)
	}
	c.first, c.rest, c.over = 0, 0, http.ErrBodyReadAfterClose
}
