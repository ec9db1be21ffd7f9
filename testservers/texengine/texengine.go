// Package texengine compiles TeX documents with the real latexmk and pdflatex,
// and counts how many it compiles at once. It is what the TeX test services
// share.
//
// A document says whom it is counted for by a comment in its main file:
//
//	%!stats acme/thesis
//
// counts it in all, for acme and for acme/thesis.
package texengine

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Unzipped is the most that an archive may unfold to, in bytes.
const Unzipped = 200 << 20

// Engine compiles. The zero Engine is ready and gives documents 240 s.
type Engine struct {
	Timeout time.Duration

	mu     sync.Mutex
	groups map[string]*Count
}

// Count is how much of something there is.
type Count struct {
	Running  int `json:"running"`
	Peak     int `json:"peak"`
	Compiled int `json:"compiled"`
}

// ErrTimeout says that a compile was ended because it took too long.
var ErrTimeout = errors.New("compilation timed out")

// Error is a document that does not compile; its text is what TeX said.
type Error struct{ Log string }

func (e *Error) Error() string {
	for line := range strings.Lines(e.Log) {
		if strings.HasPrefix(line, "!") || fileLine.MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	return "compilation failed"
}

var (
	fileLine = regexp.MustCompile(`^\./?[^:]+:\d+: `)
	statsFor = regexp.MustCompile(`(?m)^%!stats ([A-Za-z0-9_./-]+)\s*$`)
	root     = regexp.MustCompile(`(?m)^\s*\\documentclass`)
)

// Installed reports what is missing; nil where documents can be compiled.
func Installed() error {
	for _, program := range []string{"latexmk", "pdflatex", "bibtex"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not installed (Debian: texlive-latex-base latexmk): %w", program, err)
		}
	}
	return nil
}

// Stats returns the counts: "" is all documents, and every group that a
// document named.
func (e *Engine) Stats() map[string]Count {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]Count{"": {}}
	for k, c := range e.groups {
		out[k] = *c
	}
	return out
}

// Running is how many documents are being compiled.
func (e *Engine) Running() int { return e.Stats()[""].Running }

func (e *Engine) count(groups []string, change func(*Count)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.groups == nil {
		e.groups = map[string]*Count{}
	}
	for _, g := range groups {
		if e.groups[g] == nil {
			e.groups[g] = &Count{}
		}
		change(e.groups[g])
	}
}

// Compile compiles main in dir and returns the path of the PDF. Everything that
// it started is gone when it returns. Errors are *Error, ErrTimeout and those of
// the machine.
func (e *Engine) Compile(ctx context.Context, dir, main string) (string, error) {
	source, err := os.ReadFile(filepath.Join(dir, main))
	if err != nil {
		return "", &Error{Log: "! main file " + main + " is not there"}
	}
	groups := []string{""}
	if m := statsFor.FindSubmatch(source); m != nil {
		parts := strings.Split(string(m[1]), "/")
		for i := range parts {
			groups = append(groups, strings.Join(parts[:i+1], "/"))
		}
	}
	e.count(groups, func(c *Count) { c.Running++; c.Peak = max(c.Peak, c.Running) })
	defer e.count(groups, func(c *Count) { c.Running--; c.Compiled++ })

	timeout := e.Timeout
	if timeout == 0 {
		timeout = 240 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "latexmk", "-norc", "-pdf", "-interaction=nonstopmode", "-halt-on-error", "-file-line-error",
		"-pdflatex=pdflatex -no-shell-escape %O %S", filepath.Base(main))
	cmd.Dir = filepath.Join(dir, filepath.Dir(main))
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8", "max_print_line=1000", "openin_any=p", "openout_any=p",
		"SOURCE_DATE_EPOCH=1700000000", "FORCE_SOURCE_DATE=1", // the same document is the same PDF
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = kill() // what latexmk left behind
	}
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return "", ErrTimeout
		}
		return "", ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", &Error{Log: string(out)}
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(cmd.Dir, strings.TrimSuffix(filepath.Base(main), ".tex")+".pdf"), nil
}

// MainFile finds the file to compile: the one named, main.tex, or the only one
// with a document class.
func MainFile(dir, named string) (string, error) {
	if named != "" {
		if !filepath.IsLocal(named) {
			return "", errors.New("main_file leads out of the archive")
		}
		if _, err := os.Stat(filepath.Join(dir, named)); err != nil {
			return "", fmt.Errorf("main file %s not found in the archive", named)
		}
		return named, nil
	}
	var found []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".tex" {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && root.Match(text) {
			rel, _ := filepath.Rel(dir, path)
			found = append(found, rel)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	for _, f := range found {
		if f == "main.tex" {
			return f, nil
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%d files with a document class; name one as main_file", len(found))
	}
	return found[0], nil
}

// Unzip unfolds an archive into dir.
func Unzip(r io.ReaderAt, size int64, dir string) error {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return errors.New("not a zip archive")
	}
	left := int64(Unzipped)
	for _, f := range z.File {
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("%q leads out of the archive", f.Name)
		}
		path := filepath.Join(dir, f.Name)
		if f.FileInfo().IsDir() {
			if err := os.MkdirAll(path, 0o700); err != nil {
				return err
			}
			continue
		}
		if !f.Mode().IsRegular() {
			return fmt.Errorf("%q is not a regular file", f.Name)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		n, err := unpack(f, path, left)
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

func unpack(f *zip.File, path string, most int64) (int64, error) {
	in, err := f.Open()
	if err != nil {
		return 0, errors.New("not a zip archive")
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, most+1))
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return n, errors.New("the archive is damaged")
	}
	if n > most {
		return n, errors.New("the archive is too large when it is unfolded")
	}
	return n, nil
}
