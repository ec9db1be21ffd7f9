package boltstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

func openTest(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeTest(t, s) })
	return s
}

func closeTest(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hold makes a HELD holder.
func hold(t testing.TB, s *Store, token lease.Token, ttl time.Duration) {
	t.Helper()
	must(t, s.CreateHolder(t.Context(), lease.Holder{Token: token, Resource: "tex", Pod: "pod-1", TTL: time.Hour}))
	ok, err := s.PushLast(t.Context(), token, lease.Booking{ID: "tex|global|*", Gen: "g"}, nil, ttl, time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
}

func TestOpenMakesThePrivateFileAndItsDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "leases.db")
	openTest(t, path)
	for p, want := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700 | fs.ModeDir} {
		info, err := os.Stat(p)
		must(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", p, info.Mode(), want)
		}
	}
}

func TestOpenTakesAnOpenFileAwayFromOtherUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	closeTest(t, openTest(t, path))
	must(t, os.Chmod(path, 0o644))
	openTest(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
}

func TestOpenRefusesWithASentence(t *testing.T) {
	valid := func(t *testing.T, path string) {
		s := openTest(t, path)
		for i := range 200 {
			must(t, s.CreateHolder(t.Context(), lease.Holder{Token: lease.Token(strings.Repeat("t", i+1)), Payload: lease.Payload{"a": strings.Repeat("x", 2000)}}))
		}
		closeTest(t, s)
	}
	change := func(t *testing.T, path string, f func(*os.File, int64)) {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		info, err := file.Stat()
		must(t, err)
		f(file, info.Size())
		must(t, file.Close())
	}
	noise := []byte(strings.Repeat("\xa5", 4096))
	for name, test := range map[string]struct {
		prepare func(t *testing.T, path string)
		is      error
		says    string
	}{
		"a file that another store has open": {
			func(t *testing.T, path string) { openTest(t, path) }, ErrLocked, "one gateway process",
		},
		"a text file": {
			func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("hello\n"), 0o600)) }, ErrDamaged, "move the file away",
		},
		"a long file of noise": {
			func(t *testing.T, path string) {
				must(t, os.WriteFile(path, []byte(strings.Repeat("no database", 9000)), 0o600))
			}, ErrDamaged, "move the file away",
		},
		"a file that was cut short": {
			func(t *testing.T, path string) {
				valid(t, path)
				must(t, os.Truncate(path, 4*4096))
			}, ErrDamaged, "move the file away",
		},
		"a file whose pages were overwritten": {
			func(t *testing.T, path string) {
				valid(t, path)
				change(t, path, func(f *os.File, size int64) {
					for off := int64(2 * 4096); off+4096 <= size; off += 4096 {
						_, err := f.WriteAt(noise, off)
						must(t, err)
					}
				})
			}, ErrDamaged, "move the file away",
		},
		"a file whose header was overwritten": {
			func(t *testing.T, path string) {
				valid(t, path)
				change(t, path, func(f *os.File, _ int64) {
					_, err := f.WriteAt(append(noise, noise...), 0)
					must(t, err)
				})
			}, ErrDamaged, "move the file away",
		},
		"another program's database": {
			func(t *testing.T, path string) {
				db, err := bolt.Open(path, 0o600, nil)
				must(t, err)
				must(t, db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err }))
				must(t, db.Close())
			}, ErrDamaged, "another program",
		},
		"a later format": {
			func(t *testing.T, path string) {
				closeTest(t, openTest(t, path))
				db, err := bolt.Open(path, 0o600, nil)
				must(t, err)
				must(t, db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte("format 9")) }))
				must(t, db.Close())
			}, ErrDamaged, "format 9",
		},
		"a directory": {
			func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }, nil, "not a file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "leases.db")
			test.prepare(t, path)
			begin := time.Now()
			s, err := Open(t.Context(), path)
			if err == nil {
				closeTest(t, s)
				t.Fatal("it was opened")
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("not %v: %v", test.is, err)
			}
			if !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("says neither %q nor the path: %v", test.says, err)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestEverythingIsThereAfterReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openTest(t, path)
	hold(t, s, "a", time.Hour)
	ok, err := s.SetPayload(t.Context(), "a", lease.Payload{"key": "k", "sessionId": "s"})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	closeTest(t, s)
	s = openTest(t, path)
	got, err := s.Holders(t.Context(), lease.Filter{Key: "k"})
	must(t, err)
	if len(got) != 1 || got[0].Payload["sessionId"] != "s" || got[0].State != lease.Held {
		t.Fatalf("%+v", got)
	}
}

// A process that was down could not be checked, so its start is a touch.
func TestTheStartCountsAsATouch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	const ttl = 50 * time.Millisecond
	expired := lease.Mark{Cause: lease.Cause{Reason: lease.ReasonIdle}, Expired: true}
	s := openTest(t, path)
	hold(t, s, "a", ttl)
	await(t, func() bool { got, _ := s.Expired(t.Context(), "", 0, 1); return len(got) == 1 })
	closeTest(t, s)

	begin := time.Now() // no later than the start that counts as a touch
	s = openTest(t, path)
	_, marked, err := s.MarkHolder(t.Context(), "a", expired)
	must(t, err)
	if marked && time.Since(begin) < ttl {
		t.Fatal("reaped at the start")
	}
	await(t, func() bool { _, ok, _ := s.MarkHolder(t.Context(), "a", expired); return ok || marked })
}

