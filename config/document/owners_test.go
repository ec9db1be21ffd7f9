package document

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/output"
)

// TestNobodyReadsWhatIsAnothersByALink has a tenant, mallory, who writes whatever
// it likes below its own folders.
func TestNobodyReadsWhatIsAnothersByALink(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "acme", "p", "x"), "ACMES")
	write(t, filepath.Join(root, "acme", "p", "_vance", "x.yaml"), "ACMES")
	write(t, filepath.Join(root, "_vance", "_tenant", "x"), "OPERATORS")
	write(t, filepath.Join(root, "mallory", "q", "_vance", "x.yaml"), "ANOTHER PROJECTS")
	write(t, filepath.Join(root, "mallory", "p", "own"), "own")
	for name, link := range map[string]struct {
		at, target string
		key        Key
	}{
		"a file of another tenant":                {"mallory/p/a", "../../acme/p/x", Key{"mallory", "p", "a"}},
		"a file of the operator":                  {"mallory/p/b", "../../_vance/_tenant/x", Key{"mallory", "p", "b"}},
		"a folder of another tenant":              {"mallory/p/c", "../../acme/p", Key{"mallory", "p", "c/x"}},
		"another tenant's folder for a project":   {"mallory/r", "../acme/p", Key{"mallory", "r", "x"}},
		"another project of the tenant":           {"mallory/p/d", "../q/_vance", Key{"mallory", "p", "d/x.yaml"}},
		"by way of a link that stays":             {"mallory/p/e", "f/../../../acme/p/x", Key{"mallory", "p", "e"}},
		"a folder above":                          {"mallory/p/g", "../..", Key{"mallory", "p", "g/acme/p/x"}},
		"the whole folder, as an absolute path":   {"mallory/p/h", root, Key{"mallory", "p", "h/acme/p/x"}},
		"a file of the machine":                   {"mallory/p/i", "/etc/passwd", Key{"mallory", "p", "i"}},
		"a file of the machine, by many steps up": {"mallory/p/j", strings.Repeat("../", 40) + "etc/passwd", Key{"mallory", "p", "j"}},
	} {
		t.Run(name, func(t *testing.T) {
			symlink(t, link.target, filepath.Join(root, link.at))
			defer os.Remove(filepath.Join(root, link.at))
			text, err := NewDir(root).Read(t.Context(), link.key)
			if err == nil || errors.Is(err, ErrNotFound) && name != "by way of a link that stays" {
				t.Errorf("read %q, %v", text, err)
			}
			keys, listErr := NewDir(root).List(t.Context())
			for _, k := range keys {
				if k.Tenant == "mallory" && k.Path != "own" && k != (Key{"mallory", "q", "_vance/x.yaml"}) {
					t.Errorf("listed %v", k)
				}
			}
			if listErr == nil && name != "by way of a link that stays" {
				t.Error("nothing says that there is such a link")
			}
			if text, err := NewDir(root).Read(t.Context(), Key{"mallory", "p", "own"}); string(text) != "own" {
				t.Errorf("its own: %q, %v", text, err)
			}
		})
	}
}

func TestLinksWithinAnOwnersFolderAndOfTheOperatorAreFollowed(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "acme", "p", "..2024", "browser.yaml"), "mounted below a project")
	symlink(t, "..2024", filepath.Join(root, "acme", "p", "..data"))
	symlink(t, "..data/browser.yaml", filepath.Join(root, "acme", "p", "browser.yaml"))
	symlink(t, "p", filepath.Join(root, "acme", "alias"))
	symlink(t, "acme", filepath.Join(root, "acme2"))
	for _, k := range []Key{{"acme", "p", "browser.yaml"}, {"acme", "alias", "browser.yaml"}, {"acme2", "p", "browser.yaml"}} {
		if text, err := NewDir(root).Read(t.Context(), k); string(text) != "mounted below a project" {
			t.Errorf("%v: %q, %v", k, text, err)
		}
	}
	if keys, err := NewDir(root).List(t.Context()); len(keys) != 4 || err != nil {
		t.Errorf("%v, %v", keys, err)
	}
}

