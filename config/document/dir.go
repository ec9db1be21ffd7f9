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
	"strings"
	"syscall"
)

const (
	// maxDepth is how many folders deep a document's path may be.
	maxDepth = 8
	// maxFiles bounds a walk, since symbolic links can make few files many.
	maxFiles = 100_000
)

// Dir is a folder with <tenant>/<project>/<path> in it. Symbolic links are
// followed within the folder, as a mounted ConfigMap has them, and never out of
// it. It is opened anew for each read, so that a folder that was replaced is
// seen.
type Dir struct{ root string }

// NewDir does not look at the folder yet: a missing one is an error of Read and
// not an empty layer, since it may be a mount that has not come up.
func NewDir(root string) *Dir { return &Dir{root} }

// Name is the path of key's file.
func (d *Dir) Name(key Key) string {
	return filepath.Join(d.root, key.Tenant, key.Project, filepath.FromSlash(key.Path))
}

// Read reads key's file.
func (d *Dir) Read(_ context.Context, key Key) ([]byte, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	root, err := d.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return readIn(root, path.Join(key.Tenant, key.Project, key.Path))
}

func (d *Dir) open() (*os.Root, error) {
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return nil, fmt.Errorf("the folder %s cannot be opened: %w", d.root, reason(err))
	}
	return root, nil
}

// readIn reads a regular file below root. Opening does not block where the file
// is a pipe.
func readIn(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		if link, dangling := danglingLink(root, name); dangling {
			return nil, unfit("the symbolic link " + link + " leads nowhere")
		}
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, reason(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, unfit("this is not a regular file")
	}
	// One byte more, so that a file that is too long is seen to be so.
	text, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, reason(err)
	}
	if len(text) > MaxSize {
		return nil, ErrTooLong
	}
	return text, nil
}

// danglingLink finds a link on the way to name whose end is missing. That is a
// document that cannot be read, and not one that is not there.
func danglingLink(root *os.Root, name string) (string, bool) {
	parts := strings.Split(name, "/")
	for i := range parts {
		prefix := path.Join(parts[:i+1]...)
		info, err := root.Lstat(prefix)
		if err != nil {
			return "", false
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			if _, err := root.Stat(prefix); err != nil {
				return prefix, true
			}
		}
	}
	return "", false
}

// reason is an error without the path, which stands before it already.
func reason(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	switch {
	case err.Error() == escapes:
		return unfit("a symbolic link leads out of the documents' folder")
	case errors.Is(err, syscall.ELOOP):
		return unfit("symbolic links lead in a circle")
	}
	return err
}

// escapes is what os.Root says of a path that leads out of it; the error itself
// has no name.
const escapes = "path escapes from parent"

// List returns the keys of all files whose names may stand in a key; hidden
// files and folders are none.
func (d *Dir) List(context.Context) ([]Key, error) {
	found, _, err := d.scan(true)
	keys := make([]Key, 0, len(found))
	for key := range found {
		keys = append(keys, key)
	}
	sortKeys(keys)
	return keys, err
}

// fingerprint recognises a document's text.
type fingerprint [sha256.Size]byte

// scan names every folder that may hold documents, as the paths that a watcher
// takes, and reads the documents where texts is set. It goes on after an error:
// one tenant's bad link must not hide the others' changes.
func (d *Dir) scan(texts bool) (found map[Key]fingerprint, folders []string, err error) {
	root, err := d.open()
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	w := walk{dir: d, root: root, texts: texts, found: map[Key]fingerprint{}}
	w.folder("", 0)
	return w.found, w.folders, w.err
}

type walk struct {
	dir     *Dir
	root    *os.Root
	texts   bool
	found   map[Key]fingerprint
	folders []string
	err     error
}

func (w *walk) folder(name string, depth int) {
	if depth > maxDepth+2 || len(w.found) > maxFiles {
		w.err = errors.Join(w.err, fmt.Errorf("%s: too many files or folders within folders", filepath.Join(w.dir.root, name)))
		return
	}
	w.folders = append(w.folders, filepath.Join(w.dir.root, filepath.FromSlash(name)))
	f, err := w.root.Open(path.Join(".", name))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.fail(name, err)
		}
		return
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		w.fail(name, err)
	}
	for _, e := range entries {
		if !segmentForm.MatchString(e.Name()) || strings.Contains(e.Name(), "..") {
			continue // hidden, or a name that no key can have
		}
		child := path.Join(name, e.Name())
		info, err := w.root.Stat(child) // follows links within the root
		switch {
		case err != nil:
			// A link out of the root, or gone in between. Read will say so to
			// whoever asks for it.
			if !errors.Is(err, fs.ErrNotExist) {
				w.fail(child, err)
			}
		case info.IsDir():
			w.folder(child, depth+1)
		case info.Mode().IsRegular() && w.texts:
			w.file(child)
		}
	}
}

// fail notes what cannot be read.
func (w *walk) fail(name string, err error) {
	w.err = errors.Join(w.err, &ReadError{Name: filepath.Join(w.dir.root, filepath.FromSlash(name)), Err: reason(err)})
}

func (w *walk) file(name string) {
	parts := strings.SplitN(name, "/", 3)
	if len(parts) < 3 {
		return // a file beside the tenants' or projects' folders
	}
	key := Key{parts[0], parts[1], parts[2]}
	if key.Validate() != nil {
		return
	}
	text, err := readIn(w.root, name)
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		w.found[key] = sha256.Sum256([]byte("unreadable: " + err.Error()))
	default:
		w.found[key] = sha256.Sum256(text)
	}
}
