package boltstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

// childFile names the file on which this test binary, started again as a child,
// works until it is killed.
const childFile = "BOLTSTORE_TEST_CHILD_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childFile); path != "" {
		child(path)
		return
	}
	os.Exit(m.Run())
}

// child acquires and releases in several goroutines and prints each answer that
// it got, after it got it.
func child(path string) {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		fmt.Println("refused", err)
		os.Exit(1)
	}
	fmt.Println("open")
	for worker := range 8 {
		go func() {
			id := lease.CounterID(fmt.Sprintf("tex|user|acme/u%d", worker))
			if err := s.EnsureCounter(ctx, id, "g"); err != nil {
				panic(err)
			}
			for i := 0; ; i++ {
				token := lease.Token(fmt.Sprintf("%d-%d", worker, i))
				if err := s.CreateHolder(ctx, lease.Holder{Token: token, Resource: "tex", Pod: "pod-1", TTL: time.Hour}); err != nil {
					panic(err)
				}
				if _, _, ok, err := s.Increment(ctx, id, 1<<30); err != nil || !ok {
					panic(fmt.Sprint(ok, err))
				}
				fmt.Println("incremented", id)
				if ok, err := s.PushLast(ctx, token, lease.Booking{ID: id, Gen: "g"}, nil, time.Hour, time.Hour); err != nil || !ok {
					panic(fmt.Sprint(ok, err))
				}
				fmt.Println("held", token)
				if ok, err := s.SetPayload(ctx, token, lease.Payload{"key": string(token)}); err != nil || !ok {
					panic(fmt.Sprint(ok, err))
				}
				fmt.Println("payload", token)
				if i%3 == 1 {
					fmt.Println("marking", token) // from here on it may be either
					if _, ok, err := s.MarkHolder(ctx, token, lease.Mark{Cause: lease.Cause{Reason: lease.ReasonRevoke}}); err != nil || !ok {
						panic(fmt.Sprint(ok, err))
					}
					fmt.Println("marked", token)
				}
			}
		}()
	}
	select {}
}

// start runs the child and gives the lines that it prints.
func start(t *testing.T, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFile+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}))
	return cmd, bufio.NewScanner(out)
}

// kill -9 in the middle of everything: what was answered is there, and the
// store works on.
func TestNothingThatWasAnsweredIsLostByKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	incremented := map[lease.CounterID]int{}
	held, payload, marking, marked := map[lease.Token]bool{}, map[lease.Token]bool{}, map[lease.Token]bool{}, map[lease.Token]bool{}
	cmd, lines := start(t, path)
	killed := false
	for n := 0; lines.Scan(); n++ {
		if n == 500 {
			must(t, cmd.Process.Kill())
			killed = true // and read on: what it printed before counts
		}
		verb, what, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "incremented":
			incremented[lease.CounterID(what)]++
		case "held":
			held[lease.Token(what)] = true
		case "payload":
			payload[lease.Token(what)] = true
		case "marking":
			marking[lease.Token(what)] = true
		case "marked":
			marked[lease.Token(what)] = true
		}
	}
	if !killed || len(held) == 0 || len(marked) == 0 {
		t.Fatalf("the child ended by itself: %d held, %d marked", len(held), len(marked))
	}
	_ = cmd.Wait()

	s := openTest(t, path)
	for token := range held {
		h, ok, err := s.Holder(t.Context(), token)
		must(t, err)
		switch {
		case !ok:
			t.Errorf("%s was HELD and is gone", token)
		case marked[token] && h.State != lease.Revoked:
			t.Errorf("%s was marked and is %s", token, h.State)
		case !marking[token] && h.State != lease.Held:
			t.Errorf("%s was HELD and is %s", token, h.State)
		case payload[token] && h.Payload["key"] != string(token):
			t.Errorf("%s has lost its payload", token)
		case len(h.Levels) != 1:
			t.Errorf("%s lists %d levels", token, len(h.Levels))
		}
	}
	for id, n := range incremented {
		got, err := s.Counters(t.Context(), []lease.CounterID{id})
		must(t, err)
		// One more may be in the file whose answer was not printed.
		if len(got) != 1 || got[0].Count < n || got[0].Count > n+1 {
			t.Errorf("%s: %d increments were answered, the file has %+v", id, n, got)
		}
		booked, err := s.Booked(t.Context(), []lease.CounterID{id})
		must(t, err)
		if booked[id] > got[0].Count {
			t.Errorf("%s: booked %d, counted %d", id, booked[id], got[0].Count)
		}
	}
	hold(t, s, "after", time.Hour)
}

func TestASecondProcessIsRefusedQuickly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openTest(t, path)
	_, lines := start(t, path)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "refused") || !strings.Contains(lines.Text(), ErrLocked.Error()) {
		t.Fatalf("the second process says %q", lines.Text())
	}
	closeTest(t, s)

	_, lines = start(t, path)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("with the file free again the process says %q", lines.Text())
	}
	if _, err := Open(t.Context(), path); !errors.Is(err, ErrLocked) {
		t.Fatalf("this process beside the other: %v", err)
	}
}
