package view

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// Limits of a page, in entries, and of a text in a question, in bytes.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
	maxText      = 256
)

// minToken is the shortest beginning of a token that is looked up: fewer
// characters would name holders by accident.
const minToken = 4

// maxCandidates is how many tokens are named that begin alike.
const maxCandidates = 5

var allStates = []lease.State{lease.Pending, lease.Held, lease.Revoked}

// HolderQuery selects holders; empty fields select all.
type HolderQuery struct {
	Tenant, Project, User, Resource, Type, Pod string
	// States is any of PENDING, HELD, REVOKED; none means the living ones.
	States []string
	// After is HolderPage.Next of the page before.
	After string
	// Limit is at most MaxLimit; 0 means DefaultLimit.
	Limit int
}

// HolderPage is one page of holders in token order.
type HolderPage struct {
	Holders []Holder `json:"holders"`
	// Next asks for the following page; absent on the last one.
	Next string `json:"next,omitempty"`
}

// Holder is how a holder is shown. Times are the store's. The payload's values
// can be secrets (session ids), so only its members' names are shown.
type Holder struct {
	Token          string      `json:"token"` // the shortest unique beginning
	State          lease.State `json:"state"`
	Type           string      `json:"type"`
	Resource       string      `json:"resource"`
	Lease          string      `json:"lease"`
	Tenant         string      `json:"tenant"`
	Project        string      `json:"project"`
	User           string      `json:"user"`
	HolderRef      string      `json:"holderRef"`
	Pod            string      `json:"pod"`
	PodBound       bool        `json:"podBound"`
	Payload        []string    `json:"payload"`
	Levels         []Booking   `json:"levels"`
	CreatedAt      time.Time   `json:"createdAt"`
	LastSeenAt     time.Time   `json:"lastSeenAt"`
	AgeSeconds     int64       `json:"ageSeconds"`
	IdleSeconds    int64       `json:"idleSeconds"`
	TTLSeconds     int64       `json:"ttlSeconds"`
	TTLLeftSeconds int64       `json:"ttlLeftSeconds"` // 0 where it is overdue or revoked
	Revocation     *Revocation `json:"revocation,omitempty"`
}

// Booking is a level that a holder books.
type Booking struct {
	Level   string `json:"level"`
	Counter string `json:"counter,omitempty"` // the counter's id; not shown of the global level to a tenant
}

// Revocation is why and when a lease was taken away.
type Revocation struct {
	Reason    lease.Reason `json:"reason"`
	By        string       `json:"by,omitempty"`
	At        time.Time    `json:"at"`
	Handled   bool         `json:"handled"` // whether the type's handler has run
	HandledAt *time.Time   `json:"handledAt,omitempty"`
}

// PodRevoked is what a revocation of a pod's leases did.
type PodRevoked struct {
	Pod     string `json:"pod"`
	Revoked int    `json:"revoked"`
}

// Holders lists holders of the scope.
func (d *View) Holders(ctx context.Context, s Scope, q HolderQuery) (HolderPage, error) {
	f, err := q.filter(s)
	if err != nil {
		return HolderPage{}, err
	}
	if s.Tenant != "" && q.Tenant != "" && q.Tenant != s.Tenant {
		return HolderPage{Holders: []Holder{}}, nil
	}
	limit := f.Limit
	f.Limit++ // one more tells whether there is a next page, and where it begins
	found, err := d.Engine.Find(ctx, f)
	if err != nil {
		return HolderPage{}, Unreachable(err)
	}
	now, short := d.storeNow(ctx), shortenAll(found)
	page := HolderPage{Holders: make([]Holder, 0, min(limit, len(found)))}
	for i, h := range found {
		if i == limit {
			page.Next = cursor(string(found[i-1].Token), string(h.Token))
			break
		}
		page.Holders = append(page.Holders, view(now, s, h, short[i]))
	}
	return page, nil
}

// Holder shows one holder, living or revoked, by the beginning of its token.
func (d *View) Holder(ctx context.Context, s Scope, short string) (Holder, error) {
	h, err := d.resolve(ctx, s, short, allStates...)
	if err != nil {
		return Holder{}, err
	}
	return view(d.storeNow(ctx), s, h, h.Token.Short()), nil
}

func (q HolderQuery) filter(s Scope) (lease.Filter, error) {
	for _, f := range [][2]string{{"tenant", q.Tenant}, {"project", q.Project}, {"user", q.User},
		{"resource", q.Resource}, {"type", q.Type}, {"pod", q.Pod}, {"after", q.After}} {
		if err := checkText(f[0], f[1]); err != nil {
			return lease.Filter{}, err
		}
	}
	limit, err := checkLimit(q.Limit)
	if err != nil {
		return lease.Filter{}, err
	}
	f := lease.Filter{Tenant: q.Tenant, Project: q.Project, User: q.User, Resource: q.Resource, Type: q.Type,
		Pod: lease.PodID(q.Pod), After: lease.Token(q.After), Limit: limit}
	if s.Tenant != "" {
		f.Tenant = s.Tenant
	}
	for _, st := range q.States {
		if !slices.Contains(allStates, lease.State(st)) {
			return lease.Filter{}, &Error{Code: Invalid, Message: fmt.Sprintf("state %q is none of PENDING, HELD, REVOKED", st)}
		}
		f.States = append(f.States, lease.State(st))
	}
	return f, nil
}

