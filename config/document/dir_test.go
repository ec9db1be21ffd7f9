package document

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func TestDirRead(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret.yaml")
	write(t, outside, "outside")
	at := func(project string) Key { return Key{"acme", project, docPath} }
	file := func(project string) string { return filepath.Join(root, "acme", project, docPath) }
	write(t, file("plain"), "plain")
	symlink(t, outside, file("absolute"))
	symlink(t, "../../../../../../"+strings.TrimPrefix(outside, "/"), file("relative"))
	symlink(t, "nowhere.yaml", file("dangling"))
	symlink(t, "gone", filepath.Join(root, "acme", "nofolder"))
	symlink(t, "plain", filepath.Join(root, "acme", "inside"))
	write(t, file("long"), strings.Repeat("#", MaxSize+1))
	write(t, file("limit"), strings.Repeat("#", MaxSize))
	if err := os.MkdirAll(file("folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file("pipe")), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "acme", "flat", "_vance"), "a file where a folder is wanted")
	d := NewDir(root)

	for _, tc := range []struct{ name, project, want, problem string }{
		{"a file is read", "plain", "plain", ""},
		{"a link within the folder is followed", "inside", "plain", ""},
		{"a file of just the limit is read", "limit", strings.Repeat("#", MaxSize), ""},
		{"a link out of the folder is an error", "absolute", "", "leads out of the folder of its tenant or project"},
		{"so is one that climbs out", "relative", "", "leads out of the folder of its tenant or project"},
		{"a link that leads nowhere is an error and not a missing document", "dangling", "", "leads nowhere"},
		{"so is a folder's", "nofolder", "", "leads nowhere"},
		{"a file over the limit is an error", "long", "", "longer than 64 KiB"},
		{"a folder is an error", "folder", "", "not a regular file"},
		{"a pipe is an error and does not block", "pipe", "", "not a regular file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text, err := d.Read(t.Context(), at(tc.project))
			if tc.problem == "" {
				if err != nil || string(text) != tc.want {
					t.Fatalf("got %.20q, %v", text, err)
				}
				return
			}
			if err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), tc.problem) {
				t.Fatalf("got %v, want … %s …", err, tc.problem)
			}
		})
	}
	t.Run("a document that is not there is not found", func(t *testing.T) {
		for _, project := range []string{"none", "flat"} {
			if _, err := d.Read(t.Context(), at(project)); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		}
	})
	t.Run("a folder that is not there is an error and not an empty one", func(t *testing.T) {
		_, err := NewDir(filepath.Join(root, "unmounted")).Read(t.Context(), at("plain"))
		if err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "unmounted") {
			t.Error(err)
		}
	})
	t.Run("a file that may not be read is an error", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root reads everything")
		}
		write(t, file("closed"), "x")
		if err := os.Chmod(file("closed"), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Read(t.Context(), at("closed")); err == nil || errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
	t.Run("the list has every document and follows links", func(t *testing.T) {
		keys, err := d.List(t.Context())
		var projects []string
		for _, k := range keys {
			projects = append(projects, k.Project)
		}
		if diff := cmp.Diff([]string{"flat", "inside", "limit", "long", "plain"}, projects); diff != "" {
			t.Errorf("%s (%v)", diff, err)
		}
		if err == nil || !strings.Contains(err.Error(), "absolute") {
			t.Errorf("links out of the folder are not complained of: %v", err)
		}
	})
}

// watching starts a watch and returns what waits for a change that matches.
func watching(t *testing.T, root string) (await func(Key)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, done, ready := make(chan Change, 1000), make(chan struct{}), make(chan struct{}, 1000)
	go func() {
		defer close(done)
		NewDir(root).Watch(ctx, slog.New(slog.DiscardHandler), func(cs ...Change) {
			for _, c := range cs {
				changes <- c
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	// The first look has happened once a change is seen: write until one is.
	probe := Key{"probe", "p", "_vance/x.yaml"}
	file := filepath.Join(root, "probe", "p", "_vance", "x.yaml")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		write(t, file, strings.Repeat("#", n))
		select {
		case c := <-changes:
			if c.Key == probe {
				close(ready)
				return func(want Key) {
					t.Helper()
					deadline := time.After(30 * time.Second)
					for {
						select {
						case c := <-changes:
							if c.Key == want {
								return
							}
						case <-deadline:
							t.Fatalf("no change of %v was told", want)
						}
					}
				}
			}
		case <-tick.C:
		}
	}
}

func TestDirWatch(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("a file that is made, changed, replaced and removed, in folders that are new too", func(t *testing.T) {
		root := t.TempDir()
		await := watching(t, root)
		key := Key{"acme", "thesis", docPath}
		file := filepath.Join(root, "acme", "thesis", docPath)
		write(t, file, "a")
		await(key)
		write(t, file, "b")
		await(key)
		write(t, file+".new", "c") // no key: the name of a document of its own
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		await(key)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		await(key)
	})
	t.Run("the swap of the links of a mounted ConfigMap", func(t *testing.T) {
		root := t.TempDir()
		rel := filepath.Join("acme", "thesis", docPath)
		write(t, filepath.Join(root, "..2024_1", rel), "one")
		symlink(t, "..2024_1", filepath.Join(root, "..data"))
		symlink(t, "..data/acme", filepath.Join(root, "acme"))
		await := watching(t, root)
		for _, v := range []string{"..2024_2", "..2024_3"} {
			write(t, filepath.Join(root, v, rel), v)
			symlink(t, v, filepath.Join(root, "..data_tmp"))
			if err := os.Rename(filepath.Join(root, "..data_tmp"), filepath.Join(root, "..data")); err != nil {
				t.Fatal(err)
			}
			await(Key{"acme", "thesis", docPath})
			text, err := NewDir(root).Read(t.Context(), Key{"acme", "thesis", docPath})
			if err != nil || string(text) != v {
				t.Fatalf("got %s, %v", text, err)
			}
		}
	})
}
