package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/config/definition"
	"github.com/vancetope/mcp-lease-gateway/lease"
)

const many = 10_000

func manyToken(i int) lease.Token { return lease.Token(fmt.Sprintf("%05dzzzzzzzzzzzzzzzzzzzzz", i)) }

// hold puts the first n of many holders of one pod into a store, each with a
// user's and the tenant's slot.
func hold(t *testing.T, s lease.Store, pod lease.PodID, n int) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(64)
	must := func(ok bool, err error) error {
		if err == nil && !ok {
			err = fmt.Errorf("it was not booked")
		}
		return err
	}
	tenant := lease.CounterID("browser|tenant|acme")
	if err := s.EnsureCounter(t.Context(), tenant, "g"); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		group.Go(func() error {
			user := lease.CounterID(fmt.Sprintf("browser|user|acme/u%d", i%100))
			tok := manyToken(i)
			if err := s.EnsureCounter(t.Context(), user, "g"); err != nil {
				return err
			}
			if err := s.CreateHolder(t.Context(), lease.Holder{Token: tok, Type: "mcp", Resource: "browser", Tenant: "acme", User: fmt.Sprint("u", i%100), Pod: pod, TTL: time.Hour}); err != nil {
				return err
			}
			for _, id := range []lease.CounterID{user, tenant} {
				if _, _, ok, err := s.Increment(t.Context(), id, 2*many); err != nil || !ok {
					return must(ok, err)
				}
			}
			if ok, err := s.PushLevel(t.Context(), tok, lease.Booking{ID: user, Level: definition.User, Gen: "g"}, time.Hour); err != nil || !ok {
				return must(ok, err)
			}
			return must(s.PushLast(t.Context(), tok, lease.Booking{ID: tenant, Level: definition.Tenant, Gen: "g"}, []lease.CounterID{user}, time.Hour, time.Hour))
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// stuck is a store that takes some marks, and no more within the command's time.
type stuck struct {
	lease.Store
	after int64
	marks atomic.Int64
	until atomic.Pointer[time.Time] // the end of the command's time
}

func (s *stuck) Holders(ctx context.Context, f lease.Filter) ([]lease.Holder, error) {
	end, _ := ctx.Deadline()
	s.until.Store(&end)
	return s.Store.Holders(ctx, f)
}

func (s *stuck) MarkHolder(ctx context.Context, t lease.Token, m lease.Mark) (lease.Holder, bool, error) {
	if s.marks.Add(1) > s.after {
		until, cancel := context.WithDeadline(ctx, *s.until.Load())
		defer cancel()
		<-until.Done()
		return lease.Holder{}, false, until.Err()
	}
	return s.Store.MarkHolder(ctx, t, m)
}

// revokeMany takes all of them with the command, first in too short a time.
func revokeMany(t *testing.T, b *operatorBench, open func() lease.Store, holdAll func(lease.Store, lease.PodID)) {
	t.Helper()
	s := open()
	holdAll(s, "dead")
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.conf.Telemetry.Audit = filepath.Join(t.TempDir(), "audit.jsonl")
	told := regexp.MustCompile(`(\d+) lease\(s\) of pod dead were revoked, then the time given ran out`)
	b.open = func(ctx context.Context, c *config.Gateway) (lease.Store, error) {
		s, err := openStore(ctx, c)
		return &stuck{Store: s, after: many / 20}, err
	}
	code, out, errs := b.run("revoke-pod", "dead", "--yes", "--force", "--timeout", "8s")
	n := told.FindStringSubmatch(errs)
	if code != 1 || n == nil || !strings.Contains(errs, "--timeout") || strings.Contains(errs, "cannot be reached") {
		t.Fatalf("%d %q %q", code, out, errs)
	}
	first, err := strconv.Atoi(n[1])
	if err != nil || first == 0 {
		t.Fatal(first, err)
	}
	b.open = openStore
	began := time.Now()
	code, out, errs = b.run("revoke-pod", "dead", "--yes", "--force", "--timeout", "3m")
	if want := fmt.Sprintf("revoked %d lease(s) of pod dead", many-first); code != 0 || !strings.Contains(out, want) {
		t.Fatalf("after %d: %d %q %q", first, code, out, errs)
	}
	t.Logf("%d in the short time, the rest in %s", first, time.Since(began))
	s = open()
	defer func() { _ = s.Close(context.WithoutCancel(t.Context())) }()
	reader, err := lease.New(lease.Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	all, err := reader.Occupancies(t.Context(), lease.OccupancyFilter{})
	if err != nil || len(all) != 101 {
		t.Fatalf("%v, %d counters", err, len(all))
	}
	for _, o := range all {
		if o.Count != 0 || o.Booked != 0 {
			t.Errorf("%s: count %d, booked %d", o.ID, o.Count, o.Booked)
		}
	}
	text, err := os.ReadFile(b.conf.Telemetry.Audit)
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]int{}
	for _, e := range auditLines(t, string(text)) {
		if e.Kind == "forced" {
			recorded[e.Token]++
		}
	}
	if len(recorded) != many {
		t.Errorf("%d of %d are in the audit log", len(recorded), many)
	}
	for tok, n := range recorded {
		if n != 1 {
			t.Errorf("%s is there %d times", tok, n)
		}
	}
}

func TestTenThousandLeasesOfAPodAreTakenInTheTimeGiven(t *testing.T) {
	b := newOperatorBench(t, "embedded")
	b.conf.Store.Path = filepath.Join(t.TempDir(), "leases.db")
	revokeMany(t, b, func() lease.Store { return opened(t, b.conf) }, func(s lease.Store, pod lease.PodID) { hold(t, s, pod, many) })
}

func opened(t *testing.T, c *config.Gateway) lease.Store {
	t.Helper()
	s, err := openStore(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
