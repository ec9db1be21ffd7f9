package telemetry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vancetope/mcp-lease-gateway/lease"
)

func TestATrailWritesTheLinesOfTheAuditLog(t *testing.T) {
	dir := t.TempDir()
	e := lease.Event{At: time.Date(2026, 5, 4, 3, 0, 0, 0, time.FixedZone("there", 7200)), Kind: "forced", Reason: "revoke", By: "operator root@here", Token: "abcdefghij", Pod: "web-1"}
	a, err := OpenAudit(filepath.Join(dir, "gateway"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Event(e)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"a file": filepath.Join(dir, "command"), "the output": ""} {
		var out strings.Builder
		tr, err := OpenTrail(t.Context(), path, &out)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(tr.Event(t.Context(), e), tr.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		got := out.String()
		if path != "" {
			got = read(t, path)
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v %v", info.Mode(), err)
			}
		}
		if want := read(t, filepath.Join(dir, "gateway")); got != want || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q, the gateway's is %q", name, got, want)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLinesOfSeveralProcessesDoNotMix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	var group errgroup.Group
	const writers, each = 8, 200
	for w := range writers {
		tr, err := OpenTrail(t.Context(), path, nil) // an open file of its own, as another process has
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() error {
			for i := range each {
				if err := tr.Event(t.Context(), lease.Event{Kind: lease.EventKind(fmt.Sprint(w)), Token: fmt.Sprint(i), Reason: strings.Repeat("x", 5000)}); err != nil {
					return err
				}
			}
			return tr.Close(t.Context())
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(read(t, path)) {
		if n++; !strings.HasPrefix(line, `{"at":"`) || !strings.HasSuffix(line, "\"}\n") || strings.Count(line, "{") != 1 {
			t.Fatalf("line %d: %.80q", n, line)
		}
	}
	if n != writers*each {
		t.Errorf("%d lines", n)
	}
}

func TestHalfALineDoesNotTakeTheNextOneAlong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte(`{"at":"2026`), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a, err := OpenAudit(path, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.Event(lease.Event{Kind: "forced"})
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(read(t, path), "\n")
	if len(lines) != 4 || lines[0] != `{"at":"2026` || !strings.Contains(lines[1], "forced") || !strings.Contains(lines[2], "forced") || lines[3] != "" {
		t.Errorf("%q", lines)
	}
}

func TestWhatHasNothingToSyncClosesWithoutAnError(t *testing.T) {
	a, err := OpenAudit(os.DevNull, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Event(lease.Event{Kind: "refused"})
	if err := a.Close(); err != nil || a.Dropped() != 0 {
		t.Errorf("%v, %d lost", err, a.Dropped())
	}
}

func TestATrailSaysWhatWasNotWritten(t *testing.T) {
	t.Run("a full disk", func(t *testing.T) {
		tr, err := OpenTrail(t.Context(), "/dev/full", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Event(t.Context(), lease.Event{Kind: "forced"}); err == nil {
			t.Error("no error")
		}
	})
	t.Run("a disk that hangs, and those who wait for it", func(t *testing.T) {
		s := stuck{make(chan struct{})}
		defer close(s.until)
		tr, err := OpenTrail(t.Context(), "", s)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := tr.Event(ctx, lease.Event{Kind: "forced"}); !errors.Is(err, errNoAnswer) {
				t.Errorf("%v", err)
			}
		}
	})
	t.Run("a folder that is not there", func(t *testing.T) {
		if _, err := OpenTrail(t.Context(), filepath.Join(t.TempDir(), "none", "audit"), nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v", err)
		}
	})
}