func TestTouchesAreOnDiskWithinSecondsAndAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openTest(t, path)
	hold(t, s, "a", time.Hour)
	onDisk := func() (seen int64) {
		must(t, s.db.View(func(tx *bolt.Tx) error { seen = fromBE(tx.Bucket(bucketSeen).Get([]byte("a"))); return nil }))
		return seen
	}
	first := onDisk()
	if ok, err := s.Touch(t.Context(), "a", "pod-1"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if onDisk() != first {
		t.Fatal("a touch went to disk at once")
	}
	await(t, func() bool { return onDisk() > first })
	second := onDisk()
	if ok, err := s.Touch(t.Context(), "a", "pod-1"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	closeTest(t, s)
	db, err := bolt.Open(path, 0o600, nil)
	must(t, err)
	defer db.Close()
	must(t, db.View(func(tx *bolt.Tx) error {
		if seen := fromBE(tx.Bucket(bucketSeen).Get([]byte("a"))); seen <= second {
			t.Errorf("the last touch is not on disk: %d, %d", seen, second)
		}
		return nil
	}))
}

// The expiry index holds lower bounds; holders that live on are moved, so that
// a scan does not meet them again and again.
func TestLivingHoldersLeaveThePastOfTheExpiryIndex(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "leases.db"))
	const ttl = 20 * time.Millisecond
	hold(t, s, "a", ttl)
	past := func() (n int) {
		must(t, s.db.View(func(tx *bolt.Tx) error {
			x := s.txn(tx)
			return x.eachDue("", x.now, func(lease.Token, *holderDoc) (bool, error) { n++; return true, nil })
		}))
		return n
	}
	await(t, func() bool { return past() == 1 })
	// A long TTL from now on, by way of memory alone, as after a touch.
	s.seats.mu.Lock()
	s.seats.all["a"].seen = s.now() + int64(time.Hour)
	s.seats.mu.Unlock()
	await(t, func() bool { return past() == 0 })
	h, ok, err := s.Holder(t.Context(), "a")
	if err != nil || !ok || h.State != lease.Held {
		t.Fatal(h, ok, err)
	}
}

func TestAFullDiskIsAnErrorAndMemoryStaysTrue(t *testing.T) {
	s, err := open(t.Context(), filepath.Join(t.TempDir(), "leases.db"), 1<<20)
	must(t, err)
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
	hold(t, s, "a", time.Hour)
	big := lease.Payload{"a": strings.Repeat("x", 200<<10)}
	var failed error
	for i := range 20 {
		if failed = s.CreateHolder(t.Context(), lease.Holder{Token: lease.Token(strings.Repeat("b", i+1)), Payload: big}); failed != nil {
			break
		}
	}
	if failed == nil || !strings.Contains(failed.Error(), "cannot be written") {
		t.Fatalf("a full disk says: %v", failed)
	}
	if ok, err := s.Touch(t.Context(), "a", "pod-1"); !ok || err != nil {
		t.Fatalf("a holder that is still HELD: %v, %v", ok, err)
	}
	if _, ok, err := s.DeleteHolder(t.Context(), "a"); !ok || err != nil {
		t.Fatalf("giving back needs no room: %v, %v", ok, err)
	}
	if ok, err := s.Touch(t.Context(), "a", "pod-1"); ok || err != nil {
		t.Fatalf("a holder that is gone: %v, %v", ok, err)
	}
}

// One verb that fails must not take the others of its group with it.
func TestAGroupSurvivesABrokenVerb(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "leases.db"))
	must(t, s.EnsureCounter(t.Context(), "c", "g"))
	group := make([]*op, 3)
	for i := range group {
		group[i] = &op{ctx: t.Context(), done: make(chan error, 1), run: func(x *txn) error {
			if i == 1 {
				return errors.New("broken")
			}
			c, err := x.counter("c")
			if err != nil {
				return err
			}
			c.Count++
			return x.putCounter("c", c)
		}}
	}
	s.run(slices.Clone(group))
	for i, o := range group {
		if err := <-o.done; (err != nil) != (i == 1) {
			t.Errorf("verb %d: %v", i, err)
		}
	}
	got, err := s.Counters(t.Context(), []lease.CounterID{"c"})
	must(t, err)
	if got[0].Count != 2 {
		t.Fatalf("count %d, want the two verbs that are not broken, once each", got[0].Count)
	}
}

func TestCloseEndsItsGoroutinesAndCanBeRepeated(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "leases.db"))
	must(t, err)
	closeTest(t, s)
	closeTest(t, s)
	if err := s.Ping(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestEventsAreBounded(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "leases.db"))
	for range 3 {
		must(t, s.AddEvent(t.Context(), lease.Event{Kind: "refused", Tenant: "acme"}))
	}
	_, err := update(t.Context(), s, func(x *txn) (struct{}, error) {
		x.wrote = true
		return struct{}{}, x.Bucket(bucketEvents).SetSequence(maxEvents + 1)
	})
	must(t, err)
	must(t, s.AddEvent(t.Context(), lease.Event{Kind: "refused", Tenant: "acme"}))
	await(t, func() bool {
		got, err := s.Events(t.Context(), "acme", 10)
		must(t, err)
		return len(got) == 2 // the third and the fourth lie within the bound
	})
}

func await(t testing.TB, f func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("not within 10 s")
		}
	}
}
