package document

import (
	"context"
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

// maxDepth is how many folders deep a document's path may be.
const maxDepth = 8

// Dir is a folder with <tenant>/<project>/<path> in it. The layout down to a
// project's folder is the operator's: symbolic links there are followed within
// the folder, as a mounted ConfigMap has them. What is below a project's folder is
// the project's: links there are followed within that folder and never out of it,
// or one tenant could read, or have sent, what another one keeps. Everything is
// opened anew for each read, so that a folder that was replaced is seen.
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
	for _, name := range []string{key.Tenant, key.Project} {
		below, err := openBelow(root, name)
		if err != nil {
			return nil, err
		}
		defer below.Close()
		root = below
	}
	return readIn(root, key.Path)
}

func (d *Dir) open() (*os.Root, error) {
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return nil, fmt.Errorf("the folder %s cannot be opened: %w", d.root, reason(err))
	}
	return root, nil
}

// openBelow makes a folder the root of what is read from then on.
func openBelow(root *os.Root, name string) (*os.Root, error) {
	below, err := root.OpenRoot(name)
	if err != nil {
		return nil, missing(root, name, err)
	}
	return below, nil
}

// missing tells a name that is not there from one that cannot be opened.
func missing(root *os.Root, name string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return reason(err)
	}
	if link, dangling := danglingLink(root, name); dangling {
		return unfit("the symbolic link " + link + " leads nowhere")
	}
	return ErrNotFound
}

// readIn reads a regular file below root. A pipe or device is not opened, and
// opening does not block where one takes the file's place in between.
func readIn(root *os.Root, name string) ([]byte, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, missing(root, name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, missing(root, name, err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
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

var errNotRegular = unfit("this is not a regular file")

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
		return unfit("a symbolic link leads out of the folder of its tenant or project")
	case errors.Is(err, syscall.ELOOP):
		return unfit("symbolic links lead in a circle")
	}
	return err
}

// escapes is what os.Root says of a path that leads out of it; the error itself
// has no name.
const escapes = "path escapes from parent"
