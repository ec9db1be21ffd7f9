package document

import (
	"context"
	"embed"
	"io/fs"
	"strings"
)

//go:embed all:bundled
var bundledFiles embed.FS

const bundledRoot = "bundled/"

// bundled is the layer that comes with the program. It has no scopes: of a key
// only the path counts.
type bundled struct{}

func (bundled) Read(_ context.Context, key Key) ([]byte, error) {
	if !validPath(key.Path) {
		return nil, ErrNotFound
	}
	text, err := bundledFiles.ReadFile(bundledRoot + key.Path)
	if err != nil {
		return nil, ErrNotFound // a file of the program is there or is not
	}
	return text, nil
}

func (bundled) Name(key Key) string { return "bundled:" + key.Path }

func (bundled) List(context.Context) ([]Key, error) {
	var keys []Key
	err := fs.WalkDir(bundledFiles, strings.TrimSuffix(bundledRoot, "/"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			keys = append(keys, Key{Path: strings.TrimPrefix(path, bundledRoot)})
		}
		return err
	})
	return keys, err
}
