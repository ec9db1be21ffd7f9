package document

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bounds of one scan. Links make few files many, so what counts is what is looked
// at; what is beyond a bound is not watched, and counts when the caches expire. A
// project or tenant that has used its bound up hides nothing of the others'.
const (
	maxFiles          = 100_000 // of the whole folder
	maxTenantEntries  = 8_000   // names within one tenant's folder
	maxProjectEntries = 2_000
	maxTenantBytes    = 64 << 20 // of texts
	maxProjectBytes   = 16 << 20
	// maxComplaints is how many of the things that cannot be read a scan names.
	maxComplaints = 20
	// entriesAtOnce is how many names of a folder are read at a time.
	entriesAtOnce = 256
)

// fingerprint recognises a document's text.
type fingerprint [sha256.Size]byte

// sighting is a file as a scan has seen it.
type sighting struct {
	fingerprint
	info fs.FileInfo
	at   time.Time
}

// unsure is how old a change of a file must be for its time to tell that the text
// is the same: file systems date changes coarsely.
const unsure = 2 * time.Second

// same reports whether the file is still as it was seen, without reading it.
func (s sighting) same(info fs.FileInfo) bool {
	return s.info != nil && os.SameFile(s.info, info) && s.info.Size() == info.Size() &&
		s.info.ModTime().Equal(info.ModTime()) && info.ModTime().Before(s.at.Add(-unsure))
}

// List returns the keys of all files whose names may stand in a key; hidden
// files and folders are none.
func (d *Dir) List(ctx context.Context) ([]Key, error) {
	s := d.scan(ctx, scanFiles, nil)
	keys := make([]Key, 0, len(s.found))
	for key := range s.found {
		keys = append(keys, key)
	}
	sortKeys(keys)
	return keys, s.err()
}

// What a scan looks for.
type scanning int

const (
	scanFolders scanning = iota
	scanFiles
	scanTexts
)

// scan names every folder that may hold documents, as the paths that a watcher
// takes, and the documents, with the fingerprints of their texts; known are those
// of an earlier scan. It goes on after an error: one tenant's bad link must not
// hide the others' changes.
func (d *Dir) scan(ctx context.Context, what scanning, known map[Key]sighting) *scan {
	s := &scan{ctx: ctx, dir: d.root, what: what, known: known, found: map[Key]sighting{}}
	root, err := d.open()
	if err != nil {
		s.errs = []error{err}
		return s
	}
	defer root.Close()
	s.folders = []string{d.root}
	all := &budget{entries: maxFiles, bytes: maxFiles * MaxSize}
	s.below(root, "", all, func(tenant string, root *os.Root) {
		of := &budget{entries: maxTenantEntries, bytes: maxTenantBytes}
		s.below(root, tenant, of, func(project string, root *os.Root) {
			w := walk{scan: s, root: root, tenant: tenant, project: project, left: []*budget{all, of, {entries: maxProjectEntries, bytes: maxProjectBytes}}}
			w.folder(".", nil)
		})
	})
	return s
}

type scan struct {
	ctx     context.Context
	dir     string
	what    scanning
	known   map[Key]sighting
	found   map[Key]sighting
	folders []string
	errs    []error
	left    int // complaints that were left out
}

func (s *scan) err() error {
	if s.left > 0 {
		return errors.Join(append(slices.Clone(s.errs), fmt.Errorf("and %d more", s.left))...)
	}
	return errors.Join(s.errs...)
}

// complain notes what cannot be read, by its path in the folder.
func (s *scan) complain(name string, err error) {
	if len(s.errs) >= maxComplaints {
		s.left++
		return
	}
	s.errs = append(s.errs, &ReadError{Name: filepath.Join(s.dir, filepath.FromSlash(name)), Err: reason(err)})
}

// budget is what may still be looked at within a folder.
type budget struct {
	entries int
	bytes   int64
}

var errTooMany = unfit("there are too many files or folders here, so that changes of some are seen late; move some elsewhere")