// TestOneTenantsFoldersDoNotBindTheWatch has a tenant that makes as much work as
// it can, while another one's document changes.
func TestOneTenantsFoldersDoNotBindTheWatch(t *testing.T) {
	const own = "mallory/p/_vance"
	for name, arrange := range map[string]func(t *testing.T, root string){
		"links to their own folder": func(t *testing.T, root string) {
			for i := range 10 {
				symlink(t, ".", filepath.Join(root, own, fmt.Sprint("l", i)))
			}
		},
		"links to the folder above": func(t *testing.T, root string) {
			for i := range 10 {
				symlink(t, "..", filepath.Join(root, own, fmt.Sprint("l", i)))
			}
		},
		"more ways by links than are looked at, ten at each step": func(t *testing.T, root string) {
			for from := range 8 {
				for i := range 10 {
					symlink(t, fmt.Sprintf("../d%d", from+1), filepath.Join(root, own, fmt.Sprint("d", from), fmt.Sprint("l", i)))
				}
			}
			write(t, filepath.Join(root, own, "d8", "x"), "x")
		},
		"more files than are looked at": func(t *testing.T, root string) {
			for i := range maxProjectEntries + 100 {
				write(t, filepath.Join(root, own, fmt.Sprint("f", i)), "x")
			}
		},
		"more hidden files than are looked at": func(t *testing.T, root string) {
			for i := range maxProjectEntries + 100 {
				write(t, filepath.Join(root, own, fmt.Sprint(".f", i)), "x")
			}
		},
		"more projects than are looked at": func(t *testing.T, root string) {
			for i := range maxTenantEntries + 100 {
				if err := os.MkdirAll(filepath.Join(root, "mallory", fmt.Sprint("p", i)), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		},
		"folders within folders": func(t *testing.T, root string) {
			if err := os.MkdirAll(filepath.Join(root, own, strings.Repeat("d/", 200)), 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"pipes": func(t *testing.T, root string) {
			write(t, filepath.Join(root, own, "x"), "x")
			for i := range 100 {
				if err := syscall.Mkfifo(filepath.Join(root, own, fmt.Sprint("pipe", i)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			arrange(t, root)
			good := Key{"zeta", "p", docPath}
			write(t, NewDir(root).Name(good), "one")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s := NewDir(root).scan(t.Context(), scanTexts, nil)
			runtime.ReadMemStats(&after)
			if _, ok := s.found[good]; !ok || len(s.found) > maxTenantEntries+1 || len(s.folders) > maxTenantEntries+10 {
				t.Errorf("the other tenant's document is seen: %v; %d documents, %d folders", ok, len(s.found), len(s.folders))
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 100<<20 {
				t.Errorf("one scan has taken %d MiB", grown>>20)
			}
			if err := s.err(); err != nil && len(err.Error()) > 16<<10 {
				t.Errorf("the complaint has %d bytes", len(err.Error()))
			}
			if strings.HasPrefix(name, "more ") {
				return // a watch of so many files would take the test's time
			}
			await := watching(t, root)
			write(t, NewDir(root).Name(good), "two")
			await(good)
		})
	}
}

func TestAScanEndsWithItsContext(t *testing.T) {
	root := t.TempDir()
	for i := range 300 {
		write(t, filepath.Join(root, "acme", "p", fmt.Sprint("f", i)), "x")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s := NewDir(root).scan(ctx, scanTexts, nil); len(s.found) > 0 {
		t.Errorf("%d documents were read", len(s.found))
	}
}

func TestAnUnchangedFileIsNotReadAgain(t *testing.T) {
	root := t.TempDir()
	d, key := NewDir(root), Key{"acme", "p", "x"}
	write(t, d.Name(key), "one")
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(d.Name(key), old, old); err != nil {
		t.Fatal(err)
	}
	first := d.scan(t.Context(), scanTexts, nil)
	if again := d.scan(t.Context(), scanTexts, first.found); again.found[key] != first.found[key] || again.found[key].at != first.found[key].at {
		t.Error("it was read again")
	}
	write(t, d.Name(key), "two") // of the same length
	if next := d.scan(t.Context(), scanTexts, first.found); next.found[key].fingerprint == first.found[key].fingerprint {
		t.Error("the change was not seen")
	}
}

func TestWhatOneScanComplainsOfIsSaidOnce(t *testing.T) {
	root := t.TempDir()
	for i := range 100 {
		symlink(t, "..", filepath.Join(root, "mallory", "p", fmt.Sprint("l", i)))
	}
	var log output.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done, changes := make(chan struct{}), make(chan Change, 100)
	go func() {
		defer close(done)
		NewDir(root).Watch(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(cs ...Change) {
			for _, c := range cs {
				changes <- c
			}
		})
	}()
	for n := range 3 {
		key := Key{"acme", "p", "x"}
		for seen := false; !seen; {
			write(t, NewDir(root).Name(key), time.Now().String())
			select {
			case c := <-changes:
				seen = c.Key == key
			case <-time.After(50 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatalf("no change %d", n)
			}
		}
	}
	cancel()
	<-done
	if lines := strings.Count(log.String(), "cannot be read"); lines != 1 || !strings.Contains(log.String(), "and 80 more") {
		t.Errorf("%d lines: %.2000s", lines, log.String())
	}
}
