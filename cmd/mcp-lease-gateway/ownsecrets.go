package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vancetope/mcp-lease-gateway/config"
	"github.com/vancetope/mcp-lease-gateway/internal/seal"
)

// Names of the secrets that a gateway on the embedded store makes for itself,
// beside the store's file.
const (
	sessionKeyFile    = "session.key"
	internalTokenFile = "internal.token"
)

// ownSecrets fills in the session key and the internal token that gateway.yaml
// does not have. Only the embedded store has secrets of its own: with a shared
// store every pod needs the same, and none of them can make them for the others.
// It returns the files that it has made.
func ownSecrets(g *config.Gateway) (made []string, err error) {
	if len(g.Session.Keys) == 0 {
		text, created, err := keptSecret(g, sessionKeyFile, "session.keys", func() string {
			return base64.StdEncoding.EncodeToString(randomBytes(seal.KeySize))
		})
		if err != nil {
			return made, err
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != seal.KeySize {
			return made, fmt.Errorf("%s does not hold a session key (%d bytes in base64); delete it and a new one is made, which ends the sessions that are open",
				secretPath(g, sessionKeyFile), seal.KeySize)
		}
		g.Session.Keys = [][]byte{key}
		if created {
			made = append(made, secretPath(g, sessionKeyFile))
		}
	}
	if len(g.Internal.Tokens) == 0 {
		text, created, err := keptSecret(g, internalTokenFile, "internal.tokens", func() string {
			return hex.EncodeToString(randomBytes(32))
		})
		if err != nil {
			return made, err
		}
		g.Internal.Tokens = []string{text}
		if created {
			made = append(made, secretPath(g, internalTokenFile))
		}
	}
	return made, nil
}

// internalToken is the token that a command on this machine sends: the
// configured one, or the one that serve has made beside the embedded store. It
// is "" where there is neither.
func internalToken(g *config.Gateway) (string, error) {
	if len(g.Internal.Tokens) > 0 {
		return g.Internal.Tokens[0], nil
	}
	if !g.Embedded() {
		return "", nil
	}
	text, err := os.ReadFile(secretPath(g, internalTokenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the internal token cannot be read: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func secretPath(g *config.Gateway, name string) string {
	return filepath.Join(filepath.Dir(g.Store.Path), name)
}

// keptSecret reads a secret from beside the store or makes it.
func keptSecret(g *config.Gateway, name, key string, fresh func() string) (text string, created bool, err error) {
	if !g.Embedded() {
		return "", false, fmt.Errorf("%s is not set in %s; pods that share a store need the same, so none is made", key, g.Path)
	}
	path := secretPath(g, name)
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("%s is not set and cannot be read from beside the store: %w", key, err)
	}
	text = fresh()
	if err := writeNew(path, text+"\n"); err != nil {
		return "", false, fmt.Errorf("%s is not set and cannot be kept beside the store: %w", key, err)
	}
	return text, true, nil
}

// writeNew writes a file that only its owner reads, whole or not at all: a crash
// in between must not leave half a key, and an existing file is never replaced.
func writeNew(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // created 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.WriteString(text)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Link(tmp.Name(), path)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails on systems that Go supports
	return b
}
