//go:build unix

package telemetry

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAPipeThatNobodyReadsEndsWithTheTimeGiven(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenTrail(ctx, path, nil); !errors.Is(err, errNoAnswer) {
		t.Errorf("%v", err)
	}
	// This meets the one that was left, and lets it go.
	reader, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
}

// TestAFileThatRootMakesIsTheGateways: only root can try it, and only root needs it.
func TestAFileThatRootMakesIsTheGateways(t *testing.T) {
	dir, owner := t.TempDir(), os.Getuid()
	if owner == 0 {
		owner = 65532
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "audit.jsonl")
	tr, err := OpenTrail(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Sys().(*syscall.Stat_t); int(got.Uid) != owner {
		t.Errorf("it belongs to %d, its folder to %d", got.Uid, owner)
	}
}
