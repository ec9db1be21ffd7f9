// Package quota divides something bounded among tenants and their users, so that
// nobody takes all of it. It knows neither what is shared nor HTTP.
package quota

import (
	"errors"
	"sync"
)

// ErrFull says that there is no room for whoever asks: their share, or all of it,
// is in use.
var ErrFull = errors.New("quota: the share is in use")

// Key is one that has a share: a tenant's user, or its project where no user is
// known.
type Key struct{ tenant, project, user string }

// Of returns who a scope counts for.
func Of(tenant, project, user string) Key {
	if user != "" {
		project = "" // a user's projects count together
	}
	return Key{tenant, project, user}
}

// Parts is in how many sums a unit counts: that of all, that of its tenant and
// that of its user. The three together stay within the limit, so a user alone
// gets a third of it at most, a tenant less than a half, and whoever comes next
// finds room.
const Parts = 3

// Pool is what is shared.
type Pool struct {
	limit func() int64

	mu      sync.Mutex
	used    int64
	tenants map[string]int64 // those that have any
	users   map[Key]int64
}

// New makes a Pool under a limit that may change; nobody loses what they have
// when it sinks.
func New(limit func() int64) *Pool {
	return &Pool{limit: limit, tenants: map[string]int64{}, users: map[Key]int64{}}
}

// Limit is the limit in force now.
func (p *Pool) Limit() int64 { return p.limit() }

// Fits reports whether there is room for n more.
func (p *Pool) Fits(w Key, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room(w, n)
}

func (p *Pool) room(w Key, n int64) bool {
	limit, tenant := p.limit(), p.tenants[w.tenant]
	if n == 1 && tenant == 0 && p.used < limit {
		return true // a third of a small limit is nothing, and a tenant's first unit is no hoard
	}
	return p.used+tenant+p.users[w]+Parts*n <= limit
}

// Take takes n where there is room for them; they are given back with Give.
func (p *Pool) Take(w Key, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.room(w, n) {
		return false
	}
	p.add(w, n)
	return true
}

// Give gives n back.
func (p *Pool) Give(w Key, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(w, -n)
}

func (p *Pool) add(w Key, n int64) {
	p.used += n
	if p.tenants[w.tenant] += n; p.tenants[w.tenant] == 0 {
		delete(p.tenants, w.tenant)
	}
	if p.users[w] += n; p.users[w] == 0 {
		delete(p.users, w)
	}
}

// Taken is how much is in use, and by how many.
func (p *Pool) Taken() (n int64, sharers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, len(p.tenants) + len(p.users)
}