// below visits the folders of the tenants, or of the projects of one, that stand
// in root; name is root's own path.
func (s *scan) below(root *os.Root, name string, of *budget, visit func(name string, root *os.Root)) {
	f, err := root.Open(".")
	if err != nil {
		s.complain(name, err)
		return
	}
	defer f.Close()
	s.entries(f, name, []*budget{of}, func(e fs.DirEntry) {
		if !e.IsDir() && e.Type() != fs.ModeSymlink {
			return
		}
		entry := e.Name()
		child, err := root.OpenRoot(entry)
		if err != nil {
			// Gone in between, a link that leads nowhere or to a file, or one out of
			// the root: Read says so as well.
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				s.complain(path.Join(name, entry), err)
			}
			return
		}
		defer child.Close()
		s.folders = append(s.folders, filepath.Join(s.dir, name, entry))
		visit(entry, child)
	})
}

// entries visits the names of a folder that a key may have, until a budget is used
// up or the scan's time is over.
func (s *scan) entries(f *os.File, name string, budgets []*budget, visit func(entry fs.DirEntry)) {
	for s.ctx.Err() == nil {
		entries, err := f.ReadDir(entriesAtOnce)
		for _, e := range entries {
			if s.ctx.Err() != nil {
				return
			}
			if !spend(budgets, 1, 0) {
				s.complain(name, errTooMany)
				return
			}
			if segmentForm.MatchString(e.Name()) && !strings.Contains(e.Name(), "..") {
				visit(e)
			}
		}
		if err != nil {
			if err != io.EOF {
				s.complain(name, err)
			}
			return
		}
	}
}

// spend takes from all budgets, and is false where one is used up.
func spend(budgets []*budget, entries int, bytes int64) bool {
	for _, b := range budgets {
		if b.entries < entries || b.bytes < bytes {
			return false
		}
	}
	for _, b := range budgets {
		b.entries -= entries
		b.bytes -= bytes
	}
	return true
}

// walk is the part of a scan below one project's folder, which is its root.
type walk struct {
	*scan
	root            *os.Root
	tenant, project string
	left            []*budget
	full            bool // a budget is used up
}

// at is a path in the whole folder.
func (w *walk) at(name string) string { return path.Join(w.tenant, w.project, name) }

// folder walks one folder; above are the folders that it stands in.
func (w *walk) folder(name string, above []fs.FileInfo) {
	info, err := w.root.Stat(name)
	if err != nil {
		w.complain(w.at(name), err)
		return
	}
	if slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) {
		w.complain(w.at(name), unfit("symbolic links lead in a circle"))
		return
	}
	if len(above) > maxDepth {
		w.complain(w.at(name), unfit("no document stands in so many folders"))
		return
	}
	if name != "." {
		w.folders = append(w.folders, filepath.Join(w.dir, filepath.FromSlash(w.at(name))))
	}
	f, err := w.root.Open(name)
	if err != nil {
		w.complain(w.at(name), err)
		return
	}
	defer f.Close()
	above = append(slices.Clone(above), info)
	w.entries(f, w.at(name), w.left, func(e fs.DirEntry) {
		if w.full || e.Type().IsRegular() && w.what == scanFolders {
			return
		}
		child := path.Join(name, e.Name())
		if e.IsDir() {
			w.folder(child, above)
			return
		}
		info, err := w.root.Stat(child) // follows links within the root
		switch {
		case err != nil:
			// Gone in between, or a link out of the root: Read says so as well.
			if !errors.Is(err, fs.ErrNotExist) {
				w.complain(w.at(child), err)
			}
		case info.IsDir():
			w.folder(child, above)
		case info.Mode().IsRegular() && w.what != scanFolders:
			w.file(child, info)
		}
	})
}

func (w *walk) file(name string, info fs.FileInfo) {
	key := Key{w.tenant, w.project, name}
	if key.Validate() != nil {
		return
	}
	if w.what != scanTexts {
		w.found[key] = sighting{}
		return
	}
	if before, ok := w.known[key]; ok && before.same(info) {
		w.found[key] = before
		return
	}
	if !spend(w.left, 0, min(info.Size(), MaxSize)) {
		if !w.full {
			w.complain(w.at(name), errTooMany)
		}
		w.full = true
		return
	}
	now := time.Now()
	text, err := readIn(w.root, name)
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		w.found[key] = sighting{fingerprint: sha256.Sum256([]byte("unreadable: " + err.Error()))}
	default:
		w.found[key] = sighting{sha256.Sum256(text), info, now}
	}
}