// resolve finds the one holder of the scope whose token is short or begins with
// it. Tokens sort, so those that begin with short are the first behind
// it.
func (d *View) resolve(ctx context.Context, s Scope, short string, states ...lease.State) (lease.Holder, error) {
	if err := checkToken(short); err != nil {
		return lease.Holder{}, err
	}
	exact, err := d.Engine.Find(ctx, lease.Filter{Token: lease.Token(short), Tenant: s.Tenant, States: states, Limit: 1})
	if err != nil {
		return lease.Holder{}, Unreachable(err)
	}
	if len(exact) == 1 {
		return exact[0], nil
	}
	found, err := d.Engine.Find(ctx, lease.Filter{After: lease.Token(short), Tenant: s.Tenant, States: states, Limit: maxCandidates + 1})
	if err != nil {
		return lease.Holder{}, Unreachable(err)
	}
	found = slices.DeleteFunc(found, func(h lease.Holder) bool { return !strings.HasPrefix(string(h.Token), short) })
	switch len(found) {
	case 0:
		return lease.Holder{}, &Error{Code: NotFound, Message: fmt.Sprintf("no lease has a token that begins with %q", short)}
	case 1:
		return found[0], nil
	}
	names := shortenAll(found)
	if len(names) > maxCandidates {
		names[maxCandidates] = "…"
	}
	return lease.Holder{}, &Error{Code: Invalid, Message: fmt.Sprintf("more than one token begins with %q: %s; give more of its characters", short, strings.Join(names, ", "))}
}

func view(now time.Time, s Scope, h lease.Holder, short string) Holder {
	v := Holder{Token: short, State: h.State, Type: h.Type, Resource: h.Resource, Lease: h.Lease, Tenant: h.Tenant,
		Project: h.Project, User: h.User, HolderRef: h.HolderRef, Pod: string(h.Pod), PodBound: h.PodBound,
		Payload: []string{}, Levels: []Booking{}, CreatedAt: h.CreatedAt, LastSeenAt: h.LastSeenAt,
		AgeSeconds: seconds(age(now, h.CreatedAt)), IdleSeconds: seconds(age(now, h.LastSeenAt)), TTLSeconds: seconds(h.TTL)}
	for k := range h.Payload {
		v.Payload = append(v.Payload, k)
	}
	slices.Sort(v.Payload)
	for _, b := range h.Levels {
		if s.Tenant != "" && b.Level == "global" {
			continue // the global level belongs to no tenant (spec §9)
		}
		v.Levels = append(v.Levels, Booking{Level: string(b.Level), Counter: string(b.ID)})
	}
	if h.State != lease.Revoked {
		v.TTLLeftSeconds = max(0, v.TTLSeconds-v.IdleSeconds)
	}
	if r := h.Revocation; r != nil {
		v.Revocation = &Revocation{Reason: r.Reason, By: shownBy(s, r.By), At: r.At, Handled: !r.HandledAt.IsZero()}
		if !r.HandledAt.IsZero() {
			at := r.HandledAt
			v.Revocation.HandledAt = &at
		}
	}
	return v
}

// Names of who asks, as they stand in events and marks.
const (
	byTenantAdmin = "tenantAdmin "
	byOperator    = "operator "
)

// ByOperator names an operator's credential for the record.
func ByOperator(credential string) string { return byOperator + credential }

// ByTenantAdmin names a tenant admin's credential for the record.
func ByTenantAdmin(credential string) string { return byTenantAdmin + credential }

// shownBy tells a tenant which of its own admins asked; the operators'
// credentials have no names there.
func shownBy(s Scope, by string) string {
	if s.Tenant == "" || by == "" || strings.HasPrefix(by, byTenantAdmin) {
		return by
	}
	return "an operator"
}

// shortenAll gives every holder of a page, which is in token order, the
// shortest beginning that no neighbour has.
func shortenAll(page []lease.Holder) []string {
	out := make([]string, len(page))
	for i, h := range page {
		n := len(h.Token.Short())
		if i > 0 {
			n = max(n, common(string(page[i-1].Token), string(h.Token))+1)
		}
		if i+1 < len(page) {
			n = max(n, common(string(page[i+1].Token), string(h.Token))+1)
		}
		out[i] = string(h.Token[:min(n, len(h.Token))])
	}
	return out
}

// cursor is the shortest text c with last < c ≤ next: what follows c begins
// with next, and c gives no whole token away.
func cursor(last, next string) string {
	n := common(last, next) + 1
	if n >= len(next) {
		return last
	}
	return next[:n]
}

func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func checkToken(short string) error {
	if err := checkText("token", short); err != nil {
		return err
	}
	if len(short) < minToken {
		return &Error{Code: Invalid, Message: fmt.Sprintf("a token is named by at least its first %d characters", minToken)}
	}
	return nil
}

// checkText refuses what no stored name can be, before it reaches the store.
func checkText(field, s string) error {
	if len(s) > maxText {
		return &Error{Code: Invalid, Message: fmt.Sprintf("%s is longer than %d bytes", field, maxText)}
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return &Error{Code: Invalid, Message: field + " holds characters that no name has"}
	}
	return nil
}

func checkLimit(n int) (int, error) {
	switch {
	case n == 0:
		return DefaultLimit, nil
	case n < 0 || n > MaxLimit:
		return 0, &Error{Code: Invalid, Message: fmt.Sprintf("limit is not between 1 and %d", MaxLimit)}
	}
	return n, nil
}

func age(now, then time.Time) time.Duration { return max(0, now.Sub(then)) }

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
